// The tensors of `onepass run`, read from .npy files and one .safetensors file.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "core/roles.hpp"
#include "progress.hpp"
#include "tools/onepass/io/array.hpp"

namespace onepass::cli {

std::string option_of(const RoleRow& row);  // --cu-seqlens-q

struct InputFiles {
  std::map<std::string, std::string> npy;      // by the input's name
  std::map<std::string, std::string> buffers;  // .npy of the mod buffers, by name
  std::string safetensors, prefix;             // tensors named prefix + name
  std::optional<DType> void2;                  // what '<V2' of .npy files is
  bool bshd = false;                           // q, k and v are [batch, seq, heads, dim]
};

struct Loaded {
  std::deque<io::Array> arrays;  // the memory behind the tensors
  Tensors tensors;               // of a forward, out and lse stay absent
  Op op = Op::forward;           // a dout makes it a backward
};
Loaded load(const InputFiles& files, Progress& progress);  // throws Error

}  // namespace onepass::cli
