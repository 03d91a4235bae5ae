// The files of `onepass run`'s results.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "tools/onepass/io/array.hpp"
#include "tools/onepass/io/output_file.hpp"

namespace onepass::cli {

struct OutputFiles {
  std::string out, lse;  // .npy each, or one .safetensors with both
  bool want_lse = false;
};

// Before anything is computed: the common reasons why a result could not be written. Throws Error.
void check_destinations(const OutputFiles& files);

// All of the results or, on an error, none: they are written by the constructor and have their names with commit().
class WrittenOutputs {
 public:
  // lse is nullptr unless it was wanted.
  WrittenOutputs(const OutputFiles& files, const io::Array& out, const io::Array* lse,
                 const std::function<void(std::size_t)>& on_write);
  void commit();

 private:
  io::OutputFile out_;
  std::optional<io::OutputFile> lse_;
};

}  // namespace onepass::cli
