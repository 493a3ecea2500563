// A matrix that decays, and that keys correct or add to, on CPUs: `ops/delta.py`, `ops/decayed.py`.
//
//     S_i = diag(a_i) S_(i-1) + k_i u_i^T,   output_i = S_i^T q_i
//     u_i = b_i (v_i - S_(i-1)^T diag(a_i) k_i), or without a strength b, v_i
//
// Position after position: a head's matrix stays in the cache, and a position passes it twice. Heads
// of a sequence go side by side, as their rows lie in memory. The gradient keeps nothing of the
// forward pass. It runs it again and keeps each `kPart`-th state, then goes from the last part to
// the first, with all states of one part at a time.
#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "call.h"
#include "cpp_vectors.h"

// `fast_weights.py` has the same fields. What is no view is contiguous: strength [b, t, h], decays
// [b, t, h, 1 or c], states [b, h, c, m]. A state or a gradient of one that is null is zero.
template <typename T>
struct FastWeights {
  int64_t batch, length, heads, features, values, decays;
  View q, k, v;
  const T *strength, *log_decay, *state;  // no strength: nothing is corrected
  T *out, *after;
  // The backward pass only; of those that are null, strength, decay and state, none is wanted.
  const T *d_out, *d_after;
  T *d_q, *d_k, *d_v, *d_strength, *d_log_decay, *d_state;
};

namespace {

constexpr int64_t kPart = 32;
constexpr int64_t kForwardCache = 1 << 15, kBackwardCache = 1 << 20;  // bytes of states

inline Floats decay_of(Floats log_decay) { return exp_negative(log_decay); }
inline Doubles decay_of(Doubles log_decay) {
  for (int i = 0; i < kLanes; ++i) log_decay[i] = std::exp(log_decay[i]);
  return log_decay;
}

inline int64_t whole(int64_t width) { return (width + kLanes - 1) / kLanes * kLanes; }

// Calls f(V, y) for all columns, from y on `V` vectors of them at a time.
template <typename F>
void for_columns(int64_t stride, const F& f) {
  int64_t y = 0;
  for (; y + 4 * kLanes <= stride; y += 4 * kLanes) f(std::integral_constant<int, 4>{}, y);
  for (; y + 2 * kLanes <= stride; y += 2 * kLanes) f(std::integral_constant<int, 2>{}, y);
  for (; y < stride; y += kLanes) f(std::integral_constant<int, 1>{}, y);
}

// A head of a sequence. Rows of values and of matrices have room for whole vectors, with zeros.
template <typename T>
struct Head {
  using Vec = decltype(load(static_cast<const T*>(nullptr)));

  Head(const FastWeights<T>& n, int64_t unit)
      : n(n), b(unit / n.heads), h(unit % n.heads), c(n.features), stride(whole(n.values)),
        size(c * stride) {}

  const FastWeights<T>& n;
  const int64_t b, h, c, stride, size;

  const T* at(const View& view, int64_t t) const {
    return static_cast<const T*>(view.data) + b * view.batch + t * view.position + h * view.head;
  }
  int64_t place(int64_t t) const { return (b * n.length + t) * n.heads + h; }

  T strength(int64_t t) const { return n.strength ? n.strength[place(t)] : T(1); }

  void decays(int64_t t, T* a) const {
    const T* logs = n.log_decay + place(t) * n.decays;
    if (n.decays == 1)
      std::fill_n(a, c, std::exp(*logs));
    else
      map(a, c, [](Vec log_decay) { return decay_of(log_decay); }, logs);
  }

  void widen(const T* rows, T* wide, int64_t count) const {
    for (int64_t x = 0; x < count; ++x) {
      copy(rows + x * n.values, wide + x * stride, n.values);
      std::fill(wide + x * stride + n.values, wide + (x + 1) * stride, T(0));
    }
  }
  void narrow(const T* wide, T* rows, int64_t count) const {
    for (int64_t x = 0; x < count; ++x) copy(wide + x * stride, rows + x * n.values, n.values);
  }
  // A state, from one of all heads and to it. None is zero.
  void begin(const T* of_all, T* state) const {
    if (of_all)
      widen(of_all + (b * n.heads + h) * c * n.values, state, c);
    else
      std::fill_n(state, size, T(0));
  }
  void end(const T* state, T* of_all) const {
    narrow(state, of_all + (b * n.heads + h) * c * n.values, c);
  }
};

// What a thread computes with: of a position decays, keys and queries times them, rows of values, and
// for each feature, a vector each, sums along values of gradients; states of the past and gradients.
template <typename T>
struct Room {
  Room(const FastWeights<T>& n, int64_t heads, int64_t num_rows, int64_t num_states)
      : c(n.features), stride(whole(n.values)),
        floats(new T[3 * c * (1 + kLanes) + (6 + heads * (num_rows + num_states * c)) * stride]) {
    T* next = floats.get();
    const auto take = [&](int64_t count) { return (next += count) - count; };
    a = take(c), ak = take(c), aq = take(c);
    along_k = take(c * kLanes), along_q = take(c * kLanes), along_a = take(c * kLanes);
    v = take(stride), e = take(stride), u = take(stride), out = take(stride);
    d_out = take(stride), d_u = take(stride), rows = take(heads * num_rows * stride);
    states = next;
  }
  int64_t c, stride;
  std::unique_ptr<T[]> floats;
  T *a, *ak, *aq, *along_k, *along_q, *along_a, *v, *e, *u, *out, *d_out, *d_u, *rows, *states;
};

// Passes position t: writes the state after it, how far v is ahead of what its key recalls (`e`),
// what it adds (`u`), and if it reads, its output.
template <bool kCorrects, bool kReads, typename T>
void pass(const Head<T>& head, int64_t t, const T* from, T* to, T* e, T* u, T* out,
          const Room<T>& room) {
  using Vec = typename Head<T>::Vec;
  const int64_t c = head.c, stride = head.stride;
  const T *q = head.at(head.n.q, t), *k = head.at(head.n.k, t), strength = head.strength(t);
  T *a = room.a, *ak = room.ak, *aq = room.aq, *v = room.v, seen = 0;
  head.decays(t, a);
  head.widen(head.at(head.n.v, t), v, 1);
  for (int64_t x = 0; x < c; ++x) {
    ak[x] = a[x] * k[x];
    aq[x] = a[x] * q[x];
    seen += q[x] * k[x];
  }
  const auto columns = [=](auto vectors, int64_t y) {
    constexpr int V = decltype(vectors)::value;
    Vec recalled[V] = {}, read[V] = {}, added[V];
    if constexpr (kCorrects || kReads)
      for (int64_t x = 0; x < c; ++x)
        for (int i = 0; i < V; ++i) {
          const Vec s = load(from + x * stride + y + i * kLanes);
          if constexpr (kCorrects) recalled[i] += ak[x] * s;
          if constexpr (kReads) read[i] += aq[x] * s;
        }
    for (int i = 0; i < V; ++i) {
      const int64_t j = y + i * kLanes;
      const Vec ahead = load(v + j) - recalled[i];
      added[i] = strength * ahead;
      store(ahead, e + j);
      store(added[i], u + j);
      if constexpr (kReads) store(read[i] + seen * added[i], out + j);
    }
    for (int64_t x = 0; x < c; ++x)
      for (int i = 0; i < V; ++i) {
        const int64_t j = x * stride + y + i * kLanes;
        store(a[x] * load(from + j) + k[x] * added[i], to + j);
      }
  };
  for_columns(stride, columns);
}

// Sums along values, for one feature, of the gradients of a key, a query and a decay.
template <typename Vec>
struct Sums {
  Vec k, q, a;
};

// The gradients of position t, given those of the state after it in `d_state`, which become those
// of the state before it.
template <bool kCorrects, bool kDecays, typename T>
void pass_back(const Head<T>& head, int64_t t, const T* state, const T* e, const T* u, T* d_state,
               const Room<T>& room) {
  using Vec = typename Head<T>::Vec;
  const FastWeights<T>& n = head.n;
  const int64_t c = head.c, stride = head.stride, place = head.place(t);
  const T *q = head.at(n.q, t), *k = head.at(n.k, t), strength = head.strength(t);
  T *a = room.a, *d_out = room.d_out, *d_u = room.d_u, *d_recalled = room.v;
  T *along_k = room.along_k, *along_q = room.along_q, *along_a = room.along_a;
  head.decays(t, a);
  head.widen(n.d_out + place * n.values, d_out, 1);
  // Of the state before this one, which is decayed, corrected and read, by that after it, d. What
  // was recalled has its gradient only when all of d is known.
  const auto before = [=](Vec s, Vec d, Vec r, Vec g, int64_t x, T* at, Sums<Vec>& sums) {
    if constexpr (kCorrects) {
      d += k[x] * r;
      sums.k += s * r;
    }
    sums.q += s * g;
    if constexpr (kDecays) sums.a += s * d;
    store(a[x] * d, at);
  };
  // Adds to what other columns came to.
  const auto add = [](T* along, Vec sums, bool begun) {
    store(begun ? load(along) + sums : sums, along);
  };
  const auto keep = [=](int64_t x, const Sums<Vec>& sums, bool begun) {
    add(along_q + x * kLanes, a[x] * sums.q, begun);
    if constexpr (kDecays) add(along_a + x * kLanes, a[x] * sums.a, begun);
  };
  // Of the output and of what was added, since the state after this position is a S + k u^T.
  for_columns(stride, [=](auto vectors, int64_t y) {
    constexpr int V = decltype(vectors)::value;
    Vec g[V], w[V], of_u[V] = {};
    for (int i = 0; i < V; ++i) {
      g[i] = load(d_out + y + i * kLanes);
      w[i] = load(u + y + i * kLanes);
    }
    for (int64_t x = 0; x < c; ++x) {
      Vec of_k = {};
      Sums<Vec> sums = {};
      for (int i = 0; i < V; ++i) {
        const int64_t j = x * stride + y + i * kLanes;
        const Vec d = load(d_state + j) + q[x] * g[i];
        of_u[i] += k[x] * d;
        of_k += d * w[i];
        if constexpr (kCorrects)
          store(d, d_state + j);
        else
          before(load(state + j), d, Vec{}, g[i], x, d_state + j, sums);
      }
      add(along_k + x * kLanes, of_k, y);
      if constexpr (!kCorrects) keep(x, sums, y);
    }
    for (int i = 0; i < V; ++i) store(of_u[i], d_u + y + i * kLanes);
  });
  if constexpr (kCorrects) {
    if (n.d_strength) n.d_strength[place] = dot(d_u, e, stride);
    for (int64_t y = 0; y < stride; ++y) {
      d_u[y] *= strength;
      d_recalled[y] = -d_u[y];
    }
    for_columns(stride, [=](auto vectors, int64_t y) {
      constexpr int V = decltype(vectors)::value;
      Vec g[V], r[V];
      for (int i = 0; i < V; ++i) {
        g[i] = load(d_out + y + i * kLanes);
        r[i] = load(d_recalled + y + i * kLanes);
      }
      for (int64_t x = 0; x < c; ++x) {
        Sums<Vec> sums = {};
        for (int i = 0; i < V; ++i) {
          const int64_t j = x * stride + y + i * kLanes;
          before(load(state + j), load(d_state + j), r[i], g[i], x, d_state + j, sums);
        }
        add(along_k + x * kLanes, a[x] * sums.k, true);
        keep(x, sums, y);
      }
    });
  }
  head.narrow(d_u, n.d_v + place * n.values, 1);
  const T read = dot(u, d_out, stride);
  T *d_q = n.d_q + place * c, *d_k = n.d_k + place * c;
  for (int64_t x = 0; x < c; ++x) {
    d_k[x] = sum_of(load(along_k + x * kLanes));
    d_q[x] = sum_of(load(along_q + x * kLanes)) + k[x] * read;
  }
  if constexpr (!kDecays) return;
  T* d_log = n.d_log_decay + place * n.decays;
  if (n.decays == 1) {
    Vec sums = {};
    for (int64_t x = 0; x < c; ++x) sums += load(along_a + x * kLanes);
    *d_log = sum_of(sums);
  } else {
    for (int64_t x = 0; x < c; ++x) d_log[x] = sum_of(load(along_a + x * kLanes));
  }
}

// Calls f(heads, room) for all heads, those of one sequence together whose states stay in the cache.
template <typename T, typename F>
void for_heads(const FastWeights<T>& n, int64_t cache, int64_t cached_states, int64_t num_rows,
               int64_t num_states, const F& f) {
  const int64_t bytes = cached_states * n.features * whole(n.values) * sizeof(T);
  const int64_t most = std::clamp<int64_t>(cache / std::max<int64_t>(1, bytes), 1, n.heads);
  at::parallel_for(0, n.batch * n.heads, 1, [&](int64_t first, int64_t last) {
    const Room<T> room(n, most, num_rows, num_states);
    for (int64_t unit = first; unit < last;) {
      std::vector<Head<T>> heads;
      const int64_t end = std::min({last, unit + most, (unit / n.heads + 1) * n.heads});
      for (; unit < end; ++unit) heads.emplace_back(n, unit);
      f(heads, room);
    }
  });
}

template <bool kCorrects, typename T>
void forward_with(const FastWeights<T>& n) {
  for_heads(n, kForwardCache, 1, 0, 1, [&](const auto& heads, const Room<T>& room) {
    const auto state = [&](size_t i) { return room.states + i * heads[i].size; };
    for (size_t i = 0; i < heads.size(); ++i) heads[i].begin(n.state, state(i));
    for (int64_t t = 0; t < n.length; ++t)
      for (size_t i = 0; i < heads.size(); ++i) {
        pass<kCorrects, true>(heads[i], t, state(i), state(i), room.e, room.u, room.out, room);
        heads[i].narrow(room.out, n.out + heads[i].place(t) * n.values, 1);
      }
    for (size_t i = 0; i < heads.size(); ++i) heads[i].end(state(i), n.after);
  });
}

template <bool kCorrects, bool kDecays, typename T>
void backward_with(const FastWeights<T>& n) {
  const int64_t parts = std::max<int64_t>(1, (n.length + kPart - 1) / kPart);
  const int64_t num_states = 1 + kPart + parts;
  const auto run = [&](const auto& heads, const Room<T>& room) {
    // Of each head: the gradients of a state, a part's states but the first, the first of all parts.
    const auto d_state = [&](size_t i) { return room.states + i * num_states * heads[i].size; };
    const auto begun = [&](size_t i, int64_t part) {
      return d_state(i) + (1 + kPart + part) * heads[i].size;
    };
    const auto state = [&](size_t i, int64_t part, int64_t t) {
      return t ? d_state(i) + t * heads[i].size : begun(i, part);
    };
    const auto row = [&](size_t i, int64_t t) {
      return room.rows + 2 * (i * kPart + t) * heads[i].stride;
    };
    for (size_t i = 0; i < heads.size(); ++i) {
      heads[i].begin(n.state, begun(i, 0));
      heads[i].begin(n.d_after, d_state(i));
    }
    for (int64_t t = 0; t < (parts - 1) * kPart; ++t)
      for (size_t i = 0; i < heads.size(); ++i) {
        T* to = begun(i, t / kPart + 1);
        const T* from = t % kPart ? to : begun(i, t / kPart);
        pass<kCorrects, false>(heads[i], t, from, to, room.e, room.u, room.out, room);
      }
    for (int64_t part = parts - 1; part >= 0; --part) {
      const int64_t start = part * kPart, count = std::min(kPart, n.length - start);
      for (int64_t t = 0; t < count; ++t)
        for (size_t i = 0; i < heads.size(); ++i)
          pass<kCorrects, false>(heads[i], start + t, state(i, part, t), state(i, part, t + 1),
                                 row(i, t), row(i, t) + heads[i].stride, room.out, room);
      for (int64_t t = count - 1; t >= 0; --t)
        for (size_t i = 0; i < heads.size(); ++i)
          pass_back<kCorrects, kDecays>(heads[i], start + t, state(i, part, t), row(i, t),
                                        row(i, t) + heads[i].stride, d_state(i), room);
    }
    for (size_t i = 0; n.d_state && i < heads.size(); ++i) heads[i].end(d_state(i), n.d_state);
  };
  for_heads(n, kBackwardCache, kPart + 2, 2 * kPart, num_states, run);
}

template <typename T>
void forward_of(const FastWeights<T>& n) {
  n.strength ? forward_with<true>(n) : forward_with<false>(n);
}

template <typename T>
void backward_of(const FastWeights<T>& n) {
  if (n.strength)
    n.d_log_decay ? backward_with<true, true>(n) : backward_with<true, false>(n);
  else
    n.d_log_decay ? backward_with<false, true>(n) : backward_with<false, false>(n);
}

}  // namespace

#define KERNELS(T)                                                                        \
  extern "C" void forward_##T(const FastWeights<T>* call) { forward_of<T>(*call); }       \
  extern "C" void backward_##T(const FastWeights<T>* call) { backward_of<T>(*call); }

KERNELS(float)
KERNELS(double)
