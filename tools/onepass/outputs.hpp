// The files of `onepass run`'s results.
#pragma once
#include <string>

#include "onepass/io/array.hpp"
#include "progress.hpp"

namespace onepass::cli {

struct OutputFiles {
  std::string out, lse;  // .npy each, or one .safetensors with both
  bool want_lse = false;
};

// Before anything is computed: the common reasons why a result could not be written. Throws Error.
void check_destinations(const OutputFiles& files);
// All of them or, on an error, none. lse is nullptr unless it was wanted.
void save(const OutputFiles& files, const io::Array& out, const io::Array* lse, Progress& progress);

}  // namespace onepass::cli
