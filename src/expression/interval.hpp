// Interval arithmetic over the steps of an expression: bounds of a step's value from bounds of its operands, for all
// rows and keys of a tile at once (Moore, Interval Analysis, 1966). Header-free: CPU and CUDA code read the same text.
//
// Bounds are sound and not always tight: they hold for every backend's arithmetic. Sums and products of numbers are
// widened by more than any backend rounds. What an operation leaves undefined becomes "anything of that type".
#if !defined(ONEPASS_CORE_INTERVAL_HPP)
#define ONEPASS_CORE_INTERVAL_HPP
#include "algebra/portable.hpp"

namespace onepass {
namespace interval {

// The values from lo to hi, integers, booleans (0 and 1) or numbers; and NaN, where `nan` is set.
struct Bounds {
  double lo, hi;
  bool nan;
};

constexpr double kLeast = -2147483648.0, kMost = 2147483647.0;  // int32
constexpr double kHuge = 3.4e38, kBeyond = 1e300;               // no float is larger

ONEPASS_HD Bounds between(double lo, double hi) { return {lo, hi, false}; }
ONEPASS_HD Bounds just(double x) { return {x, x, false}; }
ONEPASS_HD Bounds any_boolean() { return {0, 1, false}; }
ONEPASS_HD Bounds any_integer() { return {kLeast, kMost, false}; }
ONEPASS_HD Bounds any_number() { return {-kBeyond, kBeyond, true}; }

ONEPASS_HD double least(double a, double b) { return b < a ? b : a; }
ONEPASS_HD double most(double a, double b) { return a < b ? b : a; }
ONEPASS_HD double size_of(double x) { return x < 0 ? -x : x; }
ONEPASS_HD bool is_point(Bounds a) { return a.lo == a.hi && !a.nan; }
ONEPASS_HD bool is_true(Bounds a) { return a.lo > 0; }
ONEPASS_HD bool is_false(Bounds a) { return a.hi == 0; }
ONEPASS_HD bool holds_zero(Bounds a) { return a.lo <= 0 && a.hi >= 0; }
ONEPASS_HD Bounds either(Bounds a, Bounds b) { return {least(a.lo, b.lo), most(a.hi, b.hi), a.nan || b.nan}; }
ONEPASS_HD Bounds truth(bool certain, bool possible) { return {certain ? 1.0 : 0.0, possible ? 1.0 : 0.0, false}; }

// ---- integers: they wrap around, so a result beyond int32 may be any

ONEPASS_HD Bounds integer(double lo, double hi) {
  return lo >= kLeast && hi <= kMost ? between(lo, hi) : any_integer();
}
ONEPASS_HD long long whole(double x) { return static_cast<long long>(x); }

ONEPASS_HD Bounds int_add(Bounds a, Bounds b) { return integer(a.lo + b.lo, a.hi + b.hi); }
ONEPASS_HD Bounds int_subtract(Bounds a, Bounds b) { return integer(a.lo - b.hi, a.hi - b.lo); }
ONEPASS_HD Bounds int_negate(Bounds a) { return integer(-a.hi, -a.lo); }
ONEPASS_HD Bounds int_multiply(Bounds a, Bounds b) {
  const double x = a.lo * b.lo, y = a.lo * b.hi, z = a.hi * b.lo, w = a.hi * b.hi;
  return integer(least(least(x, y), least(z, w)), most(most(x, y), most(z, w)));
}
ONEPASS_HD double quotient(double a, double b) {
  const auto rounded_to_zero = whole(a) / whole(b);
  return static_cast<double>(rounded_to_zero);
}
ONEPASS_HD Bounds int_divide(Bounds a, Bounds b) {
  if (holds_zero(b)) return any_integer();
  const double x = quotient(a.lo, b.lo), y = quotient(a.lo, b.hi), z = quotient(a.hi, b.lo), w = quotient(a.hi, b.hi);
  return integer(least(least(x, y), least(z, w)), most(most(x, y), most(z, w)));
}
// C++'s: the sign of a.
ONEPASS_HD Bounds int_remainder(Bounds a, Bounds b) {
  if (holds_zero(b)) return any_integer();
  if (is_point(b) && a.lo > kLeast && quotient(a.lo, b.lo) == quotient(a.hi, b.lo) && (a.lo >= 0 || a.hi <= 0)) {
    const long long by = whole(b.lo);
    return between(static_cast<double>(whole(a.lo) % by), static_cast<double>(whole(a.hi) % by));
  }
  const double rest = most(size_of(b.lo), size_of(b.hi)) - 1;
  return between(a.lo < 0 ? -least(rest, -a.lo) : 0, a.hi > 0 ? least(rest, a.hi) : 0);
}
ONEPASS_HD Bounds int_abs(Bounds a) {
  if (a.lo >= 0) return a;
  if (a.hi <= 0) return int_negate(a);
  return integer(0, most(-a.lo, a.hi));
}

ONEPASS_HD double all_ones(double x) {  // 2^n - 1, at least x >= 0
  double ones = 0;
  while (ones < x) ones = 2 * ones + 1;
  return ones;
}
ONEPASS_HD Bounds int_and(Bounds a, Bounds b) {
  if (is_point(a) && is_point(b)) return just(static_cast<double>(whole(a.lo) & whole(b.lo)));
  if (a.lo >= 0 && is_point(b) && b.lo > 0 && b.lo == all_ones(b.lo)) return int_remainder(a, just(b.lo + 1));
  if (a.lo >= 0 && b.lo >= 0) return between(0, least(a.hi, b.hi));
  if (a.lo >= 0) return between(0, a.hi);
  if (b.lo >= 0) return between(0, b.hi);
  return any_integer();
}
ONEPASS_HD Bounds int_or(Bounds a, Bounds b) {
  if (is_point(a) && is_point(b)) return just(static_cast<double>(whole(a.lo) | whole(b.lo)));
  if (a.lo < 0 || b.lo < 0) return any_integer();
  return between(most(a.lo, b.lo), all_ones(most(a.hi, b.hi)));
}
ONEPASS_HD Bounds int_xor(Bounds a, Bounds b) {
  if (is_point(a) && is_point(b)) return just(static_cast<double>(whole(a.lo) ^ whole(b.lo)));
  if (is_point(b) && b.lo == -1) return between(-a.hi - 1, -a.lo - 1);  // ~a
  if (a.lo < 0 || b.lo < 0) return any_integer();
  return between(0, all_ones(most(a.hi, b.hi)));
}
ONEPASS_HD bool is_shift(Bounds b) { return is_point(b) && b.lo >= 0 && b.lo <= 31; }
ONEPASS_HD Bounds int_shift_left(Bounds a, Bounds b) {
  return is_shift(b) ? int_multiply(a, just(static_cast<double>(1LL << whole(b.lo)))) : any_integer();
}
ONEPASS_HD Bounds int_shift_right(Bounds a, Bounds b) {
  if (!is_shift(b)) return any_integer();
  return between(static_cast<double>(whole(a.lo) >> whole(b.lo)), static_cast<double>(whole(a.hi) >> whole(b.lo)));
}

// ---- numbers

// By 2^-20 of the value, and by what is flushed to zero. Quotients on CUDA err by 2^-22.
ONEPASS_HD Bounds widened(double lo, double hi) {
  constexpr double kShare = 1.0 / (1 << 20), kTiny = 1.2e-38;
  lo -= size_of(lo) * kShare + kTiny, hi += size_of(hi) * kShare + kTiny;
  return lo > -kHuge && hi < kHuge ? between(lo, hi) : any_number();
}
ONEPASS_HD bool is_finite(Bounds a) { return !a.nan && a.lo > -kHuge && a.hi < kHuge; }

ONEPASS_HD Bounds add(Bounds a, Bounds b) {
  return is_finite(a) && is_finite(b) ? widened(a.lo + b.lo, a.hi + b.hi) : any_number();
}
ONEPASS_HD Bounds negate(Bounds a) { return {-a.hi, -a.lo, a.nan}; }
ONEPASS_HD Bounds subtract(Bounds a, Bounds b) { return add(a, negate(b)); }
ONEPASS_HD Bounds multiply(Bounds a, Bounds b) {
  if (!is_finite(a) || !is_finite(b)) return any_number();
  const double x = a.lo * b.lo, y = a.lo * b.hi, z = a.hi * b.lo, w = a.hi * b.hi;
  return widened(least(least(x, y), least(z, w)), most(most(x, y), most(z, w)));
}
ONEPASS_HD Bounds divide(Bounds a, Bounds b) {
  constexpr double kNormal = 1e-30;  // CUDA's quotients by less may overflow
  if (!is_finite(a) || !is_finite(b) || (b.lo < kNormal && b.hi > -kNormal)) return any_number();
  const double x = a.lo / b.lo, y = a.lo / b.hi, z = a.hi / b.lo, w = a.hi / b.hi;
  return size_of(b.lo) < 1e30 && size_of(b.hi) < 1e30
             ? widened(least(least(x, y), least(z, w)), most(most(x, y), most(z, w)))
             : any_number();
}
ONEPASS_HD Bounds abs(Bounds a) {
  if (a.lo >= 0) return a;
  if (a.hi <= 0) return negate(a);
  return {0, most(-a.lo, a.hi), a.nan};
}
ONEPASS_HD double towards_zero(double x) {  // a number beyond 2^53 is whole
  return size_of(x) < 9e15 ? static_cast<double>(whole(x)) : x;
}
ONEPASS_HD double floored(double x) { return towards_zero(x) > x ? towards_zero(x) - 1 : towards_zero(x); }
ONEPASS_HD Bounds floor(Bounds a) { return {floored(a.lo), floored(a.hi), a.nan}; }
ONEPASS_HD Bounds ceil(Bounds a) { return {-floored(-a.lo), -floored(-a.hi), a.nan}; }
ONEPASS_HD Bounds unknown_function(Bounds) { return any_number(); }  // exp to tanh

// ---- either: the smallest and largest keep their type

// Some backends give the other operand in place of a NaN.
ONEPASS_HD Bounds min(Bounds a, Bounds b) {
  if (a.nan || b.nan) return either(a, b);
  return between(least(a.lo, b.lo), least(a.hi, b.hi));
}
ONEPASS_HD Bounds max(Bounds a, Bounds b) {
  if (a.nan || b.nan) return either(a, b);
  return between(most(a.lo, b.lo), most(a.hi, b.hi));
}

ONEPASS_HD Bounds less(Bounds a, Bounds b) {
  if (a.nan || b.nan) return any_boolean();
  return truth(a.hi < b.lo, a.lo < b.hi);
}
ONEPASS_HD Bounds less_equal(Bounds a, Bounds b) {
  if (a.nan || b.nan) return any_boolean();
  return truth(a.hi <= b.lo, a.lo <= b.hi);
}
ONEPASS_HD Bounds equal(Bounds a, Bounds b) {
  if (a.nan || b.nan) return any_boolean();
  return truth(is_point(a) && is_point(b) && a.lo == b.lo, a.lo <= b.hi && b.lo <= a.hi);
}
ONEPASS_HD Bounds negation(Bounds a) { return {1 - a.hi, 1 - a.lo, false}; }
ONEPASS_HD Bounds not_equal(Bounds a, Bounds b) { return negation(equal(a, b)); }
ONEPASS_HD Bounds to_boolean(Bounds a) {  // that of NaN is true
  const Bounds x = not_equal(between(a.lo, a.hi), just(0));
  return a.nan ? either(x, just(1)) : x;
}
ONEPASS_HD Bounds to_number(Bounds a) {
  constexpr double kExact = 16777216.0;  // 2^24
  return a.lo >= -kExact && a.hi <= kExact ? a : widened(a.lo, a.hi);
}
ONEPASS_HD double saturated(double x) { return x <= kLeast ? kLeast : x >= kMost ? kMost : towards_zero(x); }
ONEPASS_HD Bounds to_integer(Bounds a) {
  const Bounds x = between(saturated(a.lo), saturated(a.hi));
  return a.nan ? either(x, just(0)) : x;
}
ONEPASS_HD Bounds select(Bounds condition, Bounds a, Bounds b) {
  return is_true(condition) ? a : is_false(condition) ? b : either(a, b);
}

// ---- buffers: the bounds of an element, and of any run of a buffer's last dimension by those of every 16 elements,
// of every 32, and so on

ONEPASS_HD Bounds value(int x) { return just(x); }
ONEPASS_HD Bounds value(bool x) { return just(x ? 1.0 : 0.0); }
ONEPASS_HD Bounds value(float x) {
  constexpr float kNormal = 1.1754943508e-38f;  // smaller numbers may be flushed to 0
  if (x != x) return {kBeyond, -kBeyond, true};
  const double exact = x;
  return x > -kNormal && x < kNormal ? between(least(exact, 0), most(exact, 0)) : just(exact);
}

constexpr long long kGroup = 16;     // elements of a group of level 0
constexpr long long kMostRows = 64;  // of the last dimension, that are joined; more rows have the whole buffer's bounds

// groups: [level][row][groups of 16 << level], up to the level of one group a row; null: up to most_read elements of a
// range are read. all: those of the whole buffer.
struct Levels {
  const Bounds *groups, *all;
  long long rows, length, most_read;
};
ONEPASS_HD long long groups_of(long long length) { return (length + kGroup - 1) / kGroup; }
// Groups of a row on all levels.
ONEPASS_HD long long groups_on_all_levels(long long length) {
  long long sum = 0, groups = groups_of(length);
  for (; groups > 1; groups = (groups + 1) / 2) sum += groups;
  return sum + groups;
}
// The bounds of a group: on level 0 of its elements, else of two groups of the level below, which has `below` of them.
template <class Buffer>
ONEPASS_HD Bounds group_of(const Buffer& b, long long row, long long group) {
  const long long from = group * kGroup, length = b.levels().length,
                  to = from + kGroup < length ? from + kGroup : length;
  Bounds sum = b.element(row, from);
  for (long long i = from + 1; i < to; ++i) sum = either(sum, b.element(row, i));
  return sum;
}
ONEPASS_HD Bounds group_of(const Bounds* row, long long below, long long group) {
  return 2 * group + 1 < below ? either(row[2 * group], row[2 * group + 1]) : row[2 * group];
}

// From the ends inwards: elements until whole groups begin, groups until whole pairs of them begin, and so on.
template <class Buffer>
ONEPASS_HD Bounds in_row(const Buffer& b, long long row, long long lo, long long hi) {
  const Levels levels = b.levels();
  Bounds sum = b.element(row, lo);
  long long end = hi + 1;
  if (!levels.groups) {
    while (++lo < end) sum = either(sum, b.element(row, lo));
    return sum;
  }
  while (lo < end && lo % kGroup != 0) sum = either(sum, b.element(row, lo++));
  while (lo < end && end % kGroup != 0 && end != levels.length) sum = either(sum, b.element(row, --end));
  if (lo >= end) return sum;
  lo /= kGroup, end = groups_of(end);
  const Bounds* level = levels.groups;
  for (long long groups = groups_of(levels.length); lo < end; groups = (groups + 1) / 2) {
    const Bounds* const at = level + row * groups;
    if (lo % 2 != 0) sum = either(sum, at[lo++]);
    if (lo < end && end % 2 != 0 && end != groups) sum = either(sum, at[--end]);
    if (lo < end && groups == 1) return either(sum, at[0]);  // the last level
    lo /= 2, end = (end + 1) / 2, level += levels.rows * groups;
  }
  return sum;
}

// The bounds of the elements at indices within bounds: at[d]. An index beyond the buffer reads its nearest element.
// Buffer: rank, last(d), the largest index of a dimension, element(row, i), and levels().
template <class Buffer>
ONEPASS_HD Bounds in_buffer(const Buffer& b, const Bounds* at) {
  constexpr int kMostRank = 4;
  const Levels levels = b.levels();
  long long lo[kMostRank] = {}, count[kMostRank] = {}, rows = 1;
  for (int d = 0; d < b.rank; ++d) {
    const auto clamped = [&](double x) { return whole(least(most(x, 0), static_cast<double>(b.last(d)))); };
    lo[d] = clamped(at[d].lo), count[d] = clamped(at[d].hi) - lo[d] + 1;
    if (d + 1 < b.rank) rows *= count[d];
  }
  const int last = b.rank - 1;
  if (rows > kMostRows || (!levels.groups && rows * count[last] > levels.most_read)) return *levels.all;
  Bounds sum{};
  for (long long n = 0; n < rows; ++n) {
    long long rest = n, row = 0, scale = 1;
    for (int d = last - 1; d >= 0; --d) {
      row += (lo[d] + rest % count[d]) * scale;
      rest /= count[d];
      scale *= b.last(d) + 1;
    }
    const Bounds found = in_row(b, row, lo[last], lo[last] + count[last] - 1);
    sum = n == 0 ? found : either(sum, found);
  }
  return sum;
}

}  // namespace interval
}  // namespace onepass
#endif
