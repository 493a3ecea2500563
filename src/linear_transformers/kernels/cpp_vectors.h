// Shared by the kernels for CPUs: vectors as wide as the processor's, short rows, phi.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int64_t kVectorBytes = 32;
#else
constexpr int64_t kVectorBytes = 16;
#endif

template <typename T>
struct Vector {
  // Unaligned: states of narrow heads do not begin at a vector's boundary.
  typedef T type __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));
  static constexpr int64_t size = kVectorBytes / sizeof(T);
};

// For short rows: memcpy would be a call.
template <typename T>
inline void copy(const T* __restrict x, T* __restrict y, int64_t width) {
  for (int64_t i = 0; i < width; ++i) y[i] = x[i];
}

template <typename T>
inline T dot(const T* __restrict x, const T* __restrict y, int64_t width) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += x[i] * y[i];
  return sum;
}

// e^x for x <= 0, without a branch, so that the compiler vectorises it: a power of two times
// a polynomial (Cephes, Moshier 1992), to 2 units in the last place.
inline float exp_negative(float x) {
  float n = x * 1.44269504f + 12582912.0f;  // the low bits are x log2(e), rounded
  n -= 12582912.0f;
  float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const float bounded = n < -126.0f ? -126.0f : n;
  const int32_t bits = (static_cast<int32_t>(bounded) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -87.0f ? 0.0f : p * power;
}
inline double exp_negative(double x) { return std::exp(x); }

// phi: elu + 1 (eq. 7), or the identity where x already is features.
template <typename T>
inline void features(const T* __restrict x, T* __restrict phi, int64_t width, bool elu) {
  if (elu) {
    for (int64_t i = 0; i < width; ++i)
      phi[i] = x[i] > 0 ? x[i] + 1 : exp_negative(x[i] < 0 ? x[i] : T(0) * x[i]);
  } else {
    copy(x, phi, width);
  }
}

}  // namespace
