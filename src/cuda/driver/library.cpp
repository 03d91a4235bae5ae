#include "cuda/driver/library.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "base/text.hpp"

namespace onepass::cuda {

void* open_library(const char* variable, const std::string& name, const char* symbol, std::string& why) {
  std::error_code ignored;
  void* library = nullptr;
  // A name with a slash is a path. dlopen would wait for the writer of a FIFO.
  if (name.find('/') != name.npos && !std::filesystem::is_regular_file(name, ignored))
    why = std::filesystem::exists(name, ignored) ? "it is not a regular file" : "there is no such file";
  else if (library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); !library)
    why = dlerror();
  else if (!dlsym(library, symbol))
    why = text("it does not define ", symbol);
  if (why.empty()) return library;
  why = text(variable, " must name a library that defines ", symbol, " (got ", name, ": ", why, ")");
  return nullptr;
}

}  // namespace onepass::cuda
