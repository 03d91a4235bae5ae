#include "expression/mask_bounds.hpp"

#include <algorithm>
#include <array>

#include "algebra/numerics.hpp"

namespace onepass {

using interval::Bounds;

namespace {

Bounds any_of(DType dtype) {
  return dtype == DType::i32       ? interval::any_integer()
         : dtype == DType::boolean ? interval::any_boolean()
                                   : interval::any_number();
}

// A tensor as interval::in_buffer() reads it.
struct View {
  const ConstTensor& tensor;
  interval::Levels of;
  int rank = tensor.rank;

  const interval::Levels& levels() const { return of; }
  std::int64_t last(int d) const { return tensor.shape[d] - 1; }
  Bounds element(std::int64_t row, std::int64_t i) const {
    std::int64_t at = i * tensor.stride[rank - 1];
    for (int d = rank - 2; d >= 0; --d) {
      at += row % tensor.shape[d] * tensor.stride[d];
      row /= tensor.shape[d];
    }
    switch (tensor.dtype) {
      case DType::i32: return interval::value(static_cast<const std::int32_t*>(tensor.data)[at]);
      case DType::boolean: return interval::value(static_cast<const std::uint8_t*>(tensor.data)[at] != 0);
      case DType::f16: return interval::value(to_float(static_cast<const f16*>(tensor.data)[at]));
      case DType::bf16: return interval::value(to_float(static_cast<const bf16*>(tensor.data)[at]));
      default: return interval::value(static_cast<const float*>(tensor.data)[at]);
    }
  }
};

}  // namespace

BufferBounds::BufferBounds(const ConstTensor& tensor, std::int64_t most) : tensor_(tensor), all_(any_of(tensor.dtype)) {
  length_ = tensor.shape[tensor.rank - 1];
  for (int d = 0; d + 1 < tensor.rank; ++d) rows_ *= tensor.shape[d];
  if (rows_ * length_ > most || rows_ * length_ == 0) return;
  groups_.resize(static_cast<std::size_t>(rows_ * interval::groups_on_all_levels(length_)));
  const View view{tensor_, {groups_.data(), &all_, rows_, length_, kMostRead}};
  std::int64_t groups = interval::groups_of(length_);
  Bounds* level = groups_.data();
  for (std::int64_t row = 0; row < rows_; ++row)
    for (std::int64_t g = 0; g < groups; ++g) level[row * groups + g] = interval::group_of(view, row, g);
  while (groups > 1) {
    const std::int64_t below = groups;
    const Bounds* const from = level;
    level += rows_ * groups, groups = (groups + 1) / 2;
    for (std::int64_t row = 0; row < rows_; ++row)
      for (std::int64_t g = 0; g < groups; ++g)
        level[row * groups + g] = interval::group_of(from + row * below, below, g);
  }
  all_ = level[0];
  for (std::int64_t row = 1; row < rows_; ++row) all_ = interval::either(all_, level[row]);
}

Bounds BufferBounds::of(const Bounds* at) const {
  if (rows_ * length_ == 0) return all_;
  const Bounds* const groups = groups_.empty() ? nullptr : groups_.data();
  return interval::in_buffer(View{tensor_, {groups, &all_, rows_, length_, kMostRead}}, at);
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
