// One position of a whole stack of blocks with linear attention, on CPUs: eqs. 16-20 of
// Katharopoulos et al. (2020) with everything around them, for a batch of sequences. Blocks may have
// a short convolution, norms and gates of the heads' outputs, RMS norms and a gated feed-forward part.
//
// A step of few sequences is bound by reading the weights and by the cost of calls. So the weights
// are packed in the order in which they are read, in float32, bfloat16 or int8 (with a scale for
// each output), and the stack is one call. Arithmetic is in float32. States change in place.
//
// Every sum has a fixed order of terms, whatever the batch and the number of threads: a sequence's
// outputs do not depend on the rest of the batch, to the last bit.
#include <omp.h>

#include <algorithm>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "cpp_vectors.h"

namespace {

using Vec = Floats;
constexpr int64_t kSize = kLanes;
// The sums kept in registers: of kRows sequences and kVectors vectors of outputs.
#if defined(__AVX__) && !defined(__AVX512F__)
constexpr int kRows = 4, kVectors = 2;
#else
constexpr int kRows = 6, kVectors = 4;
#endif
constexpr int64_t kPanel = kVectors * kSize;  // outputs whose weights are packed together

}  // namespace

enum Format : int64_t { kFloat32, kBfloat16, kInt8 };

// y = scale (W x) + bias. W is packed: panels of kPanel outputs, of each panel all inputs in turn.
struct Matrix {
  const void* weights;
  const float* scale;  // may be null
  const float* bias;
  int64_t inputs, outputs, format;
};

struct Norm {
  const float *weight, *bias;  // without a bias it is an RMS norm
};

enum Activation : int64_t { kRelu, kGelu, kSwiglu };
enum Gate : int64_t { kNone, kSilu, kSigmoid };

struct Layer {
  Matrix project_in, project_out, up, down;
  Norm mixer_norm, feedforward_norm;
  const float* taps;         // of the short convolution, [taps, 3 e]; the last is the present's
  const float* output_norm;  // of a head's outputs, [c]; may be null
  float *kv_sum, *k_sum;     // [b, h, c, c] and [b, h, c]
  float* inputs;             // of the short convolution, [b, taps - 1, 3 e]
};

struct Stack {
  // hidden: what the feed-forward part narrows; taps: 0 is no convolution.
  int64_t batch, width, heads, hidden, layers, threads, activation, taps, gate;
  bool pre_norm;
  float norm_eps, eps, output_norm_eps;  // of norms of vectors, of attention, of norms of heads
  Norm norm;
  Matrix head;
};

namespace {

int64_t padded(int64_t width) { return (width + kPanel - 1) / kPanel * kPanel; }

template <typename T>
inline Vec weights_at(const T* x) {
  return load(x);
}
#if defined(__AVX512F__)  // gcc converts a vector of bytes one element at a time
inline Vec weights_at(const int8_t* x) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
#else
inline Vec weights_at(const int8_t* x) {
  typedef int8_t Bytes __attribute__((vector_size(kVectorBytes / 4), aligned(1), may_alias));
  return __builtin_convertvector(*reinterpret_cast<const Bytes*>(x), Vec);
}
#endif

// The sums of `R` sequences and one panel, each given to write(sequence, output, sums).
template <int R, typename W, typename Write>
inline void block(const float* x, int64_t stride, const W* weights, int64_t inputs,
                  const Write& write) {
  Vec sums[R][kVectors] = {};
  for (int64_t i = 0; i < inputs; ++i, weights += kPanel) {
    Vec w[kVectors];
    for (int v = 0; v < kVectors; ++v) w[v] = weights_at(weights + v * kSize);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] += x[r * stride + i] * w[v];
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) write(r, v * kSize, sums[r][v]);
}

template <int R, typename W, typename Write>
inline void block_of(int64_t rows, const float* x, int64_t stride, const W* weights,
                     int64_t inputs, const Write& write) {
  if constexpr (R > 0) {
    if (rows == R)
      block<R>(x, stride, weights, inputs, write);
    else
      block_of<R - 1>(rows, x, stride, weights, inputs, write);
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

template <typename W, typename Write>
void product_in(const Stack& n, const Matrix& matrix, const float* x, int64_t stride,
                const Write& write) {
  const int64_t groups = (n.batch + kRows - 1) / kRows;
  const W* weights = static_cast<const W*>(matrix.weights);
  const Share share(padded(matrix.outputs) / kPanel * groups);
  for (int64_t unit = share.begin; unit < share.end; ++unit) {
    const int64_t panel = unit / groups, first = unit % groups * kRows, column = panel * kPanel;
    block_of<kRows>(std::min<int64_t>(kRows, n.batch - first), x + first * stride, stride,
                    weights + column * matrix.inputs, matrix.inputs,
                    [&](int64_t row, int64_t offset, Vec sums) {
                      const int64_t y = column + offset;
                      if (matrix.scale) sums *= load(matrix.scale + y);
                      write(first + row, y, sums + load(matrix.bias + y));
                    });
  }
}

// This thread's share of a product with all sequences, each vector given to
// write(sequence, output, values). Bias and scale are as wide as the panels.
template <typename Write>
void product(const Stack& n, const Matrix& matrix, const float* x, int64_t stride,
             const Write& write) {
  switch (matrix.format) {
    case kFloat32: return product_in<float>(n, matrix, x, stride, write);
    case kBfloat16: return product_in<bfloat16>(n, matrix, x, stride, write);
    case kInt8: return product_in<int8_t>(n, matrix, x, stride, write);
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

// `V` vectors of the state's columns: add k v^T, then read with q.
template <int V>
inline void columns(const float* q, const float* k, const float* v, float* state, int64_t width,
                    float share, float* out) {
  Vec added[V], sum[V] = {};
  for (int i = 0; i < V; ++i) added[i] = load(v + i * kSize);
  for (int64_t x = 0; x < width; ++x, state += width)
    for (int i = 0; i < V; ++i) {
      const Vec s = load(state + i * kSize) + k[x] * added[i];
      store(s, state + i * kSize);
      sum[i] += q[x] * s;
    }
  for (int i = 0; i < V; ++i) store(sum[i] * share, out + i * kSize);
}

inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// A head's channels of queries, keys or values through the short convolution, whose inputs move on.
void convolve(const Stack& n, const float* __restrict taps, const float* __restrict x,
              float* __restrict inputs, float* __restrict y, int64_t width) {
  const int64_t last = n.taps - 1, stride = 3 * n.width;
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

// One head of one sequence. `room` holds the features of a query and a key.
void attend(const Stack& n, const float* q, const float* k, const float* v, float* kv_sum,
            float* k_sum, float* out, float* room, int64_t width) {
  float *phi_q = room, *phi_k = room + width;
  features(q, phi_q, width, true);
  features(k, phi_k, width, true);
  for (int64_t x = 0; x < width; ++x) k_sum[x] += phi_k[x];
  const float share = 1 / (dot(phi_q, k_sum, width) + n.eps);
  int64_t y = 0;
  for (; y + 2 * kSize <= width; y += 2 * kSize)
    columns<2>(phi_q, phi_k, v + y, kv_sum + y, width, share, out + y);
  for (; y + kSize <= width; y += kSize)
    columns<1>(phi_q, phi_k, v + y, kv_sum + y, width, share, out + y);
  for (; y < width; ++y) {
    float sum = 0;
    for (int64_t x = 0; x < width; ++x) {
      float& s = kv_sum[x * width + y];
      s += phi_k[x] * v[y];
      sum += phi_q[x] * s;
    }
    out[y] = sum * share;
  }
}

// What a head's outputs pass before they are projected: a norm, and a gate of the same width.
void finish(const Stack& n, const float* output_norm, const float* gate, float* out,
            int64_t width) {
  if (output_norm) {
    const float share = rms_share(out, width, n.output_norm_eps);
    for (int64_t i = 0; i < width; ++i) out[i] *= share * output_norm[i];
  }
  if (n.gate == kNone) return;
  for (int64_t i = 0; i < width; ++i)
    out[i] *= n.gate == kSilu ? gate[i] * sigmoid(gate[i]) : sigmoid(gate[i]);
}

inline void activate(const Stack& n, float* x) {
  for (int64_t i = 0; i < kSize; ++i)
    x[i] = n.activation == kGelu ? 0.5f * x[i] * (1 + std::erf(x[i] * 0.70710678f))
                                 : std::max(x[i], 0.0f);
}

// The workspace of a step: rows that all threads share, and rows of each thread's own.
struct Room {
  Room(const Stack& n, float* data)
      : width(padded(n.width)),
        projected(padded((n.gate == kNone ? 3 : 4) * n.width)),
        hidden(padded((n.activation == kSwiglu ? 2 : 1) * n.hidden)) {
    float* next = data;
    const auto take = [&](int64_t floats) {
      next += floats;
      return next - floats;
    };
    heads = take(n.batch * projected);
    attended = take(n.batch * width);
    sum = take(n.batch * width);
    inner = take(n.batch * hidden);
    own = take(n.threads * 2 * n.batch * width);
    own_head = take(n.threads * kPerHead * width);
    floats = next - data;
  }
  int64_t width, projected, hidden;
  static constexpr int64_t kPerHead = 5;  // features of a query and a key; what was convolved
  float *heads, *attended, *sum, *inner, *own, *own_head;
  int64_t floats;
};

void run(const Stack& n, const Layer* layers, const float* input, float* out, const Room& room) {
  const int64_t thread = omp_get_thread_num(), e = n.width, width = room.width;
  const int64_t head_width = e / n.heads;
  // Each thread normalises all sequences itself: that is cheaper than another barrier.
  float* x = room.own + thread * 2 * n.batch * width;
  float* normed = x + n.batch * width;
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
    if (n.pre_norm) norm(layer.mixer_norm, x, normed);
    product(n, layer.project_in, n.pre_norm ? normed : x, width,
            [&](int64_t b, int64_t y, Vec values) {
              store(values, room.heads + b * room.projected + y);
            });
#pragma omp barrier
    const Share share(n.batch * n.heads);
    for (int64_t unit = share.begin; unit < share.end; ++unit) {
      const int64_t b = unit / n.heads, first = unit % n.heads * head_width;
      const float* projected = room.heads + b * room.projected + first;
      const float* qkv[] = {projected, projected + e, projected + 2 * e};
      float* own = room.own_head + thread * Room::kPerHead * width;
      for (int64_t part = 0; n.taps && part < 3; ++part) {
        float* convolved = own + (2 + part) * width;
        convolve(n, layer.taps + part * e + first, qkv[part],
                 layer.inputs + b * (n.taps - 1) * 3 * e + part * e + first, convolved,
                 head_width);
        qkv[part] = convolved;
      }
      float* out_head = room.attended + b * width + first;
      attend(n, qkv[0], qkv[1], qkv[2], layer.kv_sum + unit * head_width * head_width,
             layer.k_sum + unit * head_width, out_head, own, head_width);
      finish(n, layer.output_norm, projected + 3 * e, out_head, head_width);
    }
#pragma omp barrier
    product(n, layer.project_out, room.attended, width, add);
#pragma omp barrier
    if (n.pre_norm) {
      take(room.sum, width);
      norm(layer.feedforward_norm, x, normed);
    } else {
      norm(layer.mixer_norm, room.sum, x);
    }
    product(n, layer.up, n.pre_norm ? normed : x, width, [&](int64_t b, int64_t y, Vec values) {
      float* at = room.inner + b * room.hidden + y;
      store(values, at);
      if (n.activation != kSwiglu) activate(n, at);
    });
#pragma omp barrier
    if (n.activation == kSwiglu) {
      const Share values(n.batch * n.hidden);
      for (int64_t i = values.begin; i < values.end; ++i) {
        float* at = room.inner + i / n.hidden * room.hidden + i % n.hidden;
        const float gate = at[n.hidden];
        *at *= gate * sigmoid(gate);
      }
#pragma omp barrier
    }
    product(n, layer.down, room.inner, room.hidden, add);
#pragma omp barrier
    if (n.pre_norm)
      take(room.sum, width);
    else
      norm(layer.feedforward_norm, room.sum, x);
  }
  norm(n.norm, x, normed);
  const int64_t parameters = padded(n.head.outputs);
  product(n, n.head, normed, width,
          [&](int64_t b, int64_t y, Vec values) { store(values, out + b * parameters + y); });
}

}  // namespace

extern "C" int64_t panel_width() { return kPanel; }

// The size of a step's workspace, in floats.
extern "C" int64_t room_for(const Stack* stack) { return Room(*stack, nullptr).floats; }

// Vectors with positions [b, e] in, parameters [b, p to whole panels] out.
extern "C" void step(const Stack* stack, const Layer* layers, const float* input, float* out,
                     float* room) {
  const Stack& n = *stack;
  const Room rows(n, room);
#pragma omp parallel num_threads(n.threads) if (n.threads > 1)
  run(n, layers, input, out, rows);
}
