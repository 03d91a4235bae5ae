#include "expression/mask_bounds.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "algebra/ceil_div.hpp"
#include "algebra/numerics.hpp"

namespace onepass {

using interval::Bounds;

namespace {

Bounds any_of(DType dtype) {
  return dtype == DType::i32       ? interval::any_integer()
         : dtype == DType::boolean ? interval::any_boolean()
                                   : interval::any_number();
}
Bounds number(float x) {
  if (std::isnan(x)) return {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), true};
  const double value = x;
  if (std::abs(x) >= std::numeric_limits<float>::min()) return interval::just(value);
  return interval::between(std::min(value, 0.0), std::max(value, 0.0));  // where subnormal numbers are flushed
}

}  // namespace

BufferBounds::BufferBounds(const ConstTensor& tensor, std::int64_t most) : tensor_(tensor), all_(any_of(tensor.dtype)) {
  length_ = tensor.shape[tensor.rank - 1];
  for (int d = 0; d + 1 < tensor.rank; ++d) rows_ *= tensor.shape[d];
  if (rows_ * length_ > most || rows_ * length_ == 0) return;
  for (std::int64_t group = kGroup;; group *= 2) {
    const std::int64_t groups = ceil_div(length_, group);
    std::vector<Bounds> level(static_cast<std::size_t>(rows_ * groups));
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (std::int64_t g = 0; g < groups; ++g) {
        Bounds& to = level[static_cast<std::size_t>(row * groups + g)];
        if (group > kGroup) {
          const Bounds* const from = levels_.back().data() + row * groups_.back();
          to = from[2 * g];
          if (2 * g + 1 < groups_.back()) to = interval::either(to, from[2 * g + 1]);
          continue;
        }
        to = element(row, g * group);
        for (std::int64_t i = g * group + 1; i < std::min(length_, (g + 1) * group); ++i)
          to = interval::either(to, element(row, i));
      }
    }
    levels_.push_back(std::move(level));
    groups_.push_back(groups);
    if (groups == 1) break;
  }
  all_ = levels_.back()[0];
  for (const Bounds& row : levels_.back()) all_ = interval::either(all_, row);
}

Bounds BufferBounds::element(std::int64_t row, std::int64_t i) const {
  std::int64_t at = i * tensor_.stride[tensor_.rank - 1];
  for (int d = tensor_.rank - 2; d >= 0; --d) {
    at += row % tensor_.shape[d] * tensor_.stride[d];
    row /= tensor_.shape[d];
  }
  switch (tensor_.dtype) {
    case DType::i32: return interval::just(static_cast<const std::int32_t*>(tensor_.data)[at]);
    case DType::boolean: return interval::just(static_cast<const std::uint8_t*>(tensor_.data)[at] != 0);
    case DType::f16: return number(to_float(static_cast<const f16*>(tensor_.data)[at]));
    case DType::bf16: return number(to_float(static_cast<const bf16*>(tensor_.data)[at]));
    default: return number(static_cast<const float*>(tensor_.data)[at]);
  }
}

// From the ends inwards: elements until whole groups begin, groups until whole pairs of them begin, and so on.
Bounds BufferBounds::in_row(std::int64_t row, std::int64_t lo, std::int64_t hi) const {
  Bounds sum = element(row, lo);
  std::int64_t end = hi + 1;
  if (levels_.empty()) {
    while (lo < end) sum = interval::either(sum, element(row, lo++));
    return sum;
  }
  while (lo < end && lo % kGroup != 0) sum = interval::either(sum, element(row, lo++));
  while (lo < end && end % kGroup != 0 && end != length_) sum = interval::either(sum, element(row, --end));
  if (lo >= end) return sum;
  lo /= kGroup, end = ceil_div(end, kGroup);
  for (std::size_t level = 0; lo < end; ++level, lo /= 2, end = (end + 1) / 2) {
    const Bounds* const groups = levels_[level].data() + row * groups_[level];
    if (lo % 2 != 0) sum = interval::either(sum, groups[lo++]);
    if (lo < end && end % 2 != 0 && end != groups_[level]) sum = interval::either(sum, groups[--end]);
    if (level + 1 < levels_.size()) continue;
    return lo < end ? interval::either(sum, groups[0]) : sum;  // the last level has one group
  }
  return sum;
}

Bounds BufferBounds::of(const Bounds* at) const {
  if (rows_ * length_ == 0) return all_;
  std::int64_t lo[kMaxRank]{}, hi[kMaxRank]{}, rows = 1;
  for (int d = 0; d < tensor_.rank; ++d) {  // an index beyond the buffer reads its nearest element
    const double last = static_cast<double>(tensor_.shape[d] - 1);
    lo[d] = static_cast<std::int64_t>(std::clamp(at[d].lo, 0.0, last));
    hi[d] = static_cast<std::int64_t>(std::clamp(at[d].hi, 0.0, last));
    if (d + 1 < tensor_.rank) rows *= hi[d] - lo[d] + 1;
  }
  const int last = tensor_.rank - 1;
  if (rows > kMostRows || (levels_.empty() && rows * (hi[last] - lo[last] + 1) > kMostRead)) return all_;
  Bounds sum{};
  for (std::int64_t n = 0; n < rows; ++n) {
    std::int64_t rest = n, row = 0, scale = 1;
    for (int d = last - 1; d >= 0; --d) {
      const std::int64_t count = hi[d] - lo[d] + 1;
      row += (lo[d] + rest % count) * scale;
      rest /= count;
      scale *= tensor_.shape[d];
    }
    const Bounds found = in_row(row, lo[last], hi[last]);
    sum = n == 0 ? found : interval::either(sum, found);
  }
  return sum;
}

MaskBounds::MaskBounds(const Expression& mask, std::span<const NamedTensor> buffers, std::int64_t most) : mask_(mask) {
  for (const NamedTensor& b : buffers) buffers_.emplace_back(b.tensor, most);
}

Bounds MaskBounds::step(const ExprStep& s, const MaskBox& box, const Bounds* values) const {
  const auto of = [&](int i) { return values[std::max<int>(0, s.operand[i])]; };
  const auto positions = [](std::int64_t lo, std::int64_t hi) {
    return interval::integer(static_cast<double>(lo), static_cast<double>(hi));
  };
  const Bounds a = of(0), b = of(1);
  const bool numbers = s.operands == ExprType::number;
  switch (s.code) {
    case ExprCode::score: return interval::any_number();
    case ExprCode::batch: return positions(box.batch_lo, box.batch_hi);
    case ExprCode::head: return positions(box.head_lo, box.head_hi);
    case ExprCode::q_index: return positions(box.row_lo, box.row_hi);
    case ExprCode::k_index: return positions(box.key_lo, box.key_hi);
    case ExprCode::literal: return interval::just(s.type == ExprType::number ? double{s.number} : double(s.integer));
    case ExprCode::to_integer: return interval::to_integer(a);
    case ExprCode::to_number: return interval::to_number(a);
    case ExprCode::to_boolean: return interval::to_boolean(a);
    case ExprCode::add: return numbers ? interval::add(a, b) : interval::int_add(a, b);
    case ExprCode::subtract: return numbers ? interval::subtract(a, b) : interval::int_subtract(a, b);
    case ExprCode::multiply: return numbers ? interval::multiply(a, b) : interval::int_multiply(a, b);
    case ExprCode::divide: return numbers ? interval::divide(a, b) : interval::int_divide(a, b);
    case ExprCode::negate: return numbers ? interval::negate(a) : interval::int_negate(a);
    case ExprCode::abs: return numbers ? interval::abs(a) : interval::int_abs(a);
    case ExprCode::remainder: return interval::int_remainder(a, b);
    case ExprCode::min: return interval::min(a, b);
    case ExprCode::max: return interval::max(a, b);
    case ExprCode::less: return interval::less(a, b);
    case ExprCode::less_equal: return interval::less_equal(a, b);
    case ExprCode::equal: return interval::equal(a, b);
    case ExprCode::not_equal: return interval::not_equal(a, b);
    case ExprCode::bit_and: return interval::int_and(a, b);
    case ExprCode::bit_or: return interval::int_or(a, b);
    case ExprCode::bit_xor: return interval::int_xor(a, b);
    case ExprCode::shift_left: return interval::int_shift_left(a, b);
    case ExprCode::shift_right: return interval::int_shift_right(a, b);
    case ExprCode::select: return interval::select(a, b, of(2));
    case ExprCode::load: {
      const BufferBounds& buffer = buffers_[static_cast<std::size_t>(s.integer)];
      const Bounds at[kMaxRank] = {a, b, of(2), of(3)};
      return buffer.of(at);
    }
    case ExprCode::floor: return interval::floor(a);
    case ExprCode::ceil: return interval::ceil(a);
    default: return interval::unknown_function(a);
  }
}

Tile MaskBounds::classify(const MaskBox& box) const {
  std::array<Bounds, Expression::kMaxSteps> values;
  for (std::size_t i = 0; i < mask_.steps.size(); ++i) values[i] = step(mask_.steps[i], box, values.data());
  const Bounds seen = values[mask_.steps.size() - 1];
  return interval::is_true(seen) ? Tile::full : interval::is_false(seen) ? Tile::skip : Tile::partial;
}

void MaskBounds::classify_tiles(const MaskBox& box, std::int64_t rows, std::int64_t keys, Tile* tiles,
                                std::int64_t stride) const {
  const std::int64_t tall = (box.row_hi - box.row_lo) / rows + 1, wide = (box.key_hi - box.key_lo) / keys + 1;
  const Tile state = classify(box);
  if (state != Tile::partial || (tall == 1 && wide == 1)) {
    for (std::int64_t r = 0; r < tall; ++r) std::fill_n(tiles + r * stride, wide, state);
    return;
  }
  MaskBox first = box, second = box;
  if (wide >= tall) {
    second.key_lo = box.key_lo + wide / 2 * keys, first.key_hi = second.key_lo - 1;
    classify_tiles(first, rows, keys, tiles, stride);
    classify_tiles(second, rows, keys, tiles + wide / 2, stride);
  } else {
    second.row_lo = box.row_lo + tall / 2 * rows, first.row_hi = second.row_lo - 1;
    classify_tiles(first, rows, keys, tiles, stride);
    classify_tiles(second, rows, keys, tiles + tall / 2 * stride, stride);
  }
}

}  // namespace onepass
