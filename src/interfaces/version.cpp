#include "onepass/version.hpp"

namespace onepass::inline v0 {

#define ONEPASS_TEXT_OF(x) #x
#define ONEPASS_TEXT(x) ONEPASS_TEXT_OF(x)
static_assert(std::string_view(ONEPASS_VERSION) == ONEPASS_TEXT(ONEPASS_VERSION_MAJOR) "." ONEPASS_TEXT(
                                                       ONEPASS_VERSION_MINOR) "." ONEPASS_TEXT(ONEPASS_VERSION_PATCH));

std::string_view version() noexcept { return ONEPASS_VERSION; }

}  // namespace onepass::inline v0
