// Where the library keeps what it has found out about a machine.
#pragma once
#include <filesystem>

namespace onepass {

std::filesystem::path from_environment(const char* name);  // empty if it is unset or empty
std::filesystem::path cache_directory();  // ONEPASS_CACHE, $XDG_CACHE_HOME/onepass, ~/.cache/onepass; empty: none

}  // namespace onepass
