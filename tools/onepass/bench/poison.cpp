#include "tools/onepass/bench/poison.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string_view>

#include "algebra/numerics.hpp"
#include "algebra/scalar.hpp"
#include "base/text.hpp"
#include "onepass/error.hpp"

namespace onepass::bench {
namespace {

constexpr std::string_view kWith = " with ";
constexpr std::string_view kAmounts[] = {"one", "some", "rows", "all", "large"};
constexpr Role kRoles[] = {Role::q, Role::k, Role::v, Role::dout};

Poison poison_from(const std::string& word, const std::string& line) {
  const auto at = word.find('=');
  for (const Role role : kRoles) {
    for (std::size_t i = 0; i < std::size(kAmounts); ++i)
      if (at != word.npos && word.substr(0, at) == row_of(role).name && word.substr(at + 1) == kAmounts[i])
        return {role, static_cast<Amount>(i)};
  }
  throw Error(ErrorCode::bad_text,
              text("'", word, "' in \"", line, "\" must be q, k, v or dout, '=', and one, some, rows, all or large"));
}

float nonfinite(std::int64_t i) {
  const float low = Arith<float>::neg_inf();
  return i % 3 == 0 ? std::numeric_limits<float>::quiet_NaN() : i % 3 == 1 ? -low : low;
}

float enlarged(float x, DType dtype) {
  const float most = dtype == DType::f16 ? 6.0e4f : 3.0e38f, factor = dtype == DType::f16 ? 6.0e4f : 1e38f;
  return std::clamp(x * factor, -most, most);
}

}  // namespace

std::pair<std::string, std::vector<Poison>> split_poisons(const std::string& line) {
  const auto at = line.rfind(kWith);
  if (at == line.npos) return {line, {}};
  std::vector<Poison> poisons;
  std::istringstream words(line.substr(at + kWith.size()));
  for (std::string word; words >> word;) poisons.push_back(poison_from(word, line));
  return {line.substr(0, at), poisons};
}

std::string to_string(const std::vector<Poison>& poisons) {
  std::string line;
  for (const Poison& p : poisons)
    line += text(line.empty() ? kWith : " ", row_of(p.role).name, "=", kAmounts[static_cast<std::size_t>(p.amount)]);
  return line;
}

void poison(const ConstTensor& t, Amount amount) {
  const std::int64_t all = t.elements(), dim = all > 0 && t.rank > 0 ? t.shape[t.rank - 1] : 1,
                     middle = (all / dim / 2) * dim;
  void* const data = const_cast<void*>(t.data);
  for (std::int64_t i = 0; i < all; ++i) {
    std::int64_t at = 0, rest = i;
    for (int axis = t.rank - 1; axis >= 0; rest /= t.shape[axis--]) at += rest % t.shape[axis] * t.stride[axis];
    const std::int64_t row = i / dim;
    switch (amount) {
      case Amount::one:
        if (i == middle) store_element(data, t.dtype, at, nonfinite(0));
        break;
      case Amount::some:
        if (i % 97 == 0) store_element(data, t.dtype, at, nonfinite(i / 97));
        break;
      case Amount::rows:
        if (i % dim == row % dim) store_element(data, t.dtype, at, nonfinite(row));
        break;
      case Amount::all: store_element(data, t.dtype, at, nonfinite(0)); break;
      case Amount::large: store_element(data, t.dtype, at, enlarged(load_element(data, t.dtype, at), t.dtype));
    }
  }
}

void poison(Tensors& tensors, const std::vector<Poison>& poisons) {
  for (const Poison& p : poisons) {
    const ConstTensor& t = tensors.*row_of(p.role).input;
    if (t.elements() > 0) poison(t, p.amount);
  }
}

}  // namespace onepass::bench
