// Shared libraries that a user names.
#pragma once
#include <string>

namespace onepass::cuda {

// Opens the library that the environment variable names. nullptr with a sentence in `why` if it cannot be opened or
// does not define `symbol`.
void* open_library(const char* variable, const std::string& name, const char* symbol, std::string& why);

}  // namespace onepass::cuda
