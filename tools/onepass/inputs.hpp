// The tensors of `onepass run`, read from .npy files and one .safetensors file.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "core/implementation.hpp"
#include "progress.hpp"
#include "tools/onepass/io/array.hpp"

namespace onepass::cli {

struct Input {
  const char* name;  // in a .safetensors file; the option is --name with '-' for '_'
  Tensor Arguments::* tensor;
  const char* help;
};
std::span<const Input> inputs();
std::string option_of(const Input& input);

struct InputFiles {
  std::map<std::string, std::string> npy;      // by the input's name
  std::map<std::string, std::string> buffers;  // .npy of the mod buffers, by name
  std::string safetensors, prefix;             // tensors named prefix + name
  std::optional<DType> void2;                  // what '<V2' of .npy files is
  bool bshd = false;                           // q, k and v are [batch, seq, heads, dim]
};

struct Loaded {
  std::deque<io::Array> arrays;  // the memory behind the tensors
  Arguments tensors;             // out and lse stay absent
};
Loaded load(const InputFiles& files, Progress& progress);  // throws Error

}  // namespace onepass::cli
