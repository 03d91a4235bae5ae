// The safetensors format: 8 bytes with the length of a JSON header, the header, then the data of every tensor.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "tools/onepass/io/array.hpp"
#include "tools/onepass/io/output_file.hpp"
#include "tools/onepass/io/source.hpp"

namespace onepass::io {

// The header is checked as a whole when the file is opened: names once, known dtypes, sizes that fit their bytes, and
// tensors that cover the data without overlap, holes or reaching beyond its end.
class Safetensors {
 public:
  struct Entry {
    std::string dtype;  // as the format names it: "F32", "BF16", ...
    Shape shape;
    std::uint64_t begin = 0, end = 0;  // bytes from the start of the data
  };

  explicit Safetensors(const Source& source);  // throws bad_file; the source must outlive it
  const std::map<std::string, Entry>& entries() const { return entries_; }
  bool has(const std::string& name) const { return entries_.count(name) != 0; }
  Array read(const std::string& name) const;  // throws bad_file if there is none, bad_dtype if onepass has no such type

 private:
  const Source& source_;
  std::uint64_t data_ = 0;  // where the data begins
  std::map<std::string, Entry> entries_;
};

void write_safetensors(OutputFile& file, std::span<const std::pair<std::string, const Array*>> arrays);

}  // namespace onepass::io
