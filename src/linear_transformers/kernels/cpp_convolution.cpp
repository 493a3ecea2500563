// The short convolution of `ops/convolution.py` on CPUs: each channel's last few inputs, weighed.
//
// A pass reads its rows once: the few that an output sees are still in the cache. The rows before
// the first and after the last are zero.
#include <ATen/Parallel.h>

#include <algorithm>

#include "cpp_vectors.h"

// `convolution.py` has the same fields. y_t = sum over j of weight_j x_(t - taps + 1 + ahead + j).
struct Call {
  const void *x, *weight, *d_y;  // [b, t, c], with x's rows anywhere; [taps, c]; [b, t, c]
  void *y, *d_x, *d_weight;      // [b, t, c]; the last, one for each sequence, [b, taps, c]
  int64_t batch, length, channels, taps, ahead;
  int64_t x_batch, x_row;  // strides of x
};

namespace {

constexpr int64_t kGrain = 16384;  // numbers worth a thread
constexpr int64_t kBlock = 64;     // channels whose gradients of weights are summed together
constexpr int kMostTaps = 8;

// out_t = sum over j of weight_j x_(t + shift + sign j), in the type of sums.
template <typename T, typename Sum>
void weigh(const T* x, int64_t x_batch, int64_t x_row, const Sum* weight, T* out, const Call& call,
           int64_t shift, int64_t sign) {
  const int64_t length = call.length, width = call.channels, taps = call.taps;
  at::parallel_for(0, call.batch * length, std::max<int64_t>(1, kGrain / width),
                   [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / length, t = row % length;
      const T* from[kMostTaps];
      const Sum* by[kMostTaps];
      int seen = 0;
      for (int j = 0; j < taps; ++j) {
        const int64_t at = t + shift + sign * j;
        if (at < 0 || at >= length) continue;
        from[seen] = x + b * x_batch + at * x_row;
        by[seen++] = weight + j * width;
      }
      const auto sum_of = [&](auto read, int64_t c) {
        auto sum = decltype(read(by[0] + c)){};
        for (int j = 0; j < seen; ++j) sum += read(by[j] + c) * read(from[j] + c);
        return sum;
      };
      T* to = out + row * width;
      int64_t c = 0;
      for (; c + kLanes <= width; c += kLanes)
        store(sum_of([](auto* x) { return load(x); }, c), to + c);
      for (; c < width; ++c)
        to[c] = static_cast<T>(sum_of([](auto* x) { return static_cast<Sum>(*x); }, c));
    }
  });
}

// The gradients of the weights, of each sequence.
template <typename T, typename Sum>
void weigh_gradients(const Call& call) {
  const int64_t length = call.length, width = call.channels, taps = call.taps;
  const int64_t blocks = (width + kBlock - 1) / kBlock;
  const T *x = static_cast<const T*>(call.x), *d_y = static_cast<const T*>(call.d_y);
  Sum* d_weight = static_cast<Sum*>(call.d_weight);
  at::parallel_for(0, call.batch * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t b = unit / blocks, first = unit % blocks * kBlock;
      const int64_t count = std::min(kBlock, width - first);
      Sum sums[kMostTaps][kBlock] = {};
      for (int64_t t = 0; t < length; ++t) {
        const T* d = d_y + (b * length + t) * width + first;
        for (int j = 0; j < taps; ++j) {
          const int64_t at = t - taps + 1 + call.ahead + j;
          if (at < 0 || at >= length) continue;
          const T* row = x + b * call.x_batch + at * call.x_row + first;
          const auto add = [](auto sum, auto d, auto x) { return sum + d * x; };
          map(sums[j], count, add, sums[j], d, row);
        }
      }
      for (int j = 0; j < taps; ++j)
        copy(sums[j], d_weight + (b * taps + j) * width + first, count);
    }
  });
}

template <typename T, typename Sum>
void forward_of(const Call& call) {
  weigh(static_cast<const T*>(call.x), call.x_batch, call.x_row,
        static_cast<const Sum*>(call.weight), static_cast<T*>(call.y), call,
        call.ahead - call.taps + 1, 1);
}

template <typename T, typename Sum>
void backward_of(const Call& call) {
  weigh(static_cast<const T*>(call.d_y), call.length * call.channels, call.channels,
        static_cast<const Sum*>(call.weight), static_cast<T*>(call.d_x), call,
        call.taps - 1 - call.ahead, -1);
  weigh_gradients<T, Sum>(call);
}

}  // namespace

#define KERNELS(name, T, Sum)                                                   \
  extern "C" void forward_##name(const Call* call) { forward_of<T, Sum>(*call); } \
  extern "C" void backward_##name(const Call* call) { backward_of<T, Sum>(*call); }

KERNELS(float32, float, float)
KERNELS(float64, double, double)
KERNELS(bfloat16, bfloat16, float)
