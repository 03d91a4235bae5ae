// Runs an Expression over a tile of scores. Plain loops over blocks of values, which the compiler vectorises; src/cpu
// includes this text once per instruction set, as it does online_softmax.hpp.
//
// F: float in kernels, double in the oracle. Functions::apply(code, in, out, n): exp to ceil over n values.
#if !defined(ONEPASS_CORE_EXPRESSION_EVAL_HPP) || defined(ONEPASS_PER_TARGET)
#define ONEPASS_CORE_EXPRESSION_EVAL_HPP
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "algebra/numerics.hpp"
#include "algebra/portable.hpp"
#include "expression/expression.hpp"
#include "onepass/attention.hpp"

ONEPASS_BEGIN

template <class F, class Functions>
class ExprRun {
 public:
  ExprRun(const Expression& e, std::span<const NamedTensor> buffers, const ExprMemory<F>& memory)
      : e_(e), buffers_(buffers), memory_(memory) {}

  // Scores, in natural units, become the expression's.
  void change(const ExprTile<F>& tile) const {
    each_block(tile, [&](std::int64_t first, int rows) {
      const F* result = numbers(last());
      for (int r = 0; r < rows; ++r) {
        const F* __restrict from = result + r * tile.width;
        F* __restrict to = tile.scores + (first + r) * tile.stride;
        for (int i = 0, n = tile.width; i < n; ++i) to[i] = from[i];
      }
    });
  }
  // Scores become `hidden` where the expression is false.
  void hide(const ExprTile<F>& tile, F hidden) const {
    F all_hidden[kExprBlock];
    std::fill_n(all_hidden, tile.width, hidden);
    each_block(tile, [&](std::int64_t first, int rows) {
      const std::int32_t* result = integers(last());
      for (int r = 0; r < rows; ++r) {
        const std::int32_t* __restrict visible = result + r * tile.width;
        F* to = tile.scores + (first + r) * tile.stride;
        F kept[kExprBlock];  // storing in place would become a branch per score: twice the time of the whole tile
        select(tile.width, visible, to, all_hidden, kept);
        std::copy_n(kept, tile.width, to);
      }
    });
  }

 private:
  int last() const { return static_cast<int>(e_.steps.size()) - 1; }
  F* numbers(int id) const { return memory_.numbers + std::int64_t{id} * kExprBlock; }
  std::int32_t* integers(int id) const { return memory_.integers + std::int64_t{id} * kExprBlock; }

  template <class Done>
  void each_block(const ExprTile<F>& tile, Done done) const {
    const int width = tile.width, rows = kExprBlock / width, steps = last() + 1;
    // Once: what depends on lanes alone, repeated for every row of a block.
    for (int id = 0; id < steps; ++id) {
      if (e_.steps[id].varies & kByKey) continue;
      step(id, tile, 0, width);
      e_.steps[id].type == ExprType::number ? repeat(numbers(id), width, rows) : repeat(integers(id), width, rows);
    }
    for (std::int64_t first = 0; first < tile.keys; first += rows) {
      const int count = static_cast<int>(std::min<std::int64_t>(rows, tile.keys - first));
      // Once a key, then the same for every lane.
      for (int id = 0; id < steps; ++id)
        if (e_.steps[id].varies == kByKey) step(id, tile, first, count);
      for (int id = 0; id < steps; ++id) {
        if (e_.steps[id].varies != kByKey || !e_.steps[id].spread) continue;
        e_.steps[id].type == ExprType::number ? widen(numbers(id), width, count) : widen(integers(id), width, count);
      }
      for (int id = 0; id < steps; ++id) {
        if (e_.steps[id].varies != kByBoth) continue;
        e_.steps[id].code == ExprCode::score ? read(tile, first, count, numbers(id))
                                             : step(id, tile, first, count * width);
      }
      done(first, count);
    }
  }

  template <class T>
  static void repeat(T* x, int width, int rows) {
    for (int r = 1; r < rows; ++r) std::memcpy(x + r * width, x, static_cast<std::size_t>(width) * sizeof(T));
  }
  // x[r] to x[r * width ..]: from the last, so that none is overwritten before it is read.
  template <class T>
  static void widen(T* x, int width, int rows) {
    for (int r = rows - 1; r >= 0; --r) {
      const T value = x[r];
      for (int i = 0; i < width; ++i) x[r * width + i] = value;
    }
  }
  static void read(const ExprTile<F>& tile, std::int64_t first, int rows, F* to) {
    for (int r = 0; r < rows; ++r, to += tile.width) {
      const F* __restrict from = tile.scores + (first + r) * tile.stride;
      F* __restrict row = to;
      for (int i = 0, n = tile.width; i < n; ++i) row[i] = from[i];
    }
  }

  // ------------------------------------------------------------------------------------------------ one step
  // Integers wrap around, as the hardware's do; the last bit of a shift count decides nothing beyond 31.
  using Bits = std::uint32_t;
  template <class T, class R, class Op>
  static void map(int n, const T* __restrict a, const T* __restrict b, R* __restrict out, Op op) {
    for (int i = 0; i < n; ++i) out[i] = static_cast<R>(op(a[i], b[i]));
  }

  template <class T>
  void arithmetic(const ExprStep& s, int n, const T* a, const T* b, T* out) const {
    switch (s.code) {
      case ExprCode::add: return map(n, a, b, out, [](T x, T y) { return wrapped(x) + wrapped(y); });
      case ExprCode::subtract: return map(n, a, b, out, [](T x, T y) { return wrapped(x) - wrapped(y); });
      case ExprCode::multiply: return map(n, a, b, out, [](T x, T y) { return wrapped(x) * wrapped(y); });
      case ExprCode::divide: return map(n, a, b, out, [](T x, T y) { return divided(x, y); });
      case ExprCode::min: return map(n, a, b, out, [](T x, T y) { return y < x ? y : x; });
      case ExprCode::max: return map(n, a, b, out, [](T x, T y) { return x < y ? y : x; });
      case ExprCode::negate: return map(n, a, a, out, [](T x, T) { return wrapped(T(0)) - wrapped(x); });
      default:
        return map(n, a, a, out, [](T x, T) { return x < T(0) ? wrapped(T(0)) - wrapped(x) : wrapped(x); });  // abs
    }
  }
  template <class T>
  void comparison(const ExprStep& s, int n, const T* a, const T* b, std::int32_t* out) const {
    switch (s.code) {
      case ExprCode::less: return map(n, a, b, out, [](T x, T y) { return x < y; });
      case ExprCode::less_equal: return map(n, a, b, out, [](T x, T y) { return x <= y; });
      case ExprCode::equal: return map(n, a, b, out, [](T x, T y) { return x == y; });
      case ExprCode::not_equal: return map(n, a, b, out, [](T x, T y) { return x != y; });
      default: return map(n, a, a, out, [](T x, T) { return x != T(0); });  // to_boolean
    }
  }
  static void bits(const ExprStep& s, int n, const std::int32_t* a, const std::int32_t* b, std::int32_t* out) {
    using I = std::int32_t;
    switch (s.code) {
      case ExprCode::bit_and: return map(n, a, b, out, [](I x, I y) { return x & y; });
      case ExprCode::bit_or: return map(n, a, b, out, [](I x, I y) { return x | y; });
      case ExprCode::bit_xor: return map(n, a, b, out, [](I x, I y) { return x ^ y; });
      case ExprCode::shift_left: return map(n, a, b, out, [](I x, I y) { return static_cast<Bits>(x) << (y & 31); });
      case ExprCode::shift_right: return map(n, a, b, out, [](I x, I y) { return x >> (y & 31); });
      default: return map(n, a, b, out, [](I x, I y) { return y == 0 || y == -1 ? 0 : x % y; });  // remainder
    }
  }
  static F wrapped(F x) { return x; }
  static Bits wrapped(std::int32_t x) { return static_cast<Bits>(x); }
  static F divided(F x, F y) { return x / y; }
  static std::int32_t divided(std::int32_t x, std::int32_t y) {  // by 0: 0
    return y == 0 ? 0 : y == -1 ? static_cast<std::int32_t>(wrapped(0) - wrapped(x)) : x / y;
  }
  static std::int32_t truncated(F x) {  // saturates; NaN: 0
    constexpr F kLimit = F(2147483648.0);
    return x >= kLimit    ? std::numeric_limits<std::int32_t>::max()
           : x >= -kLimit ? static_cast<std::int32_t>(x)
           : x < -kLimit  ? std::numeric_limits<std::int32_t>::min()
                          : 0;
  }
  template <class T>
  static void select(int n, const std::int32_t* __restrict condition, const T* __restrict a, const T* __restrict b,
                     T* __restrict out) {
    for (int i = 0; i < n; ++i) {
      const T x = a[i], y = b[i];
      out[i] = condition[i] != 0 ? x : y;
    }
  }

  // An index beyond the buffer reads its nearest element: nothing outside is ever read. Offsets are sums of int32 where
  // the buffer's span allows it: the compiler gathers then.
  template <class Offset>
  void offsets(const ExprStep& s, const ConstTensor& t, int n, Offset* at) const {
    std::fill_n(at, n, Offset(0));
    for (int d = 0; d < t.rank; ++d) {
      const std::int32_t* __restrict index = integers(s.operand[d]);
      const auto last = static_cast<std::int32_t>(t.shape[d] - 1);
      const auto stride = static_cast<Offset>(t.stride[d]);
      for (int i = 0; i < n; ++i) {
        const std::int32_t below = index[i] < last ? index[i] : last;
        at[i] += static_cast<Offset>(below > 0 ? below : 0) * stride;
      }
    }
  }
  template <class Stored, class Offset, class To>
  static void gather(const Stored* __restrict from, const Offset* __restrict at, int n, To* __restrict out) {
    for (int i = 0; i < n; ++i) {
      if constexpr (std::is_integral_v<Stored>)
        out[i] = sizeof(Stored) == 1 ? from[at[i]] != 0 : from[at[i]];
      else
        out[i] = static_cast<To>(to_float(from[at[i]]));
    }
  }
  template <class Stored, class To>
  void load(const ExprStep& s, int n, To* out) const {
    const ConstTensor& t = buffers_[static_cast<std::size_t>(s.integer)].tensor;
    const auto* from = static_cast<const Stored*>(t.data);
    std::int64_t span = 0;
    for (int d = 0; d < t.rank; ++d) span += (t.shape[d] - 1) * std::abs(t.stride[d]);
    if (span <= std::numeric_limits<std::int32_t>::max()) {
      std::int32_t at[kExprBlock];
      offsets(s, t, n, at);
      gather(from, at, n, out);
    } else {
      std::int64_t at[kExprBlock];
      offsets(s, t, n, at);
      gather(from, at, n, out);
    }
  }
  void load(const ExprStep& s, int id, int n) const {
    switch (buffers_[static_cast<std::size_t>(s.integer)].tensor.dtype) {
      case DType::i32: return load<std::int32_t>(s, n, integers(id));
      case DType::boolean: return load<std::uint8_t>(s, n, integers(id));
      case DType::f16: return load<f16>(s, n, numbers(id));
      case DType::bf16: return load<bf16>(s, n, numbers(id));
      default: return load<float>(s, n, numbers(id));
    }
  }

  void step(int id, const ExprTile<F>& tile, std::int64_t first, int n) const {
    const ExprStep& s = e_.steps[static_cast<std::size_t>(id)];
    const bool of_numbers = s.operands == ExprType::number;
    const auto i_of = [&](int o) { return integers(std::max<int>(0, s.operand[o])); };
    const auto f_of = [&](int o) { return numbers(std::max<int>(0, s.operand[o])); };
    switch (s.code) {
      case ExprCode::score: return;  // each_block reads it
      case ExprCode::batch: return std::fill_n(integers(id), n, tile.batch), void();
      case ExprCode::head: return std::copy_n(tile.head, n, integers(id)), void();
      case ExprCode::q_index: return std::copy_n(tile.q_index, n, integers(id)), void();
      case ExprCode::k_index:
        for (int i = 0; i < n; ++i) integers(id)[i] = static_cast<std::int32_t>(tile.first_key + first) + i;
        return;
      case ExprCode::literal:
        if (s.type == ExprType::number) return std::fill_n(numbers(id), n, static_cast<F>(s.number)), void();
        return std::fill_n(integers(id), n, s.integer), void();
      case ExprCode::to_number:
        return map(n, i_of(0), i_of(0), numbers(id), [](std::int32_t x, std::int32_t) { return x; });
      case ExprCode::to_integer: return map(n, f_of(0), f_of(0), integers(id), [](F x, F) { return truncated(x); });
      case ExprCode::add:
      case ExprCode::subtract:
      case ExprCode::multiply:
      case ExprCode::divide:
      case ExprCode::min:
      case ExprCode::max:
      case ExprCode::negate:
      case ExprCode::abs:
        if (of_numbers) return arithmetic<F>(s, n, f_of(0), f_of(1), numbers(id));
        return arithmetic<std::int32_t>(s, n, i_of(0), i_of(1), integers(id));
      case ExprCode::to_boolean:
      case ExprCode::less:
      case ExprCode::less_equal:
      case ExprCode::equal:
      case ExprCode::not_equal:
        if (of_numbers) return comparison<F>(s, n, f_of(0), f_of(1), integers(id));
        return comparison<std::int32_t>(s, n, i_of(0), i_of(1), integers(id));
      case ExprCode::remainder:
      case ExprCode::bit_and:
      case ExprCode::bit_or:
      case ExprCode::bit_xor:
      case ExprCode::shift_left:
      case ExprCode::shift_right: return bits(s, n, i_of(0), i_of(1), integers(id));
      case ExprCode::select:
        if (s.type == ExprType::number) return select(n, i_of(0), f_of(1), f_of(2), numbers(id));
        return select(n, i_of(0), i_of(1), i_of(2), integers(id));
      case ExprCode::load: return load(s, id, n);
      default: return Functions::apply(s.code, f_of(0), numbers(id), n);
    }
  }

  const Expression& e_;
  std::span<const NamedTensor> buffers_;
  ExprMemory<F> memory_;
};

ONEPASS_END
#endif
