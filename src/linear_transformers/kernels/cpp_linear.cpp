// Causal linear attention on CPUs, forward and backward: eqs. 8 and 9 of Katharopoulos et al.
// (2020) and their gradients, with the feature map and the normaliser in one pass.
//
// Everything is one primitive, a causal product of three sequences,
//
//     out_i = state^T a_i,    state = state_0 + sum over j <= i of b_j c_j^T,
//
// taken forward or backward in time:
//
//     sums of values     scan(phi(q), phi(k), v)
//     d phi(q)           scan([g, h], [v, 1], phi(k))
//     d phi(k)           scan([v, 1], [g, h], phi(q))   from the end
//     d v                scan(phi(k), phi(q), g)        from the end
//
// where g and h are the gradients of a sum of values and of the sum of weights under it. Nothing
// is kept for a position but its sum of weights; the backward pass recomputes the states.
// A few positions go through the state together, so that it is read and written once for all of
// them, and two vectors of it at a time stay in registers. A thread takes as many heads of a
// sequence as it can, and copies a few positions of all of them at once: they are contiguous.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "call.h"
#include "cpp_vectors.h"

namespace {

constexpr int64_t kTogether = 4;  // positions that go through the state together
constexpr int64_t kBlock = 16;    // positions that are copied into the cache at once

template <typename T>
int64_t padded(int64_t width) {
  constexpr int64_t size = Vector<T>::size;
  return (width + size - 1) / size * size;
}

// Rows of numbers, aligned to vectors and padded with zeros; zero at first.
template <typename T>
class Rows {
 public:
  Rows(int64_t rows, int64_t width) : stride(padded<T>(width)), bytes_(rows * stride * sizeof(T)) {
    data_.reset(static_cast<T*>(std::aligned_alloc(kVectorBytes, bytes_)));
    clear();
  }
  T* operator[](int64_t row) { return data_.get() + row * stride; }
  const T* operator[](int64_t row) const { return data_.get() + row * stride; }
  void clear() { std::memset(data_.get(), 0, bytes_); }

  const int64_t stride;

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  size_t bytes_;
  std::unique_ptr<T, Free> data_;
};

// The primitive over `P` positions, for `V` vectors of the state's columns.
template <int P, int V, typename T>
inline void scan_columns(const T* a, int64_t a_stride, const T* b, int64_t b_stride, const T* c,
                         int64_t c_stride, T* out, int64_t out_stride, T* state,
                         int64_t state_stride, int64_t height) {
  using Vec = typename Vector<T>::type;
  constexpr int64_t size = Vector<T>::size;
  Vec added[P][V], sum[P][V];
  for (int p = 0; p < P; ++p)
    for (int v = 0; v < V; ++v) {
      added[p][v] = *reinterpret_cast<const Vec*>(c + p * c_stride + v * size);
      sum[p][v] = Vec{};
    }
  for (int64_t x = 0; x < height; ++x) {
    Vec* row = reinterpret_cast<Vec*>(state + x * state_stride);
    for (int v = 0; v < V; ++v) {
      Vec s = row[v];
      for (int p = 0; p < P; ++p) {
        s += b[p * b_stride + x] * added[p][v];
        sum[p][v] += a[p * a_stride + x] * s;
      }
      row[v] = s;
    }
  }
  for (int p = 0; p < P; ++p)
    for (int v = 0; v < V; ++v)
      *reinterpret_cast<Vec*>(out + p * out_stride + v * size) = sum[p][v];
}

// The primitive, over `count` positions in the rows from `first` on: a and b are `height` wide, c
// and out `width`. The state is in the rows of `states` from `state` on.
template <int P, typename T>
inline void scan_some(const Rows<T>& a, const Rows<T>& b, const Rows<T>& c, Rows<T>& out,
                      Rows<T>& states, int64_t state, int64_t first, int64_t height,
                      int64_t width) {
  constexpr int64_t size = Vector<T>::size;
  int64_t y = 0;
  for (; y + size < padded<T>(width); y += 2 * size)
    scan_columns<P, 2>(a[first], a.stride, b[first], b.stride, c[first] + y, c.stride,
                       out[first] + y, out.stride, states[state] + y, states.stride, height);
  if (y < width)
    scan_columns<P, 1>(a[first], a.stride, b[first], b.stride, c[first] + y, c.stride,
                       out[first] + y, out.stride, states[state] + y, states.stride, height);
}

template <typename T>
void scan(const Rows<T>& a, const Rows<T>& b, const Rows<T>& c, Rows<T>& out, Rows<T>& states,
          int64_t state, int64_t first, int64_t count, int64_t height, int64_t width) {
  const int64_t last = first + count;
  for (; first + kTogether <= last; first += kTogether)
    scan_some<kTogether>(a, b, c, out, states, state, first, height, width);
  for (; first < last; ++first)
    scan_some<1>(a, b, c, out, states, state, first, height, width);
}

// From the gradient of phi(x) to that of x. Where x <= 0, elu + 1 is its own derivative.
template <typename T, typename Sum>
inline void features_backward(const T* x, const Sum* phi, const Sum* gradient, T* out,
                              int64_t width, bool elu) {
  if (elu) {
    const auto chained = [](auto x, auto phi, auto g) { return x > 0 ? g : g * phi; };
    map(out, width, chained, x, phi, gradient);
  } else {
    copy(gradient, out, width);
  }
}

template <typename T>
inline const T* head_of(const View& x, int64_t b, int64_t t, int64_t h) {
  return static_cast<const T*>(x.data) + b * x.batch + t * x.position + h * x.head;
}

// Call work(sequence, first head, heads) for all heads of all sequences, on all threads.
template <typename T, typename Sum, typename Work>
void for_all(const Call<T, Sum>& call, const Work& work) {
  const int64_t threads = at::get_num_threads();
  int64_t groups = 1;  // of heads: the fewest that balance the threads' work
  while (groups < call.heads && (call.heads % groups || (call.batch * groups % threads &&
                                                         call.batch * groups < 4 * threads)))
    ++groups;
  const int64_t heads = call.heads / groups;
  at::parallel_for(0, call.batch * groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(i / groups, i % groups * heads, heads);
  });
}

template <typename T, typename Sum>
void forward(const Call<T, Sum>& call) {
  const int64_t C = call.features, M = call.values;
  const Sum eps = static_cast<Sum>(call.eps);
  for_all(call, [&](int64_t b, int64_t first, int64_t heads) {
    // For each head, the rows of a block and the state.
    Rows<Sum> phi_q(heads * kBlock, C), phi_k(heads * kBlock, C);
    Rows<Sum> value(heads * kBlock, M), sum(heads * kBlock, M);
    Rows<Sum> states(heads * C, M), weights(heads, C);
    const int64_t begin = b * call.heads + first;  // of these heads, among all states
    if (call.kv_sum) {
      for (int64_t x = 0; x < heads * C; ++x)
        copy(call.kv_sum + (begin * C + x) * M, states[x], M);
      for (int64_t h = 0; h < heads; ++h)
        copy(call.k_sum + (begin + h) * C, weights[h], C);
    }
    for (int64_t t = 0; t < call.length; t += kBlock) {
      const int64_t count = std::min(kBlock, call.length - t);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t row = h * kBlock + i;
          features(head_of<T>(call.q, b, t + i, first + h), phi_q[row], C, call.elu);
          features(head_of<T>(call.k, b, t + i, first + h), phi_k[row], C, call.elu);
          copy(head_of<T>(call.v, b, t + i, first + h), value[row], M);
        }
      for (int64_t h = 0; h < heads; ++h)
        scan(phi_q, phi_k, value, sum, states, h * C, h * kBlock, count, C, M);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t row = h * kBlock + i;
          const int64_t place = (b * call.length + t + i) * call.heads + first + h;
          map(weights[h], C, [](auto sum, auto k) { return sum + k; }, weights[h], phi_k[row]);
          const Sum total = dot(phi_q[row], weights[h], C) + eps;
          const Sum share = 1 / total;
          call.weight[place] = total;
          map(call.out + place * M, M, [&](auto y) { return y * share; }, sum[row]);
        }
    }
    for (int64_t x = 0; x < heads * C; ++x)
      copy(states[x], call.kv_sum_after + (begin * C + x) * M, M);
    for (int64_t h = 0; h < heads; ++h)
      copy(weights[h], call.k_sum_after + (begin + h) * C, C);
  });
}

// [g, h] and [v, 1] of one position.
template <typename T, typename Sum>
inline void gradients_of_sums(const T* d_out, const T* out, Sum weight, const T* v, Sum* g,
                              Sum* value, int64_t M) {
  const Sum share = 1 / weight;
  map(g, M, [&](auto d) { return d * share; }, d_out);
  g[M] = -dot(d_out, out, M) * share;
  copy(v, value, M);
  value[M] = 1;
}

template <typename T, typename Sum>
void backward(const Call<T, Sum>& call) {
  const int64_t C = call.features, M = call.values;
  for_all(call, [&](int64_t b, int64_t first, int64_t heads) {
    Rows<Sum> phi_q(heads * kBlock, C), phi_k(heads * kBlock, C), d_phi(heads * kBlock, C);
    Rows<Sum> g(heads * kBlock, M + 1), value(heads * kBlock, M + 1), d_value(heads * kBlock, M);
    // States, and states transposed, with the sum of weights as a last row.
    Rows<Sum> states(heads * C, M), turned(heads * (M + 1), C);
    const int64_t begin = b * call.heads + first;  // of these heads, among all states
    const auto place_of = [&](int64_t t, int64_t h) {
      return (b * call.length + t) * call.heads + first + h;
    };
    const auto load = [&](int64_t row, int64_t t, int64_t h) {
      const int64_t place = place_of(t, h);
      features(head_of<T>(call.q, b, t, first + h), phi_q[row], C, call.elu);
      features(head_of<T>(call.k, b, t, first + h), phi_k[row], C, call.elu);
      gradients_of_sums(call.d_out + place * M, call.out + place * M, call.weight[place],
                        head_of<T>(call.v, b, t, first + h), g[row], value[row], M);
    };
    const auto turn = [&](const Sum* sums, const Sum* totals) {
      if (!sums) return turned.clear();
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t x = 0; x < C; ++x) {
          for (int64_t y = 0; y < M; ++y)
            turned[h * (M + 1) + y][x] = sums[((begin + h) * C + x) * M + y];
          turned[h * (M + 1) + M][x] = totals[(begin + h) * C + x];
        }
    };

    turn(call.kv_sum, call.k_sum);
    for (int64_t t = 0; t < call.length; t += kBlock) {
      const int64_t count = std::min(kBlock, call.length - t);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t h = 0; h < heads; ++h) load(h * kBlock + i, t + i, h);
      for (int64_t h = 0; h < heads; ++h)
        scan(g, value, phi_k, d_phi, turned, h * (M + 1), h * kBlock, count, M + 1, C);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t row = h * kBlock + i;
          features_backward(head_of<T>(call.q, b, t + i, first + h), phi_q[row], d_phi[row],
                            call.d_q + place_of(t + i, h) * C, C, call.elu);
        }
    }

    turn(call.d_kv_sum_after, call.d_k_sum_after);
    for (int64_t x = 0; call.d_kv_sum_after && x < heads * C; ++x)
      copy(call.d_kv_sum_after + (begin * C + x) * M, states[x], M);
    for (int64_t t = call.length - 1; t >= 0; t -= kBlock) {
      const int64_t count = std::min(kBlock, t + 1);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t h = 0; h < heads; ++h) load(h * kBlock + i, t - i, h);
      for (int64_t h = 0; h < heads; ++h) {
        scan(value, g, phi_q, d_phi, turned, h * (M + 1), h * kBlock, count, M + 1, C);
        scan(phi_k, phi_q, g, d_value, states, h * C, h * kBlock, count, C, M);
      }
      for (int64_t i = 0; i < count; ++i)
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t row = h * kBlock + i, place = place_of(t - i, h);
          features_backward(head_of<T>(call.k, b, t - i, first + h), phi_k[row], d_phi[row],
                            call.d_k + place * C, C, call.elu);
          copy(d_value[row], call.d_v + place * M, M);
        }
    }
    for (int64_t h = 0; call.d_kv_sum && h < heads; ++h)
      for (int64_t x = 0; x < C; ++x) {
        for (int64_t y = 0; y < M; ++y)
          call.d_kv_sum[((begin + h) * C + x) * M + y] = turned[h * (M + 1) + y][x];
        call.d_k_sum[(begin + h) * C + x] = turned[h * (M + 1) + M][x];
      }
  });
}

}  // namespace

#define DEFINE(T, SUM, NAME)                                                   \
  extern "C" void forward_##NAME(const Call<T, SUM>* call) { forward(*call); } \
  extern "C" void backward_##NAME(const Call<T, SUM>* call) { backward(*call); }

DEFINE(float, float, float32)
DEFINE(double, double, float64)
DEFINE(bfloat16, float, bfloat16)
