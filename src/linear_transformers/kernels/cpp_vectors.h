// Shared by the kernels for CPUs: vectors as wide as the processor's, bfloat16, rows, phi.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

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

// As many numbers as a vector has floats, in the type in which they are computed. Loops are written
// with them: left to itself, the compiler does not vectorise bfloat16, nor rows of known width.
constexpr int kLanes = kVectorBytes / 4;
template <typename T>
struct Lanes {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T)), aligned(alignof(T)), may_alias));
};
using Floats = Lanes<float>::type;
using Doubles = Lanes<double>::type;
using Words = Lanes<uint32_t>::type;
using Halves = Lanes<uint16_t>::type;

#if defined(__AVX512F__)
// gcc converts such vectors one element at a time.
inline Words widened(Halves x) { return (Words)_mm512_cvtepu16_epi32((__m256i)x); }
inline Halves narrowed(Words x) { return (Halves)_mm512_cvtepi32_epi16((__m512i)x); }
#else
inline Words widened(Halves x) { return __builtin_convertvector(x, Words); }
inline Halves narrowed(Words x) { return __builtin_convertvector(x, Halves); }
#endif

inline Floats load(const float* x) { return *reinterpret_cast<const Floats*>(x); }
inline Doubles load(const double* x) { return *reinterpret_cast<const Doubles*>(x); }
inline Words load(const uint16_t* x) { return widened(*reinterpret_cast<const Halves*>(x)); }
inline Floats load(const bfloat16* x) {
  return (Floats)(widened(*reinterpret_cast<const Halves*>(x)) << 16);
}

inline void store(Floats value, float* x) { *reinterpret_cast<Floats*>(x) = value; }
inline void store(Doubles value, double* x) { *reinterpret_cast<Doubles*>(x) = value; }
// As `bfloat16` rounds.
inline Words halves_of(Floats value) {
  const Words bits = (Words)value;
  const Words nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const Words kept = (Words)(value == value);
  return (nearest & kept) | (0x7FC0 & ~kept);
}
inline void store(Floats value, bfloat16* x) {
// The instruction takes numbers below 1e-38 for zero.
#if defined(__AVX512BF16__)
  *reinterpret_cast<Halves*>(x) = (Halves)_mm512_cvtneps_pbh((__m512)value);
#else
  *reinterpret_cast<Halves*>(x) = narrowed(halves_of(value));
#endif
}

// The rest of a row, where there is room for a vector.
template <typename T>
struct Rest {
  T values[kLanes] = {};
  Rest() = default;
  Rest(const T* x, int64_t width) {
    for (int64_t i = 0; i < width; ++i) values[i] = x[i];
  }
};

// out = f(rows...), number by number. `out` may be one of the rows.
template <typename To, typename F, typename... From>
inline void map(To* out, int64_t width, const F& f, const From*... rows) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(f(load(rows + i)...), out + i);
  if (i == width) return;
  Rest<To> rest;
  store(f(load(Rest<From>(rows + i, width - i).values)...), rest.values);
  for (int64_t j = i; j < width; ++j) out[j] = rest.values[j - i];
}

template <typename From, typename To>
inline void copy(const From* x, To* y, int64_t width) {
  map(y, width, [](auto value) { return value; }, x);
}

template <typename Numbers>
inline auto sum_of(Numbers x) {
  auto sum = x[0];
  for (int lane = 1; lane < kLanes; ++lane) sum += x[lane];
  return sum;
}
#if defined(__AVX512F__)
inline float sum_of(Floats x) { return _mm512_reduce_add_ps((__m512)x); }
#endif

template <typename A, typename B>
inline auto dot(const A* x, const B* y, int64_t width) {
  auto sums = decltype(load(x)){};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) sums += load(x + i) * load(y + i);
  auto sum = sum_of(sums);
  for (; i < width; ++i) sum += static_cast<decltype(sum)>(x[i]) * y[i];
  return sum;
}

// e^x of x <= 0: a power of two times a polynomial (Cephes, Moshier 1992), to 2 units in the last
// place.
inline Floats exp_negative(Floats x) {
  const auto shifted = x * 1.44269504f + 12582912.0f;  // the low bits are x log2(e), rounded
  const auto n = shifted - 12582912.0f;
  const auto r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  auto p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const auto power = ((Words)shifted + 127) << 23;
  return x < -87.0f ? 0.0f : p * (Floats)power;
}

// elu + 1 (eq. 7). A NaN stays one.
inline Floats elu_plus_one(Floats x) { return x > 0.0f ? x + 1.0f : exp_negative(x); }
inline Doubles elu_plus_one(Doubles x) {
  for (int i = 0; i < kLanes; ++i) x[i] = x[i] > 0 ? x[i] + 1 : std::exp(x[i]);
  return x;
}

// phi: elu + 1, or the identity where x already is features.
template <typename From, typename T>
inline void features(const From* x, T* phi, int64_t width, bool elu) {
  if (elu) {
    map(phi, width, [](auto value) { return elu_plus_one(value); }, x);
  } else {
    copy(x, phi, width);
  }
}

}  // namespace
