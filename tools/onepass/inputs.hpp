// The tensors of `onepass run` and `onepass append`, read from .npy files and one .safetensors file.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "problem/roles.hpp"
#include "tools/onepass/io/array.hpp"
#include "tools/onepass/io/safetensors.hpp"
#include "tools/onepass/progress.hpp"

namespace onepass::cli {

std::string option_of(std::string_view name);  // --cu-seqlens-q

struct InputFiles {
  std::map<std::string, std::string> npy;      // by the input's name
  std::map<std::string, std::string> buffers;  // .npy of the mod buffers, by name
  std::string safetensors, prefix;             // tensors named prefix + name
  std::optional<DType> void2;                  // what '<V2' of .npy files is
};

// Reads them by name; an .npy file goes before the .safetensors file.
class TensorFiles {
 public:
  TensorFiles(const InputFiles& files, Progress& progress);
  // Throws bad_file if the .safetensors file has a tensor of another name: a misspelt one must not leave a mask or a
  // bias out in silence.
  void check_names(const std::vector<std::string_view>& known) const;
  bool has(const std::string& name) const;
  std::optional<io::Array> find(const std::string& name) const;
  io::Array read(const std::string& path) const;                // .npy
  [[noreturn]] void is_missing(const std::string& name) const;  // throws

 private:
  const InputFiles& files_;
  const std::function<void(std::size_t)> count_;
  std::optional<io::FileSource> source_;
  std::optional<io::Safetensors> safetensors_;
};

struct Loaded {
  std::deque<io::Array> arrays;  // the memory behind the tensors
  Tensors tensors;               // as the files have them; of a forward, out and lse stay absent
  Op op = kForward;              // a dout makes it a backward
};
Loaded load(const InputFiles& files, Progress& progress);  // throws Error

}  // namespace onepass::cli
