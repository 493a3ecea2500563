// The arguments of the kernels of causal linear attention: `call.py` has the same fields.
#pragma once

#include <cstdint>

// Queries, keys or values, [b, t, h, c or m]: contiguous within a head, with any strides between
// heads, positions and sequences, since one product yields all three side by side.
struct View {
  const void* data;
  int64_t batch, position, head;
};

// Everything else is contiguous: outputs and gradients [b, t, h, c or m], sums of weights
// [b, t, h], states [b, h, c, m] and [b, h, c]. `Sum` is the type in which sums are kept. A state
// that is null is zero; a gradient of a state that is null is zero, or is not wanted.
template <typename T, typename Sum = T>
struct Call {
  int64_t batch, length, heads, features, values;
  View q, k, v;
  const Sum *kv_sum, *k_sum;
  // The forward pass writes these; the backward pass reads the first two.
  T* out;
  Sum *weight, *kv_sum_after, *k_sum_after;
  // The backward pass only.
  const T* d_out;
  const Sum *d_kv_sum_after, *d_k_sum_after;
  T *d_q, *d_k, *d_v;
  Sum *d_kv_sum, *d_k_sum;
  double eps;
  bool elu;  // whether the kernel applies phi(x) = elu(x) + 1
};
