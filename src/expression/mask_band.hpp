// A mask_mod that says what the band says: comparisons of q_index with k_index. Kernels that have a band need no mask
// for them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "expression/expression.hpp"

namespace onepass {

// Row i sees keys i - left to i + right at most; -1 is unbounded.
struct MaskBand {
  std::int64_t left = -1, right = -1;
  bool whole = true;  // and no others: the mask is this band
  bool bounded() const { return left >= 0 || right >= 0; }
};

class MaskBandReader {
 public:
  explicit MaskBandReader(const Expression& mask) : steps_(mask.steps) {}
  MaskBand read() {
    add(static_cast<int>(steps_.size()) - 1);
    return band_;
  }

 private:
  struct Linear {  // q * q_index + k * k_index + c
    bool is = false;
    std::int64_t q = 0, k = 0, c = 0;
    Linear times(std::int64_t x) const { return {is, q * x, k * x, c * x}; }
    Linear plus(const Linear& o) const { return {is && o.is, q + o.q, k + o.k, c + o.c}; }
  };
  const ExprStep& step(int id) const { return steps_[static_cast<std::size_t>(id)]; }
  Linear linear(int id) const {
    const ExprStep& s = step(id);
    if (s.type == ExprType::number) return {};
    switch (s.code) {
      case ExprCode::q_index: return {true, 1, 0, 0};
      case ExprCode::k_index: return {true, 0, 1, 0};
      case ExprCode::literal: return {true, 0, 0, s.integer};
      case ExprCode::add: return linear(s.operand[0]).plus(linear(s.operand[1]));
      case ExprCode::subtract: return linear(s.operand[0]).plus(linear(s.operand[1]).times(-1));
      case ExprCode::negate: return linear(s.operand[0]).times(-1);
      default: return {};
    }
  }

  // A conjunction adds its parts.
  void add(int id) {
    const ExprStep& s = step(id);
    if (s.code == ExprCode::select && s.operand[1] == s.operand[2]) return add(s.operand[1]);  // a copy
    if (s.code == ExprCode::literal && s.type == ExprType::boolean && s.integer != 0) return;
    if (s.code == ExprCode::bit_and && s.type == ExprType::boolean) return add(s.operand[0]), add(s.operand[1]);
    if (!comparison(s)) band_.whole = false;
  }
  bool comparison(const ExprStep& s) {
    if ((s.code != ExprCode::less && s.code != ExprCode::less_equal) || s.operands != ExprType::integer) return false;
    const std::int64_t strict = s.code == ExprCode::less;
    const Linear most = linear(s.operand[1]);
    if (step(s.operand[0]).code == ExprCode::abs) {  // |x| <= c
      const Linear x = linear(step(s.operand[0]).operand[0]), c{most.is, 0, 0, most.c - strict};
      return most.q == 0 && most.k == 0 && at_least_0(c.plus(x)) && at_least_0(c.plus(x.times(-1)));
    }
    return at_least_0(most.plus(linear(s.operand[0]).times(-1)).plus({true, 0, 0, -strict}));
  }
  bool at_least_0(const Linear& x) {
    constexpr std::int64_t kMost = std::int64_t{1} << 30;  // so that no sum of the text wraps around
    if (!x.is || x.c < 0 || x.c > kMost || x.q + x.k != 0 || (x.q != 1 && x.q != -1)) return false;
    std::int64_t& side = x.q == 1 ? band_.right : band_.left;
    side = side < 0 ? x.c : std::min(side, x.c);
    return true;
  }

  const std::vector<ExprStep>& steps_;
  MaskBand band_;
};

inline MaskBand band_of(const Expression& mask) { return MaskBandReader(mask).read(); }

}  // namespace onepass
