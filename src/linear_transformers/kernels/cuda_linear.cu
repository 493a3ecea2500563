// Causal linear attention in CUDA, forward and backward, as the paper has it: eqs. 8 to 15 of
// Katharopoulos et al. (2020), each head of a sequence from its first position to its last with
// the state in registers. The feature map and the normaliser are in the same pass.
//
// Everything is one primitive, the causal product that cpp_linear.cpp describes,
//
//     out_i = state^T a_i,    state = state_0 + sum over j <= i of b_j c_j^T,
//
// taken forward or backward in time:
//
//     sums of values     (phi(q), phi(k), [v, 1])
//     d phi(q)           ([g, h], [v, 1], phi(k))
//     d phi(k)           ([v, 1], [g, h], phi(q))   from the end
//     d v                (phi(k), phi(q), g)        from the end
//
// where g and h are the gradients of a sum of values and of the sum of weights under it. A block
// computes up to 64 columns of it, of one head of one sequence; a warp 8 columns. Four threads
// share a column, each with a quarter of its rows. Blocks do not wait for one another, and every
// sum has a fixed order: the same input gives the same bits.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "call.h"

#ifndef LAUNCH
#define LAUNCH(kernel, blocks, threads, stream, ...) \
  kernel<<<blocks, threads, 0, stream>>>(__VA_ARGS__)
#endif

namespace {

constexpr int kWarp = 32;
constexpr int kShare = 4;                 // threads that share a column
constexpr int kColumns = kWarp / kShare;  // of a warp
constexpr int kWarps = 8;                 // of a block, and one for the sum of weights
constexpr int kWidth = kColumns * (kWarps + 1);
constexpr int kVector = 4;  // numbers that a thread reads at once

// A position of one head of one sequence.
struct Place {
  int64_t batch, position, head;
};

template <typename T>
__device__ float at(const View& x, const Place& p, int i) {
  const T* data = static_cast<const T*>(x.data);
  return static_cast<float>(
      data[p.batch * x.batch + p.position * x.position + p.head * x.head + i]);
}

__device__ float phi(float x, bool elu) { return elu ? (x > 0 ? x + 1 : expf(x)) : x; }

// From the gradient of phi(x) to that of x. Where x <= 0, elu + 1 is its own derivative.
__device__ float through_phi(float gradient, float x, bool elu) {
  return elu && x <= 0 ? gradient * expf(x) : gradient;
}

// The base of every problem: the call, and the offsets of positions and heads.
template <typename T>
struct Problem : Call<T, float> {
  __device__ int64_t position(const Place& p) const {
    return (p.batch * this->length + p.position) * this->heads + p.head;
  }
  __device__ int64_t head(const Place& p) const { return p.batch * this->heads + p.head; }
  __device__ float query(const Place& p, int x) const {
    return phi(at<T>(this->q, p, x), this->elu);
  }
  __device__ float key(const Place& p, int x) const {
    return phi(at<T>(this->k, p, x), this->elu);
  }
  __device__ float value(const Place& p, int y) const { return at<T>(this->v, p, y); }
  __device__ int64_t in_state(const Place& p, int x, int y) const {
    return (head(p) * this->features + x) * this->values + y;
  }
};

// Each problem defines a, b and c, the first and last state, and what becomes of a column's result.
// With kTotal, one more warp computes a column whose c is 1: the sum of weights. With kBelow, a, b
// and the state have one more row.
template <typename T>
struct Outputs : Problem<T> {
  static constexpr bool kTotal = true, kBelow = false, kFromTheEnd = false;
  float epsilon;  // eps, in the type of the sums

  __device__ int height() const { return this->features; }
  __device__ int width() const { return this->values; }
  __device__ float a(const Place& p, int x) const { return this->query(p, x); }
  __device__ float b(const Place& p, int x) const { return this->key(p, x); }
  __device__ float c(const Place& p, int y) const { return this->value(p, y); }
  __device__ float a_below(const Place& p) const { return 0; }
  __device__ float b_below(const Place& p) const { return 0; }
  __device__ float start(const Place& p, int x, int y) const {
    return this->kv_sum ? this->kv_sum[this->in_state(p, x, y)] : 0;
  }
  __device__ float start_below(const Place& p, int y) const { return 0; }
  __device__ float start_total(const Place& p, int x) const {
    return this->k_sum ? this->k_sum[this->head(p) * this->features + x] : 0;
  }
  __device__ void end(const Place& p, int x, int y, float sum) const {
    this->kv_sum_after[this->in_state(p, x, y)] = sum;
  }
  __device__ void end_below(const Place& p, int y, float sum) const {}
  __device__ void end_total(const Place& p, int x, float sum) const {
    this->k_sum_after[this->head(p) * this->features + x] = sum;
  }
  __device__ void result(const Place& p, int y, float sum, float total) const {
    const int64_t position = this->position(p);
    if (y == 0) this->weight[position] = total + epsilon;
    this->out[position * this->values + y] = static_cast<T>(sum / (total + epsilon));
  }
};

// The base of the problems of the backward pass.
template <typename T>
struct Gradient : Problem<T> {
  static constexpr bool kTotal = false;

  __device__ float g(const Place& p, int y) const {
    const int64_t position = this->position(p);
    return static_cast<float>(this->d_out[position * this->values + y]) / this->weight[position];
  }
  __device__ float start_total(const Place& p, int x) const { return 0; }
  __device__ void end_total(const Place& p, int x, float sum) const {}
};

// The gradient of queries; or, from the end, of keys: with a and b exchanged.
template <typename T, bool KEYS>
struct FeatureGradient : Gradient<T> {
  static constexpr bool kBelow = true, kFromTheEnd = KEYS;

  __device__ int height() const { return this->values; }
  __device__ int width() const { return this->features; }
  __device__ float a(const Place& p, int x) const {
    return KEYS ? this->value(p, x) : this->g(p, x);
  }
  __device__ float b(const Place& p, int x) const {
    return KEYS ? this->g(p, x) : this->value(p, x);
  }
  __device__ float c(const Place& p, int y) const {
    return KEYS ? this->query(p, y) : this->key(p, y);
  }
  __device__ float a_below(const Place& p) const { return KEYS ? 1 : this->h[this->position(p)]; }
  __device__ float b_below(const Place& p) const { return KEYS ? this->h[this->position(p)] : 1; }
  __device__ float start(const Place& p, int x, int y) const {
    const float* sums = KEYS ? this->d_kv_sum_after : this->kv_sum;
    return sums ? sums[this->in_state(p, y, x)] : 0;
  }
  __device__ float start_below(const Place& p, int y) const {
    const float* sums = KEYS ? this->d_k_sum_after : this->k_sum;
    return sums ? sums[this->head(p) * this->features + y] : 0;
  }
  __device__ void end(const Place& p, int x, int y, float sum) const {
    if (KEYS && this->d_kv_sum) this->d_kv_sum[this->in_state(p, y, x)] = sum;
  }
  __device__ void end_below(const Place& p, int y, float sum) const {
    if (KEYS && this->d_k_sum) this->d_k_sum[this->head(p) * this->features + y] = sum;
  }
  __device__ void result(const Place& p, int y, float sum, float total) const {
    const float x = at<T>(KEYS ? this->k : this->q, p, y);
    (KEYS ? this->d_k : this->d_q)[this->position(p) * this->features + y] =
        static_cast<T>(through_phi(sum, x, this->elu));
  }
};

template <typename T>
struct ValueGradient : Gradient<T> {
  static constexpr bool kBelow = false, kFromTheEnd = true;

  __device__ int height() const { return this->features; }
  __device__ int width() const { return this->values; }
  __device__ float a(const Place& p, int x) const { return this->key(p, x); }
  __device__ float b(const Place& p, int x) const { return this->query(p, x); }
  __device__ float c(const Place& p, int y) const { return this->g(p, y); }
  __device__ float a_below(const Place& p) const { return 0; }
  __device__ float b_below(const Place& p) const { return 0; }
  __device__ float start(const Place& p, int x, int y) const {
    return this->d_kv_sum_after ? this->d_kv_sum_after[this->in_state(p, x, y)] : 0;
  }
  __device__ float start_below(const Place& p, int y) const { return 0; }
  __device__ void end(const Place& p, int x, int y, float sum) const {}
  __device__ void end_below(const Place& p, int y, float sum) const {}
  __device__ void result(const Place& p, int y, float sum, float total) const {
    this->d_v[this->position(p) * this->values + y] = static_cast<T>(sum);
  }
};

// A thread has ROWS rows of the state: one of every four vectors of a column.
template <int ROWS, typename P>
__global__ void scan(P problem) {
  constexpr int kHeight = ROWS * kShare;
  constexpr int kTile = ROWS < 32 ? 32 : 16;  // positions that are copied at once
  __shared__ __align__(16) float a[kTile][kHeight], b[kTile][kHeight];
  __shared__ float c[kTile][kWidth], results[kTile][kWidth], a_below[kTile], b_below[kTile];

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int share = lane / kColumns, column = warp * kColumns + lane % kColumns;
  const int columns = blockDim.x / kWarp * kColumns;
  const int total_column = P::kTotal ? columns - kColumns : columns;
  const int height = problem.height(), width = problem.width();
  const int first_column = blockIdx.y * kWarps * kColumns, y = first_column + column;
  const bool totals = P::kTotal && column == total_column;
  const bool inside = column < total_column && y < width;
  const int64_t length = problem.length;
  Place place{static_cast<int64_t>(blockIdx.x) / problem.heads, 0,
              static_cast<int64_t>(blockIdx.x) % problem.heads};
  const auto row = [&](int r) { return (r / kVector * kShare + share) * kVector + r % kVector; };

  float state[ROWS], below = inside && P::kBelow ? problem.start_below(place, y) : 0;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int x = row(r);
    state[r] = x >= height ? 0
               : totals    ? problem.start_total(place, x)
               : inside    ? problem.start(place, x, y)
                           : 0;
  }

  for (int64_t first = 0; first < length; first += kTile) {
    const int count = length - first < kTile ? length - first : kTile;
    const auto go_to = [&](int i) {
      place.position = P::kFromTheEnd ? length - 1 - (first + i) : first + i;
    };
    for (int i = threadIdx.x; i < count * kHeight; i += blockDim.x) {
      const int t = i / kHeight, x = i % kHeight;
      go_to(t);
      a[t][x] = x < height ? problem.a(place, x) : 0;
      b[t][x] = x < height ? problem.b(place, x) : 0;
    }
    for (int i = threadIdx.x; i < count * columns; i += blockDim.x) {
      const int t = i / columns, to = i % columns;
      go_to(t);
      c[t][to] = to >= total_column           ? 1
                 : first_column + to < width ? problem.c(place, first_column + to)
                                             : 0;
    }
    if (P::kBelow)
      for (int t = threadIdx.x; t < count; t += blockDim.x) {
        go_to(t);
        a_below[t] = problem.a_below(place);
        b_below[t] = problem.b_below(place);
      }
    __syncthreads();
#pragma unroll 4
    for (int t = 0; t < count; ++t) {
      const float added = c[t][column];
      float sum = 0;
#pragma unroll
      for (int r = 0; r < ROWS; r += kVector) {
        const float4 from_a = *reinterpret_cast<const float4*>(&a[t][row(r)]);
        const float4 from_b = *reinterpret_cast<const float4*>(&b[t][row(r)]);
        state[r] += from_b.x * added;
        state[r + 1] += from_b.y * added;
        state[r + 2] += from_b.z * added;
        state[r + 3] += from_b.w * added;
        sum += from_a.x * state[r];
        sum += from_a.y * state[r + 1];
        sum += from_a.z * state[r + 2];
        sum += from_a.w * state[r + 3];
      }
      if (P::kBelow && share == 0) {
        below += b_below[t] * added;
        sum += a_below[t] * below;
      }
#pragma unroll
      for (int apart = kColumns; apart < kWarp; apart *= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, apart);
      if (share == 0) results[t][column] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * total_column; i += blockDim.x) {
      const int t = i / total_column, from = i % total_column;
      go_to(t);
      if (first_column + from < width)
        problem.result(place, first_column + from, results[t][from],
                       P::kTotal ? results[t][total_column] : 0);
    }
    // No barrier here: no thread reads a, b and c any more, and the next round writes results only
    // after its own barrier.
  }

#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int x = row(r);
    if (x >= height) continue;
    if (inside) problem.end(place, x, y, state[r]);
    if (totals && blockIdx.y == 0) problem.end_total(place, x, state[r]);
  }
  if (P::kBelow && inside && share == 0) problem.end_below(place, y, below);
}

// The gradient of each position's sum of weights, h = -(d_out . out) / weight: a warp each.
template <typename T>
__global__ void weight_gradients(const T* d_out, const T* out, const float* weight, float* h,
                                 int64_t positions, int64_t values) {
  const int64_t position =
      static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (position >= positions) return;  // a whole warp
  const int lane = threadIdx.x % kWarp;
  float sum = 0;
  for (int64_t y = lane; y < values; y += kWarp)
    sum += static_cast<float>(d_out[position * values + y]) *
           static_cast<float>(out[position * values + y]);
#pragma unroll
  for (int apart = 1; apart < kWarp; apart *= 2) sum += __shfl_xor_sync(0xffffffff, sum, apart);
  if (lane == 0) h[position] = -sum / weight[position];
}

template <typename P>
void run(const P& problem, int64_t height, int64_t width) {
  if (problem.batch == 0) return;  // CUDA refuses a launch without blocks
  const int64_t warps = (width + kColumns - 1) / kColumns;
  const int64_t in_block = (warps < kWarps ? warps : kWarps) + (P::kTotal ? 1 : 0);
  const dim3 blocks(problem.batch * problem.heads, (warps + kWarps - 1) / kWarps);
  const dim3 threads(in_block * kWarp);
  void (*const kernel)(P) = height <= 16    ? scan<4, P>
                            : height <= 32  ? scan<8, P>
                            : height <= 64  ? scan<16, P>
                            : height <= 128 ? scan<32, P>
                                            : scan<64, P>;
  LAUNCH(kernel, blocks, threads, static_cast<cudaStream_t>(problem.stream), problem);
}

template <typename T>
int forward(const Call<T, float>& call) {
  run(Outputs<T>{{call}, static_cast<float>(call.eps)}, call.features, call.values);
  return cudaGetLastError();
}

template <typename T>
int backward(const Call<T, float>& call) {
  constexpr int kTogether = 8;  // warps
  const int64_t positions = call.batch * call.length * call.heads;
  if (positions)
    LAUNCH(weight_gradients<T>, dim3((positions + kTogether - 1) / kTogether),
           dim3(kTogether * kWarp), static_cast<cudaStream_t>(call.stream), call.d_out, call.out,
           call.weight, call.h, positions, call.values);
  const Gradient<T> given{{call}};
  run(FeatureGradient<T, false>{given}, call.values, call.features);
  run(FeatureGradient<T, true>{given}, call.values, call.features);
  run(ValueGradient<T>{given}, call.features, call.values);
  return cudaGetLastError();
}

}  // namespace

#define DEFINE(T, NAME)                                                                 \
  extern "C" int forward_##NAME(const Call<T, float>* call) { return forward(*call); } \
  extern "C" int backward_##NAME(const Call<T, float>* call) { return backward(*call); }

DEFINE(float, float32)
DEFINE(c10::BFloat16, bfloat16)
DEFINE(c10::Half, float16)

extern "C" const char* message(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
