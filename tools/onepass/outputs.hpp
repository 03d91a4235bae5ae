// The files of `onepass run`'s results.
#pragma once
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "problem/roles.hpp"
#include "tools/onepass/io/array.hpp"
#include "tools/onepass/io/output_file.hpp"

namespace onepass::cli {

// A result with a number for each row, which an option of its name asks for.
struct RowFile {
  Role role;
  const char* option;
  std::string path{};  // .npy; empty if it is in the .safetensors file of out
  bool wanted = false;
};

struct OutputFiles {
  std::string out;  // .npy, or .safetensors with all results
  RowFile lse{Role::lse, "--lse"}, row_max{Role::row_max, "--row-max"}, entropy{Role::entropy, "--entropy"};
  std::vector<const RowFile*> wanted_rows() const;
};

using NamedArrays = std::vector<std::pair<std::string, const io::Array*>>;

bool is_safetensors(const std::string& path);

// Before anything is computed: the common reasons why a result could not be written. Throws Error.
void check_destinations(const OutputFiles& files);

// All of the results or, on an error, none: they are written by the constructor and have their names with commit().
class WrittenOutputs {
 public:
  // out, then the wanted rows in their order; gradients go into a .safetensors file.
  WrittenOutputs(const OutputFiles& files, const NamedArrays& arrays, const std::function<void(std::size_t)>& on_write);
  void commit();

 private:
  io::OutputFile out_;
  std::deque<io::OutputFile> rows_;
};

}  // namespace onepass::cli
