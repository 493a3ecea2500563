// Shared by the kernels for CPUs: vectors as wide as the processor's, bfloat16, short rows, phi.
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

// The upper half of a float; without branches, so that the compiler vectorises it.
struct bfloat16 {
  uint16_t bits;

  bfloat16() = default;
  explicit bfloat16(float x) {
    uint32_t whole;
    std::memcpy(&whole, &x, sizeof whole);
    const uint32_t nearest = (whole + 0x7FFF + (whole >> 16 & 1)) >> 16;  // or the even one of two
    bits = static_cast<uint16_t>(x == x ? nearest : 0x7FC0);  // a NaN must not become infinite
  }
  operator float() const {
    const uint32_t whole = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &whole, sizeof x);
    return x;
  }
};

// For short rows: memcpy would be a call.
template <typename From, typename To>
inline void copy(const From* __restrict x, To* __restrict y, int64_t width) {
  for (int64_t i = 0; i < width; ++i) y[i] = static_cast<To>(x[i]);
}

template <typename A, typename B>
inline auto dot(const A* __restrict x, const B* __restrict y, int64_t width) {
  decltype(x[0] * y[0]) sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += x[i] * y[i];
  return sum;
}

// e^x of x <= 0: a power of two times a polynomial (Cephes, Moshier 1992), to 2 units in the last
// place.
inline Vector<float>::type exp_negative(Vector<float>::type x) {
  const auto shifted = x * 1.44269504f + 12582912.0f;  // the low bits are x log2(e), rounded
  const auto n = shifted - 12582912.0f;
  const auto r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  auto p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const auto power = ((Vector<uint32_t>::type)shifted + 127) << 23;
  return x < -87.0f ? 0.0f : p * (Vector<float>::type)power;
}

// elu + 1 (eq. 7). A NaN stays one.
inline void elu_plus_one(float* x, int64_t width) {
  using Vec = Vector<float>::type;
  constexpr int64_t size = Vector<float>::size;
  const auto map = [](Vec y) { return y > 0.0f ? y + 1.0f : exp_negative(y); };
  int64_t i = 0;
  for (; i + size <= width; i += size) {
    Vec& part = *reinterpret_cast<Vec*>(x + i);
    part = map(part);
  }
  if (i == width) return;
  float rest[size] = {};
  copy(x + i, rest, width - i);
  const Vec mapped = map(*reinterpret_cast<const Vec*>(rest));
  copy(reinterpret_cast<const float*>(&mapped), x + i, width - i);
}
inline void elu_plus_one(double* x, int64_t width) {
  for (int64_t i = 0; i < width; ++i) x[i] = x[i] > 0 ? x[i] + 1 : std::exp(x[i]);
}

// phi: elu + 1, or the identity where x already is features.
template <typename From, typename T>
inline void features(const From* __restrict x, T* __restrict phi, int64_t width, bool elu) {
  copy(x, phi, width);
  if (elu) elu_plus_one(phi, width);
}

}  // namespace
