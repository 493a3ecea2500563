// Dropout by computed masks on CPUs: `ops/dropout.py` defines which numbers are kept.
//
// A thread takes whole rows. It draws the numbers of a few of them, which stay in the cache; then
// one pass reads x, and the residual that its result is added to, and writes the sum. Philox costs
// some three instructions a number, and no memory.
#include <ATen/Parallel.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpp_vectors.h"

// `cpp_dropout.py` has the same fields.
struct Call {
  const void *x, *residual, *activated;  // [batch, length, width]; all but x may be null
  // residual + dropout(x); with `relu`, dropout(max(x, 0)). Where `activated` is a result of the
  // latter and x the gradient by it, the gradient by what it was computed from.
  void* out;
  int64_t batch, length, width;
  uint32_t seed, step, first, start, place;  // see `ops/dropout.py`
  uint32_t threshold;                 // the least of the 65,536 numbers that are kept
  double scale;                       // of the numbers that are kept
  bool relu;
};

namespace {

constexpr int kRounds = 10;
constexpr int kParts = 8;          // numbers of 16 bits from one call of Philox
constexpr int64_t kGrain = 16384;  // numbers worth a thread

using Flags = Lanes<int32_t>::type;  // -1 or 0
// Words in every other lane, so that there is room for products.
typedef uint64_t Spread __attribute__((vector_size(kVectorBytes)));
typedef uint64_t UnalignedSpread
    __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

// The products of the lower halves of lanes: left to itself, the compiler multiplies all bits.
inline Spread product(Spread x, uint32_t multiplier) {
  const Spread m = Spread{} + multiplier;
#if defined(__AVX512F__)
  return (Spread)_mm512_mul_epu32((__m512i)x, (__m512i)m);
#elif defined(__AVX2__)
  return (Spread)_mm256_mul_epu32((__m256i)x, (__m256i)m);
#else
  return (x & 0xFFFFFFFF) * m;
#endif
}

// Of kLanes calls: blocks, positions, samples.
struct Counters {
  uint32_t block[kLanes], position[kLanes], sample[kLanes];
};

// Every other of some words, from the first or the second on.
inline Spread every_other(const uint32_t* words, bool second) {
  const Spread both = *reinterpret_cast<const UnalignedSpread*>(words);
  return second ? both >> 32 : both;
}

// What each round of Philox adds, as it is read from memory into all lanes.
struct Keys {
  explicit Keys(const Call& call) {
    uint32_t key_0 = call.seed, key_1 = call.step;
    for (auto& [first, second] : rounds) {
      first = key_0;
      second = key_1;
      key_0 += 0x9E3779B9;
      key_1 += 0xBB67AE85;
    }
  }
  uint64_t rounds[kRounds][2];
};

// The eight numbers of each of kLanes calls of Philox4x32-10: numbers[part][lane].
inline void draw(const Keys& keys, uint32_t place, const Counters& counters,
                 uint16_t (*numbers)[2 * kLanes]) {
  // Even lanes and odd ones, round by round: either alone would wait for its products. Upper halves
  // of lanes are not looked at.
  Spread x[4][2];
  for (int odd = 0; odd < 2; ++odd) {
    x[0][odd] = every_other(counters.block, odd);
    x[1][odd] = every_other(counters.position, odd);
    x[2][odd] = every_other(counters.sample, odd);
    x[3][odd] = Spread{} + place;
  }
#pragma GCC unroll 10
  for (int round = 0; round < kRounds; ++round)
    for (int odd = 0; odd < 2; ++odd) {
      const Spread a = product(x[0][odd], 0xD2511F53), b = product(x[2][odd], 0xCD9E8D57);
      x[0][odd] = b >> 32 ^ x[1][odd] ^ keys.rounds[round][0];
      x[2][odd] = a >> 32 ^ x[3][odd] ^ keys.rounds[round][1];
      x[1][odd] = b;
      x[3][odd] = a;
    }
  for (int i = 0; i < 4; ++i) {
    const Words words = (Words)((x[i][0] & 0xFFFFFFFF) | x[i][1] << 32);
    *reinterpret_cast<Halves*>(numbers[i]) = narrowed(words);
    *reinterpret_cast<Halves*>(numbers[i + 4]) = narrowed(words >> 16);
  }
}

// The numbers of rows that are asked for in order. Where rows are narrow, calls for several of them
// are side by side.
class Numbers {
 public:
  Numbers(const Call& call, int64_t begin)
      : call_(call),
        keys_(call),
        blocks_((call.width + kParts - 1) / kParts),
        together_(std::max<int64_t>(1, kLanes / std::max<int64_t>(1, blocks_))),
        next_(begin),
        values_(together_ * blocks_ * kParts + kLanes) {}

  const uint16_t* of(int64_t row) {
    if (row == next_) {
      fill(row);
      next_ += together_;
    }
    return at(together_ - (next_ - row));
  }

 private:
  uint16_t* at(int64_t r) { return values_.data() + r * blocks_ * kParts; }

  // Draw those of `together_` rows from `row` on, of which the last may not exist.
  void fill(int64_t row) {
    Counters counters{};
    const int64_t wide = std::min<int64_t>(kLanes, blocks_);
    for (int64_t r = 0; r < together_; ++r) {
      const uint32_t position = call_.start + (row + r) % call_.length;
      const uint32_t sample = call_.first + (row + r) / call_.length;
      for (int64_t block = 0, lane = r * blocks_; block < wide; ++block, ++lane) {
        counters.block[lane] = block;
        counters.position[lane] = position;
        counters.sample[lane] = sample;
      }
    }
    uint16_t drawn[kParts][2 * kLanes];  // half of it is room for what is copied in vain
    for (int64_t done = 0; done < blocks_; done += kLanes) {
      // Where fewer are left than lanes, the last blocks are drawn once more.
      const int64_t first = std::min(done, std::max<int64_t>(0, blocks_ - kLanes));
      if (first)
        for (int lane = 0; lane < kLanes; ++lane) counters.block[lane] = first + lane;
      draw(keys_, call_.place, counters, drawn);
      // In this order, so that what is copied in vain is overwritten, or beyond the last row.
      for (int64_t r = 0; r < together_; ++r)
        for (int part = 0; part < kParts; ++part)
          *reinterpret_cast<Halves*>(at(r) + part * blocks_ + first) =
              *reinterpret_cast<const Halves*>(drawn[part] + r * blocks_);
    }
  }

  const Call& call_;
  const Keys keys_;
  const int64_t blocks_, together_;
  int64_t next_;  // the first row whose numbers were not drawn
  std::vector<uint16_t> values_;
};

// Numbers times the scale, or zero; `kept` is as wide as they are.
template <typename Values, typename Kept>
inline Values scaled(Values value, Kept kept, const Call& call) {
  using T = std::decay_t<decltype(value[0])>;
  return kept ? value * static_cast<T>(call.scale) : Values{};
}

inline Flags kept_of(Floats, Flags kept) { return kept; }
inline Lanes<int64_t>::type kept_of(Doubles, Flags kept) {
  return __builtin_convertvector(kept, Lanes<int64_t>::type);
}

template <bool relu, bool add, typename In, typename Out>
void rows(const Call& call, int64_t begin, int64_t end) {
  const int64_t width = call.width;
  const auto drop = [&](auto value, Words number) {
    if (relu) value = value < decltype(value){} ? decltype(value){} : value;
    return scaled(value, kept_of(value, number >= call.threshold), call);
  };
  const auto drop_and_add = [&](auto value, Words number, auto other) {
    return other + drop(value, number);
  };
  Numbers numbers(call, begin);
  for (int64_t row = begin; row < end; ++row) {
    const In* x = static_cast<const In*>(call.x) + row * width;
    Out* out = static_cast<Out*>(call.out) + row * width;
    if constexpr (add) {
      const Out* residual = static_cast<const Out*>(call.residual) + row * width;
      map(out, width, drop_and_add, x, numbers.of(row), residual);
    } else {
      map(out, width, drop, x, numbers.of(row));
    }
  }
}

template <bool relu, bool add, typename In, typename Out>
void dropout(const Call& call) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, call.width));
  at::parallel_for(0, call.batch * call.length, grain, [&](int64_t begin, int64_t end) {
    rows<relu, add, In, Out>(call, begin, end);
  });
}

// What was kept of max(x, 0) is positive, or NaN: that tells without a mask.
template <typename In, typename Out>
void relu_backward(const Call& call) {
  const int64_t size = call.batch * call.length * call.width;
  const In* gradient = static_cast<const In*>(call.x);
  const Out* activated = static_cast<const Out*>(call.activated);
  Out* out = static_cast<Out*>(call.out);
  const auto chained = [&](auto d, auto y) { return scaled(d, ~(y <= decltype(y){}), call); };
  at::parallel_for(0, size, kGrain, [&](int64_t begin, int64_t end) {
    map(out + begin, end - begin, chained, gradient + begin, activated + begin);
  });
}

template <typename In, typename Out>
void run(const Call& call) {
  if (call.activated) {
    relu_backward<In, Out>(call);
  } else if (call.relu) {
    dropout<true, false, In, Out>(call);
  } else if (call.residual) {
    dropout<false, true, In, Out>(call);
  } else {
    dropout<false, false, In, Out>(call);
  }
}

}  // namespace

#define DEFINE(IN, OUT) \
  extern "C" void IN##_to_##OUT(const Call* call) { run<IN, OUT>(*call); }

DEFINE(float, float)
DEFINE(double, double)
DEFINE(bfloat16, bfloat16)
DEFINE(bfloat16, float)
DEFINE(float, bfloat16)
