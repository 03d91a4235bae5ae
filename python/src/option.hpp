// An option of a call as the package has it: what it calls its type, and how it is read.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "item.hpp"
#include "problem/attention/options.hpp"

namespace onepass::python {

template <class T>
constexpr const char* kind_of() {
  if constexpr (std::is_same_v<T, bool>)
    return "switch";
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return "integer";
  else if constexpr (std::is_same_v<T, std::uint64_t>)
    return "bits";  // of 64, which an attribute of JAX's has as a signed number
  else if constexpr (std::is_same_v<T, float>)
    return "number";
  else if constexpr (std::is_same_v<T, std::optional<double>> || std::is_same_v<T, std::optional<float>>)
    return "optional number";  // NaN in an attribute of JAX's is none
  else if constexpr (std::is_same_v<T, std::string>)
    return "text";
  else if constexpr (Choice<T>)
    return "choice";
  else if constexpr (std::is_same_v<T, std::array<std::uint32_t, 4>>)
    return "numbers";  // text with colons between them in an attribute of JAX's
  else
    return "band";
}

// An option as _options.options() has it.
template <class T>
void take(T& to, const nanobind::dict& o, const char* name) {
  to = item<T>(o, name);
}
template <Choice T>
void take(T& to, const nanobind::dict& o, const char* name) {
  to = T{item<std::uint8_t>(o, name)};
}
inline void take(Band& to, const nanobind::dict& o, const char*) {
  to.causal = item<bool>(o, "causal");
  to.align = Align{item<std::uint8_t>(o, "align")};
  to.offset = item<std::int64_t>(o, "align_offset");
  std::tie(to.left, to.right) = item<std::pair<std::int64_t, std::int64_t>>(o, "window");
}

}  // namespace onepass::python
