// Enough of CUDA to run a kernel on a CPU: one block after the other, whose threads take turns at
// every barrier and at every exchange within a warp. Slow, and right about all but races.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))

struct float4 {
  float x, y, z, w;
};
struct dim3 {
  dim3(int64_t x, int64_t y = 1, int64_t z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return ""; }

namespace on_cpu {

constexpr int kWarpSize = 32, kStack = 1 << 17;

struct Barrier {
  int members = 0, arrived = 0, round = 0;
};
struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  bool finished = false;
};
struct Block {
  std::vector<Thread> threads;
  std::vector<Barrier> warps;
  Barrier all;
  std::vector<float> exchanged;
  std::function<void()> body;
  ucontext_t scheduler;
  int current = 0;
};
inline Block block;

inline void wait(Barrier& barrier) {
  const int round = barrier.round;
  if (++barrier.arrived == barrier.members) {
    barrier.arrived = 0;
    ++barrier.round;
  }
  while (barrier.round == round)
    swapcontext(&block.threads[block.current].context, &block.scheduler);
}

inline void enter() {
  block.body();
  block.threads[block.current].finished = true;
}

inline void run_block(int count) {
  block.threads.assign(count, {});
  block.warps.assign((count + kWarpSize - 1) / kWarpSize, {});
  block.all = {count};
  block.exchanged.assign(count, 0);
  for (int i = 0; i < count; ++i) {
    Thread& thread = block.threads[i];
    ++block.warps[i / kWarpSize].members;
    thread.stack.resize(kStack);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = kStack;
    thread.context.uc_link = &block.scheduler;
    makecontext(&thread.context, enter, 0);
  }
  for (bool busy = true; busy;) {
    busy = false;
    for (block.current = 0; block.current < count; ++block.current) {
      Thread& thread = block.threads[block.current];
      if (thread.finished) continue;
      busy = true;
      swapcontext(&block.scheduler, &thread.context);
    }
  }
}

}  // namespace on_cpu

inline dim3 blockIdx(0), blockDim(0);
#define threadIdx (dim3(on_cpu::block.current))

inline void __syncthreads() { on_cpu::wait(on_cpu::block.all); }

inline float __shfl_xor_sync(unsigned, float value, int apart) {
  const int thread = on_cpu::block.current;
  on_cpu::Barrier& warp = on_cpu::block.warps[thread / on_cpu::kWarpSize];
  on_cpu::block.exchanged[thread] = value;
  on_cpu::wait(warp);
  const float other = on_cpu::block.exchanged[thread ^ apart];
  on_cpu::wait(warp);
  return other;
}

#define LAUNCH(kernel, blocks, threads, stream, ...)                           \
  do {                                                                         \
    const dim3 grid = blocks;                                                  \
    blockDim = threads;                                                        \
    on_cpu::block.body = [=] { kernel(__VA_ARGS__); };                       \
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)                    \
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)                  \
        on_cpu::run_block(blockDim.x);                                         \
  } while (false)
