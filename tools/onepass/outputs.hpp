// The files of `onepass run`'s results.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/onepass/io/array.hpp"
#include "tools/onepass/io/output_file.hpp"

namespace onepass::cli {

struct OutputFiles {
  std::string out, lse;  // .npy each, or one .safetensors with both, or with gradients
  bool want_lse = false;
};

using NamedArrays = std::vector<std::pair<std::string, const io::Array*>>;

bool is_safetensors(const std::string& path);

// Before anything is computed: the common reasons why a result could not be written. Throws Error.
void check_destinations(const OutputFiles& files);

// All of the results or, on an error, none: they are written by the constructor and have their names with commit().
class WrittenOutputs {
 public:
  // out, and lse if it was wanted; gradients go into a .safetensors file.
  WrittenOutputs(const OutputFiles& files, const NamedArrays& arrays, const std::function<void(std::size_t)>& on_write);
  void commit();

 private:
  io::OutputFile out_;
  std::optional<io::OutputFile> lse_;
};

}  // namespace onepass::cli
