// Tokens in parallel. A token's row of cos and sin is read once, as fp32, and serves all its heads; rows that are not
// rotated are copied.
#include "cpu/append/append.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "algebra/ceil_div.hpp"
#include "algebra/numerics.hpp"
#include "algebra/rotary.hpp"
#include "algebra/scalar.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "cpu/common/place.hpp"
#include "problem/append/append.hpp"

namespace onepass::cpu {
namespace {

constexpr std::int64_t kTaskElements = 1 << 15;  // read and written by a task

// As it is stored: in fp8_e4m3 divided by its factor.
template <class To>
To stored(float x, [[maybe_unused]] float factor) {
  if constexpr (std::is_same_v<To, f8e4m3>)
    return divided(x, factor);
  else
    return from_float<To>(x);
}
template <class To, class T>
void rotate_pair(To* to_x, To* to_y, T x, T y, float cos, float sin, float factor) {
  const auto r = rotated(RotaryPair<float>{to_float(x), to_float(y)}, cos, sin);
  *to_x = stored<To>(r.x, factor);
  *to_y = stored<To>(r.y, factor);
}

struct Append {
  const Problem& p;
  const Tensors& t;

  // cos and sin of the pairs of one token.
  struct Angles {
    const float *cos, *sin;
  };

  template <class To, class T>
  void rotate(const T* from, To* to, const Angles& a, float factor) const {  // `to` may be `from`
    const std::int64_t half = p.rotary_dim / 2;
    if (p.interleaved) {
      for (std::int64_t i = 0; i < half; ++i)
        rotate_pair(to + 2 * i, to + 2 * i + 1, from[2 * i], from[2 * i + 1], a.cos[i], a.sin[i], factor);
    } else {
      for (std::int64_t i = 0; i < half; ++i)
        rotate_pair(to + i, to + half + i, from[i], from[half + i], a.cos[i], a.sin[i], factor);
    }
    copy(from + p.rotary_dim, to + p.rotary_dim, p.dim_qk - p.rotary_dim, factor);
  }
  template <class To, class T>
  static void copy(const T* from, To* to, std::int64_t count, [[maybe_unused]] float factor) {
    if constexpr (!std::is_same_v<To, T>) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = stored<To>(to_float(from[i]), factor);
    } else if (count > 0 && from != to) {
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
    }
  }

  Angles angles(std::int64_t position, std::vector<float>& room) const {
    const auto half = static_cast<std::size_t>(p.rotary_dim / 2);
    room.resize(2 * half);
    float* into = room.data();
    for (const ConstTensor* table : {&t.cos, &t.sin}) {
      for (std::size_t i = 0; i < half; ++i)
        *into++ = load_element(table->data, table->dtype,
                               position * table->stride[0] + static_cast<std::int64_t>(i) * table->stride[1]);
    }
    return {room.data(), room.data() + half};
  }

  template <class T, class Cached>
  void token(const Sequence& s, const KeyValueView& keys, const KeyValueView& values, std::int64_t i,
             std::vector<float>& room) const {
    const auto token = new_token(t, s, i);
    const std::int64_t key = token.key;
    const bool skipped = token.skipped();
    const std::int64_t from = s.q_begin + i;
    if (skipped && p.heads_q == 0) return;
    const Angles a = angles(token.position, room);
    const auto row = [&](const ConstTensor& x, std::int64_t head) {
      return static_cast<const T*>(x.data) + row_offset(x, s.batch, head, from);
    };
    const auto place = [&](const KeyValueView& of, std::int64_t head) {  // of k and v, which are outputs here
      return const_cast<Cached*>(of.row<Cached>(head, key));
    };
    for (std::int64_t h = 0; h < p.heads_kv && !skipped; ++h) {
      rotate(row(t.k_new, h), place(keys, h), a, keys.factor(h, key));
      copy(row(t.v_new, h), place(values, h), p.dim_v, values.factor(h, key));
    }
    for (std::int64_t h = 0; h < p.heads_q; ++h)
      rotate(row(t.q, h), static_cast<T*>(t.q_out.data) + row_offset(t.q_out, s.batch, h, from), a, 1.0f);
  }

  // The sequence that token n, counted over all of them, belongs to.
  std::int64_t sequence_at(std::int64_t n) const {
    if (!p.varlen) return n / p.seq_q;
    std::int64_t lo = 0, hi = p.batch;  // the last whose first token is not behind n: those before it may be empty
    while (hi - lo > 1) {
      const std::int64_t middle = (lo + hi) / 2;
      (int32_at(t.cu_seqlens_q, middle) <= n ? lo : hi) = middle;
    }
    return lo;
  }

  template <class T, class Cached>
  void tokens(std::int64_t first, std::int64_t last) const {
    std::vector<float> room;
    for (std::int64_t n = first, b = sequence_at(first); n < last && b < p.batch; ++b) {
      const Sequence s = sequence_of(p, t, b);
      const KeyValueView keys(t.k_cache, s, t.k_descale), values(t.v_cache, s, t.v_descale);
      const std::int64_t begin = p.varlen ? s.q_begin : b * p.seq_q, end = std::min(last, begin + s.seq_q);
      for (; n < end; ++n) token<T, Cached>(s, keys, values, n - begin, room);
    }
  }
};

// Elements of a token that are read and written.
std::int64_t token_elements(const Problem& p) { return p.heads_kv * (p.dim_qk + p.dim_v) + p.heads_q * p.dim_qk; }

class State final : public PlanState {
 public:
  explicit State(const Request& request)
      : PlanState(request.problem),
        at_once_(std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, token_elements(*problem)))) {}
  std::string describe() const override { return text(at_once_, at_once_ == 1 ? " token" : " tokens", " per task"); }
  void run(const Tensors& t, void*, Executor& executor, void*) const override {
    const Problem& p = *problem;
    const std::int64_t all = new_tokens(p);
    if (all == 0 || p.batch == 0 || token_elements(p) == 0) return;
    const Append job{p, t};
    with_float_type(p.dtype, [&](auto zero) {
      using T = decltype(zero);
      parallel(executor, ceil_div(all, at_once_), [&](std::int64_t task, int) {
        const std::int64_t first = task * at_once_, last = std::min(all, (task + 1) * at_once_);
        const auto tokens_to = [&](auto cached) { job.tokens<T, decltype(cached)>(first, last); };
        if (p.key_dtype() == DType::f8e4m3)
          tokens_to(f8e4m3{});
        else
          with_float_type(p.key_dtype(), tokens_to);
      });
    });
  }

 private:
  const std::int64_t at_once_;  // tokens of a task
};

}  // namespace

constinit const Implementation kAppendImplementation{"cpu.append", plan_here<State>, kAppend};

}  // namespace onepass::cpu
