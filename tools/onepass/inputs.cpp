#include "inputs.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <filesystem>

#include "onepass/error.hpp"
#include "tools/onepass/io/npy.hpp"
#include "tools/onepass/io/safetensors.hpp"

namespace onepass::cli {
namespace {

// A misspelt name must not leave a mask or a bias out in silence.
void check_names(const io::Safetensors& file, const InputFiles& files, Op op) {
  for (const auto& [name, entry] : file.entries()) {
    if (!name.starts_with(files.prefix)) continue;
    const std::string rest = name.substr(files.prefix.size());
    std::string known;
    bool is_input = false;
    for (const RoleRow& row : kRoleTable) {
      if (!reads(row, op)) continue;
      is_input = is_input || rest == row.name;
      known += (known.empty() ? "" : ", ") + std::string(row.name);
    }
    if (is_input) continue;
    throw Error(ErrorCode::bad_file, text(files.safetensors, " holds '", name, "', which is no input; inputs are ",
                                          known, " (with --prefix only names that begin with it are looked at)"));
  }
}

}  // namespace

std::string option_of(const RoleRow& row) {
  std::string option = std::string("--") + row.name;
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

Loaded load(const InputFiles& files, Progress& progress) {
  std::int64_t total = 0, done = 0;
  const auto add_size = [&](const std::string& path) {
    std::error_code none;
    const auto size = std::filesystem::file_size(path, none);
    if (!none) total += static_cast<std::int64_t>(size);
  };
  for (const auto& [name, path] : files.npy) add_size(path);
  for (const auto& [name, path] : files.buffers) add_size(path);
  if (!files.safetensors.empty()) add_size(files.safetensors);
  const auto count = [&](std::size_t bytes) { progress.at(done += static_cast<std::int64_t>(bytes), total); };

  Loaded loaded;
  std::optional<io::FileSource> source;
  std::optional<io::Safetensors> safetensors;
  if (!files.safetensors.empty()) {
    safetensors.emplace(source.emplace(files.safetensors, count));
    loaded.op = files.npy.contains("dout") || safetensors->has(files.prefix + "dout") ? Op::backward : Op::forward;
    check_names(*safetensors, files, loaded.op);
  } else if (files.npy.contains("dout")) {
    loaded.op = Op::backward;
  }
  for (const RoleRow& row : kRoleTable) {
    if (!reads(row, loaded.op)) continue;
    const auto npy = files.npy.find(row.name);
    if (npy != files.npy.end()) {
      loaded.arrays.push_back(io::read_npy(io::FileSource(npy->second, count), files.void2));
    } else if (safetensors && safetensors->has(files.prefix + row.name)) {
      loaded.arrays.push_back(safetensors->read(files.prefix + row.name));
    } else {
      continue;
    }
    row.input ? void(loaded.tensors.*row.input = loaded.arrays.back().view())
              : void(loaded.tensors.*row.output = loaded.arrays.back().view());
  }
  for (const auto& [name, path] : files.buffers) {
    loaded.arrays.push_back(io::read_npy(io::FileSource(path, count), files.void2));
    loaded.tensors.mod_buffers.push_back({name, loaded.arrays.back().view()});
  }
  for (const RoleRow& row : kRoleTable) {
    if (!row.unit_last || !reads(row, loaded.op)) continue;
    const bool pages = loaded.tensors.page_table.given() && (row.role == Role::k || row.role == Role::v);
    const auto orient = [&](auto& t) {  // pages lie as they are in either layout
      if (files.bshd && t.rank == 4 && !pages) t = t.permuted({0, 2, 1, 3});
    };
    if (row.output) {  // of a backward: what its forward gave, computed here if it is not given
      orient(loaded.tensors.*row.output);
      continue;
    }
    ConstTensor& t = loaded.tensors.*row.input;
    if (!t.given()) {
      throw Error(ErrorCode::bad_value,
                  text(row.name, " is missing: give ", option_of(row),
                       " FILE.npy, or --in FILE.safetensors with a tensor '", files.prefix, row.name, "'"));
    }
    orient(t);
  }
  return loaded;
}

}  // namespace onepass::cli
