// Versions: ONEPASS_VERSION_MAJOR, _MINOR and _PATCH of the headers, and the library's.
#pragma once
#include <string_view>

#include "onepass/export.h"
#include "onepass/version.h"

namespace onepass::inline v0 {

// "0.2.0": of the library that is linked.
[[nodiscard]] ONEPASS_API std::string_view version() noexcept;

}  // namespace onepass::inline v0
