// One position of a whole stack of blocks, on CPUs: linear attention, eqs. 16-20 of Katharopoulos
// et al. (2020), the delta rule, eq. 10 of Yang, Kautz and Hatamizadeh (2025), or softmax attention
// with its cache, and everything around them, for a batch of sequences. Blocks may have a short
// convolution, norms and gates of the heads' outputs, RMS norms and a gated feed-forward part.
//
// A step of few sequences is bound by reading the weights and by the cost of calls, one of many by
// its products. So weights are packed in the order in which they are read, in float32, bfloat16 or
// int8, a product takes its inputs in the same format, as the processor multiplies it, and the
// stack is one call. Sums, everything else and states are in float32. States change in place.
//
// Every sum has a fixed order of terms, whatever the batch and the number of threads: a sequence's
// outputs do not depend on the rest of the batch, to the last bit.
#include <omp.h>

#include <algorithm>

#include "cpp_vectors.h"

namespace {

using Vec = Floats;
constexpr int64_t kSize = kLanes;
// The vectors of outputs whose sums are kept in registers, for some sequences at a time.
#if defined(__AVX__) && !defined(__AVX512F__)
constexpr int kVectors = 2;
#else
constexpr int kVectors = 4;
#endif
constexpr int64_t kPanel = kVectors * kSize;  // outputs whose weights are packed together

}  // namespace

enum Format : int64_t { kFloat32, kBfloat16, kInt8 };

// y = scale (W x) + bias. W is packed: panels of kPanel outputs, of each panel all words of inputs
// in turn, and of each word the inputs that it has, side by side, of every output.
struct Matrix {
  const void* weights;
  const float* scale;  // may be null
  const float* bias;
  const float* sums;  // of the weights of each output, scaled; of int8 alone
  int64_t inputs, outputs, format;
};

struct Norm {
  const float *weight, *bias;  // without a bias it is an RMS norm
};

enum Activation : int64_t { kRelu, kGelu, kSwiglu };
enum Gate : int64_t { kNone, kSilu, kSigmoid };
enum Attention : int64_t { kLinear, kSoftmax, kDelta };

struct Layer {
  Matrix project_in, project_out, up, down;
  Norm mixer_norm, feedforward_norm;
  const float* taps;         // of the short convolution, [taps, channels]; the last is the present's
  const float* output_norm;  // of a head's outputs, [m]; may be null
  const float* decay_rate;   // of the delta rule, [h]; null is no decay
  float* inputs;             // of the short convolution, [b, taps - 1, channels]
  // The past: of linear attention kv_sum and k_sum, [b, h, c, m] and [b, h, c]; of softmax
  // attention keys and values, both [b, h, capacity, c], of which position i has slot i mod
  // capacity; of the delta rule its matrix, [b, h, c, m].
  float* past[2];
  // key_width, value_width: of a head, c and m; projected: queries, keys, values, gates, and the
  // delta rule's logits; num_taps: 0 is no convolution.
  int64_t attention, heads, key_width, value_width, projected, num_taps, gate, capacity;
  float eps, output_norm_eps;  // of attention, of norms of heads
};

struct Stack {
  // hidden: what the feed-forward part narrows; length: the positions with the present one.
  int64_t batch, width, hidden, layers, threads, activation, length;
  bool pre_norm;
  float norm_eps;
  Norm norm;
  Matrix head;
};

namespace {

int64_t padded(int64_t width) { return (width + kPanel - 1) / kPanel * kPanel; }

// A vector of words, 4 bytes each: one float, two bfloat16 or four int8.
using Ints = Lanes<int32_t>::type;
inline Words words_at(const void* x) { return *static_cast<const Words*>(x); }

// The sequences at a time where weights are taken apart: with 256 bits, the parts of two vectors of
// weights need registers, too.
constexpr int kRowsApart = kVectors == 4 ? 6 : 4;

// The inputs of a product, in its format: rows of words. A format without an instruction of its own
// has two words for one of weights, which is taken apart: each with a part of the inputs.
struct Inputs {
  const uint32_t* words;
  int64_t stride;
  const float *step, *least;  // of each row, of int8 alone: an input is about step * level + least
};

struct Float32 {
  using Sums = Floats;
  static constexpr int64_t kInWord = 1, kWords = 1;
  static constexpr int kRows = 6;

  static Inputs inputs(int64_t, int64_t, const float* x, int64_t stride, float*) {
    return {reinterpret_cast<const uint32_t*>(x), stride, nullptr, nullptr};
  }
  static Sums add(Sums sums, const uint32_t* x, Words w) {
    return sums + (Floats)(Words{} + *x) * (Floats)w;
  }
  static Floats floats(Sums sums, const Inputs&, int64_t, const Matrix& matrix, int64_t y) {
    return matrix.scale ? sums * load(matrix.scale + y) : sums;
  }
};

struct Bfloat16 {
  using Sums = Floats;
  static constexpr int64_t kInWord = 2;
  static constexpr int kRows = kRowsApart;
// Intel's processors, which know float16 too, take longer for the instruction than for two products
// in float32: 24 ms against 18.5 for a step of 128 sequences.
#if defined(__AVX512BF16__) && !defined(__AVX512FP16__)
  static constexpr int64_t kWords = 1;
  static Sums add(Sums sums, const uint32_t* x, Words w) {
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)(Words{} + *x), (__m512bh)w);
  }
#else
  static constexpr int64_t kWords = 2;
  static Sums add(Sums sums, const uint32_t* x, Words w) {
    sums += (Floats)(Words{} + x[0]) * (Floats)(w << 16);
    return sums + (Floats)(Words{} + x[1]) * (Floats)(w & 0xFFFF0000u);
  }
#endif

  static Inputs inputs(int64_t rows, int64_t width, const float* x, int64_t stride, float* room) {
    const int64_t words = (width + 1) / 2 * kWords;
    for (int64_t b = 0; b < rows; ++b, x += stride, room += words) {
      if constexpr (kWords == 1) {
        auto* row = reinterpret_cast<bfloat16*>(room);
        if (width % 2) row[width] = bfloat16(0.0f);
        copy(x, row, width);
      } else {
        if (width % 2) room[width] = 0;
        map(room, width, [](Floats value) { return (Floats)(halves_of(value) << 16); }, x);
      }
    }
    return {reinterpret_cast<const uint32_t*>(room - rows * words), words, nullptr, nullptr};
  }
  static Floats floats(Sums sums, const Inputs& x, int64_t row, const Matrix& matrix, int64_t y) {
    return Float32::floats(sums, x, row, matrix, y);
  }
};

// Weights have 255 levels, and inputs 256 between the least and the greatest of their row. Products
// of levels and their sums are exact, so every processor has the same ones.
struct Int8 {
  using Sums = Ints;
  static constexpr int64_t kInWord = 4;
  static constexpr int kRows = kRowsApart;
#if defined(__AVX512VNNI__)
  static constexpr int64_t kWords = 1;
  static Sums add(Sums sums, const uint32_t* x, Words w) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)(Words{} + *x), (__m512i)w);
  }
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
  static constexpr int64_t kWords = 1;
  static Sums add(Sums sums, const uint32_t* x, Words w) {
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)(Words{} + *x), (__m256i)w);
  }
#else
  static constexpr int64_t kWords = 2;
  static Sums add(Sums sums, const uint32_t* x, Words w) {
    sums += products_of_pairs(Words{} + x[0], (Words)((Pairs)w << 8 >> 8));
    return sums + products_of_pairs(Words{} + x[1], (Words)((Pairs)w >> 8));
  }
  // Of 16 bits each, the sums of two products.
  typedef int16_t Pairs __attribute__((vector_size(kVectorBytes)));
  static Ints products_of_pairs(Words x, Words w) {
#if defined(__AVX512BW__)
    return (Ints)_mm512_madd_epi16((__m512i)x, (__m512i)w);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (Ints)_mm256_madd_epi16((__m256i)x, (__m256i)w);
#else
    const Ints products = (Ints)((Pairs)x * (Pairs)w);  // at most 255 * 127: 16 bits
    return (products << 16 >> 16) + (products >> 16);
#endif
  }
#endif

  static Inputs inputs(int64_t rows, int64_t width, const float* x, int64_t stride, float* room) {
    const int64_t count = (width + 3) / 4, words = count * kWords;
    float *step = room, *least = room + rows;
    auto* const levels = reinterpret_cast<uint32_t*>(room + 2 * rows);
    for (int64_t b = 0; b < rows; ++b) {
      uint32_t *row = levels + b * words, *bytes = row + words - count;
      quantize(x + b * stride, width, step[b], least[b], reinterpret_cast<uint8_t*>(bytes));
      for (int64_t i = 0; i < count && kWords == 2; ++i) {
        const uint32_t four = bytes[i];  // as 16 bits each, the even ones and the odd ones
        row[2 * i] = four & 0x00FF00FF;
        row[2 * i + 1] = four >> 8 & 0x00FF00FF;
      }
    }
    return {levels, words, step, least};
  }
  static void quantize(const float* x, int64_t width, float& step, float& least, uint8_t* levels) {
    Floats low = Floats{} + x[0], high = low, strange = {};
    const auto see = [&](Floats values) {
      low = values < low ? values : low;
      high = values > high ? values : high;
      strange += values - values;  // NaN, of a NaN or an infinity
    };
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) see(load(x + i));
    for (; i < width; ++i) see(Floats{} + x[i]);
    least = low[0];
    float greatest = high[0], none = strange[0];
    for (int lane = 1; lane < kLanes; ++lane) {
      least = std::min(least, low[lane]);
      greatest = std::max(greatest, high[lane]);
      none += strange[lane];
    }
    step = (greatest - least) / 255;
    const float levels_in_one = step > 1e-30f ? 1 / step : 0;
    for (i = 0; i < width; i += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, width - i);
      const Floats values = count == kLanes ? load(x + i) : load(Rest<float>(x + i, count).values);
      const Floats nearest = (values - least) * levels_in_one + 0.5f;
      const Bytes bytes = bytes_of(__builtin_convertvector(nearest, Ints));
      std::memcpy(levels + i, &bytes, count);
    }
    std::memset(levels + width, 0, -width & 3);
    least += none;
  }
  // 16 or fewer levels to a vector of as many bytes.
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  static Bytes bytes_of(Ints x) {
#if defined(__AVX512F__)  // gcc converts such vectors one element at a time
    return (Bytes)_mm512_cvtepi32_epi8((__m512i)x);
#else
    return __builtin_convertvector(x, Bytes);
#endif
  }
  static Floats floats(Sums sums, const Inputs& x, int64_t row, const Matrix& matrix, int64_t y) {
    return __builtin_convertvector(sums, Floats) * x.step[row] * load(matrix.scale + y) +
           x.least[row] * load(matrix.sums + y);
  }
};

// The sums of `R` sequences and one panel, each given to write(sequence, output, sums).
template <typename F, int R, typename Write>
inline void block(const uint32_t* x, int64_t stride, const uint32_t* weights, int64_t words,
                  const Write& write) {
  typename F::Sums sums[R][kVectors] = {};
  for (int64_t i = 0; i < words; ++i, weights += kPanel) {
    Words w[kVectors];
    for (int v = 0; v < kVectors; ++v) w[v] = words_at(weights + v * kSize);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v)
        sums[r][v] = F::add(sums[r][v], x + r * stride + i * F::kWords, w[v]);
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) write(r, v * kSize, sums[r][v]);
}

template <typename F, int R, typename Write>
inline void block_of(int64_t rows, const uint32_t* x, int64_t stride, const uint32_t* weights,
                     int64_t words, const Write& write) {
  if constexpr (R > 0) {
    if (rows == R)
      block<F, R>(x, stride, weights, words, write);
    else
      block_of<F, R - 1>(rows, x, stride, weights, words, write);
  }
}

// This thread's share of `count` equal parts.
struct Share {
  explicit Share(int64_t count) {
    // The team's size: OpenMP may grant fewer threads than were asked for.
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    begin = thread * count / threads;
    end = (thread + 1) * count / threads;
  }
  int64_t begin, end;
};

template <typename F, typename Write>
void product_in(const Stack& n, const Matrix& matrix, const float* x, int64_t stride, float* room,
                const Write& write) {
  constexpr int kRows = F::kRows;
  const int64_t groups = (n.batch + kRows - 1) / kRows;
  const int64_t words = (matrix.inputs + F::kInWord - 1) / F::kInWord;
  const auto* weights = static_cast<const uint32_t*>(matrix.weights);
  const Inputs in = F::inputs(n.batch, matrix.inputs, x, stride, room);
  const Share share(padded(matrix.outputs) / kPanel * groups);
  for (int64_t unit = share.begin; unit < share.end; ++unit) {
    const int64_t panel = unit / groups, first = unit % groups * kRows, column = panel * kPanel;
    block_of<F, kRows>(std::min<int64_t>(kRows, n.batch - first), in.words + first * in.stride,
                       in.stride, weights + column * words, words,
                       [&](int64_t row, int64_t offset, auto sums) {
                         const int64_t y = column + offset;
                         const Floats values = F::floats(sums, in, first + row, matrix, y);
                         write(first + row, y, values + load(matrix.bias + y));
                       });
  }
}

// This thread's share of a product with all sequences, each vector given to
// write(sequence, output, values). Bias and scale are as wide as the panels. The inputs in the
// product's format go to `room`, which is this thread's own: that is cheaper than another barrier.
template <typename Write>
void product(const Stack& n, const Matrix& matrix, const float* x, int64_t stride, float* room,
             const Write& write) {
  switch (matrix.format) {
    case kFloat32: return product_in<Float32>(n, matrix, x, stride, room, write);
    case kBfloat16: return product_in<Bfloat16>(n, matrix, x, stride, room, write);
    case kInt8: return product_in<Int8>(n, matrix, x, stride, room, write);
  }
}

inline float rms_share(const float* x, int64_t width, float eps) {
  return 1 / std::sqrt(dot(x, x, width) / width + eps);
}

void normalize(const Norm& norm, const float* __restrict x, float* __restrict y, int64_t width,
               float eps) {
  if (!norm.bias) {
    const float share = rms_share(x, width, eps);
    for (int64_t i = 0; i < width; ++i) y[i] = x[i] * share * norm.weight[i];
    return;
  }
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += x[i];
  const float mean = sum / width;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const float share = 1 / std::sqrt(squares / width + eps);
  for (int64_t i = 0; i < width; ++i) y[i] = (x[i] - mean) * share * norm.weight[i] + norm.bias[i];
}

// The delta rule of a position: what a key recalls decays, and is corrected towards the value.
struct Correction {
  float strength, decay;
};
struct Addition {};

// Not by memcpy, which gcc does in halves of a vector: the step would take 1.5 times as long.
template <typename T>
inline T numbers_at(const float* x) {
  if constexpr (std::is_same_v<T, float>)
    return *x;
  else
    return load(x);
}
inline void put(float value, float* x) { *x = value; }
inline void put(Vec value, float* x) { store(value, x); }

// Some of the columns of a head's matrix [c, m], in `V` vectors of type `T`: a position changes
// them, then reads them.
template <typename T, int V, typename Rule>
inline void columns(const float* q, const float* k, const float* v, float* state, int64_t c,
                    int64_t m, float share, Rule rule, float* out) {
  constexpr int64_t kSide = sizeof(T) / sizeof(float);
  constexpr bool kCorrects = std::is_same_v<Rule, Correction>;
  T added[V], sum[V] = {};
  for (int i = 0; i < V; ++i) added[i] = numbers_at<T>(v + i * kSide);
  if constexpr (kCorrects) {
    T recalled[V] = {};
    for (int64_t x = 0; x < c; ++x)
      for (int i = 0; i < V; ++i) recalled[i] += k[x] * numbers_at<T>(state + x * m + i * kSide);
    for (int i = 0; i < V; ++i) added[i] = rule.strength * (added[i] - rule.decay * recalled[i]);
  }
  for (int64_t x = 0; x < c; ++x, state += m)
    for (int i = 0; i < V; ++i) {
      T s = numbers_at<T>(state + i * kSide);
      if constexpr (kCorrects) s *= rule.decay;
      s += k[x] * added[i];
      put(s, state + i * kSide);
      sum[i] += q[x] * s;
    }
  for (int i = 0; i < V; ++i) put(sum[i] * share, out + i * kSide);
}

// All of them.
template <typename Rule>
void pass(const float* q, const float* k, const float* v, float* state, int64_t c, int64_t m,
          float share, Rule rule, float* out) {
  int64_t y = 0;
  for (; y + 2 * kSize <= m; y += 2 * kSize)
    columns<Vec, 2>(q, k, v + y, state + y, c, m, share, rule, out + y);
  for (; y + kSize <= m; y += kSize)
    columns<Vec, 1>(q, k, v + y, state + y, c, m, share, rule, out + y);
  for (; y < m; ++y) columns<float, 1>(q, k, v + y, state + y, c, m, share, rule, out + y);
}

inline Floats sigmoid(Floats x) {
  const Floats power = exp_negative(x < 0.0f ? x : -x);
  return (x < 0.0f ? power : 1.0f) / (1.0f + power);
}

// A head's channels of queries, keys or values through the short convolution, whose inputs move on.
void convolve(int64_t num_taps, const float* __restrict taps, const float* __restrict x,
              float* __restrict inputs, float* __restrict y, int64_t stride, int64_t width) {
  const int64_t last = num_taps - 1;
  for (int64_t i = 0; i < width; ++i) y[i] = taps[last * stride + i] * x[i];
  for (int64_t tap = 0; tap < last; ++tap) {
    float* at = inputs + tap * stride;
    const float* next = tap + 1 < last ? at + stride : x;
    for (int64_t i = 0; i < width; ++i) {
      y[i] += taps[tap * stride + i] * at[i];
      at[i] = next[i];
    }
  }
}

// One head of one sequence with linear attention. `room` holds the features of a query and a key.
void attend(const Layer& layer, const float* q, const float* k, const float* v, float* kv_sum,
            float* k_sum, float* out, float* room) {
  const int64_t width = layer.key_width;
  float *phi_q = room, *phi_k = room + padded(width);
  features(q, phi_q, width, true);
  features(k, phi_k, width, true);
  for (int64_t x = 0; x < width; ++x) k_sum[x] += phi_k[x];
  const float share = 1 / (dot(phi_q, k_sum, width) + layer.eps);
  pass(phi_q, phi_k, v, kv_sum, width, layer.value_width, share, Addition{}, out);
}

inline float squashed(float logit) { return 1 / (1 + std::exp(-logit)); }

inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// One head of one sequence with the delta rule, given the logits of its strength and its decay.
// `room` holds a query, a key and a value.
void correct(const Layer& layer, const float* q, const float* k, const float* v,
             const float* strength, const float* decay, const float* rate, float* state, float* out,
             float* room) {
  const int64_t width = layer.key_width;
  float *unit_q = room, *unit_k = unit_q + padded(width), *active_v = unit_k + padded(width);
  const auto activate = [](const float* x, float* y, int64_t count) {
    map(y, count, [](Floats value) { return value * sigmoid(value); }, x);
  };
  const auto length = [&](const float* x) { return std::sqrt(dot(x, x, width) + layer.eps); };
  activate(q, unit_q, width);
  activate(k, unit_k, width);
  activate(v, active_v, layer.value_width);
  const float of_key = 1 / length(unit_k), share = 1 / (length(unit_q) * std::sqrt(width));
  for (int64_t x = 0; x < width; ++x) unit_k[x] *= of_key;
  const Correction rule = {squashed(*strength),
                           rate ? std::exp(-*rate * softplus(*decay)) : 1.0f};
  pass(unit_q, unit_k, active_v, state, width, layer.value_width, share, rule, out);
}

// One head of one sequence with softmax attention, whose keys and values [capacity, width] get the
// present ones, in place of the oldest where they are full. `room` holds the weights of all of
// them, and of a vector more.
void attend_cached(const Layer& layer, int64_t length, const float* q, const float* k,
                   const float* v, float* keys, float* values, float* out, float* room) {
  const int64_t width = layer.key_width, seen = std::min(length, layer.capacity);
  const int64_t slot = (length - 1) % layer.capacity;
  copy(k, keys + slot * width, width);
  copy(v, values + slot * width, width);
  float greatest = -INFINITY;
  for (int64_t j = 0; j < seen; ++j) {
    room[j] = dot(q, keys + j * width, width);
    greatest = std::max(greatest, room[j]);
  }
  const int64_t whole = (seen + kLanes - 1) / kLanes * kLanes;
  for (int64_t j = seen; j < whole; ++j) room[j] = -INFINITY;
  Floats sums = {};
  for (int64_t j = 0; j < whole; j += kLanes) {
    const Floats weights = exp_negative(load(room + j) - greatest);
    store(weights, room + j);
    sums += weights;
  }
  const float share = 1 / sum_of(sums);
  int64_t y = 0;
  for (; y + kSize <= width; y += kSize) {
    Floats parts[4] = {};  // four sums at a time: one would wait for itself
    for (int64_t j = 0; j < seen; ++j)
      parts[j % 4] += room[j] * load(values + j * width + y);
    store((parts[0] + parts[1] + (parts[2] + parts[3])) * share, out + y);
  }
  for (; y < width; ++y) {
    float sum = 0;
    for (int64_t j = 0; j < seen; ++j) sum += room[j] * values[j * width + y];
    out[y] = sum * share;
  }
}

// What a head's outputs pass before they are projected: a norm, and a gate of the same width.
void finish(const Layer& layer, const float* gate, float* out) {
  const int64_t width = layer.value_width;
  if (layer.output_norm) {
    const float share = rms_share(out, width, layer.output_norm_eps);
    for (int64_t i = 0; i < width; ++i) out[i] *= share * layer.output_norm[i];
  }
  if (layer.gate == kSilu)
    map(out, width, [](Floats y, Floats g) { return y * (g * sigmoid(g)); }, out, gate);
  if (layer.gate == kSigmoid)
    map(out, width, [](Floats y, Floats g) { return y * sigmoid(g); }, out, gate);
}

inline void activate(const Stack& n, float* x) {
  for (int64_t i = 0; i < kSize; ++i)
    x[i] = n.activation == kGelu ? 0.5f * x[i] * (1 + std::erf(x[i] * 0.70710678f))
                                 : std::max(x[i], 0.0f);
}

// The workspace of a step: rows that all threads share, and rows of each thread's own.
struct Room {
  Room(const Stack& n, const Layer* layers, float* data)
      : width(padded(n.width)),
        hidden(padded((n.activation == kSwiglu ? 2 : 1) * n.hidden)) {
    for (const Layer* layer = layers; layer < layers + n.layers; ++layer) {
      values = std::max(values, padded(layer->heads * layer->value_width));
      projected = std::max(projected, padded(layer->projected));
      part = std::max(part, padded(std::max(layer->key_width, layer->value_width)));
      if (layer->attention == kSoftmax) seen = std::max(seen, layer->capacity + kLanes);
    }
    float* next = data;
    const auto take = [&](int64_t floats) {
      next += floats;
      return next - floats;
    };
    heads = take(n.batch * projected);
    attended = take(n.batch * values);
    sum = take(n.batch * width);
    inner = take(n.batch * hidden);
    own = take(n.threads * 2 * n.batch * width);
    per_head = 6 * part + seen;
    own_head = take(n.threads * per_head);
    per_product = n.batch * (2 + std::max({width, values, hidden}));
    own_product = take(n.threads * per_product);
    floats = next - data;
  }
  // Of the widest layer; part: of a head's queries, keys or values, three as they are mixed and
  // three convolved; seen: of the weights of softmax attention.
  int64_t width, hidden, values = 0, projected = 0, part = 0, seen = 0, per_head, per_product;
  float *heads, *attended, *sum, *inner, *own, *own_head, *own_product;
  int64_t floats;
};

void run(const Stack& n, const Layer* layers, const float* input, float* out, const Room& room) {
  const int64_t thread = omp_get_thread_num(), e = n.width, width = room.width;
  // Each thread normalises all sequences itself: that is cheaper than another barrier.
  float* x = room.own + thread * 2 * n.batch * width;
  float* normed = x + n.batch * width;
  float* own_head = room.own_head + thread * room.per_head;
  float* own_product = room.own_product + thread * room.per_product;
  const auto norm = [&](const Norm& by, const float* from, float* to) {
    for (int64_t b = 0; b < n.batch; ++b)
      normalize(by, from + b * width, to + b * width, e, n.norm_eps);
  };
  const auto take = [&](const float* from, int64_t stride) {
    for (int64_t b = 0; b < n.batch; ++b) copy(from + b * stride, x + b * width, e);
  };
  // The residual sum of a sublayer, shared by all threads.
  const auto add = [&](int64_t b, int64_t y, Vec values) {
    store(values + load(x + b * width + y), room.sum + b * width + y);
  };

  take(input, e);
  for (int64_t i = 0; i < n.layers; ++i) {
    const Layer& layer = layers[i];
    const int64_t heads = layer.heads, c = layer.key_width, m = layer.value_width;
    const int64_t channels = heads * (2 * c + m);
    if (n.pre_norm) norm(layer.mixer_norm, x, normed);
    product(n, layer.project_in, n.pre_norm ? normed : x, width, own_product,
            [&](int64_t b, int64_t y, Vec values) {
              store(values, room.heads + b * room.projected + y);
            });
#pragma omp barrier
    const Share share(n.batch * heads);
    for (int64_t unit = share.begin; unit < share.end; ++unit) {
      const int64_t b = unit / heads, head = unit % heads;
      const float* projected = room.heads + b * room.projected;
      const float* gate = projected + channels + head * m;
      const float* logits = projected + channels + (layer.gate == kNone ? 0 : heads * m) + head;
      float* convolved = own_head + 3 * room.part;
      const float* qkv[3];
      int64_t first = 0;  // of a part's channels
      for (int part = 0; part < 3; ++part, convolved += room.part) {
        const int64_t count = part < 2 ? c : m, at = first + head * count;
        qkv[part] = layer.taps ? convolved : projected + at;
        if (layer.taps)
          convolve(layer.num_taps, layer.taps + at, projected + at,
                   layer.inputs + b * (layer.num_taps - 1) * channels + at, convolved, channels,
                   count);
        first += heads * count;
      }
      float* out_head = room.attended + b * room.values + head * m;
      const auto& [q, k, v] = qkv;
      const auto past = [&](int i, int64_t size) { return layer.past[i] + unit * size; };
      if (layer.attention == kSoftmax)
        attend_cached(layer, n.length, q, k, v, past(0, layer.capacity * c),
                      past(1, layer.capacity * c), out_head, own_head + 6 * room.part);
      else if (layer.attention == kDelta)
        correct(layer, q, k, v, logits, logits + heads,
                layer.decay_rate ? layer.decay_rate + head : nullptr, past(0, c * m), out_head,
                own_head);
      else
        attend(layer, q, k, v, past(0, c * m), past(1, c), out_head, own_head);
      finish(layer, gate, out_head);
    }
#pragma omp barrier
    product(n, layer.project_out, room.attended, room.values, own_product, add);
#pragma omp barrier
    if (n.pre_norm) {
      take(room.sum, width);
      norm(layer.feedforward_norm, x, normed);
    } else {
      norm(layer.mixer_norm, room.sum, x);
    }
    product(n, layer.up, n.pre_norm ? normed : x, width, own_product,
            [&](int64_t b, int64_t y, Vec values) {
              float* at = room.inner + b * room.hidden + y;
              store(values, at);
              if (n.activation != kSwiglu) activate(n, at);
            });
#pragma omp barrier
    if (n.activation == kSwiglu) {
      const Share values(n.batch * n.hidden);
      for (int64_t i = values.begin, count; i < values.end; i += count) {
        const int64_t first = i % n.hidden;
        count = std::min(n.hidden - first, values.end - i);
        float* at = room.inner + i / n.hidden * room.hidden + first;
        map(at, count, [](Floats y, Floats g) { return y * (g * sigmoid(g)); }, at, at + n.hidden);
      }
#pragma omp barrier
    }
    product(n, layer.down, room.inner, room.hidden, own_product, add);
#pragma omp barrier
    if (n.pre_norm)
      take(room.sum, width);
    else
      norm(layer.feedforward_norm, room.sum, x);
  }
  norm(n.norm, x, normed);
  const int64_t parameters = padded(n.head.outputs);
  product(n, n.head, normed, width, own_product,
          [&](int64_t b, int64_t y, Vec values) { store(values, out + b * parameters + y); });
}

}  // namespace

extern "C" int64_t panel_width() { return kPanel; }

// The size of a step's workspace, in floats.
extern "C" int64_t room_for(const Stack* stack, const Layer* layers) {
  return Room(*stack, layers, nullptr).floats;
}

// Vectors with positions [b, e] in, parameters [b, p to whole panels] out.
extern "C" void step(const Stack* stack, const Layer* layers, const float* input, float* out,
                     float* room) {
  const Stack& n = *stack;
  const Room rows(n, layers, room);
#pragma omp parallel num_threads(n.threads) if (n.threads > 1)
  run(n, layers, input, out, rows);
}
