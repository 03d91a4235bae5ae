#include "tools/onepass/inputs.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "onepass/error.hpp"
#include "tools/onepass/io/npy.hpp"
#include "tools/onepass/io/safetensors.hpp"

namespace onepass::cli {
namespace {

std::function<void(std::size_t)> counter(const InputFiles& files, Progress& progress) {
  std::int64_t total = 0;
  const auto add_size = [&](const std::string& path) {
    std::error_code none;
    const auto size = std::filesystem::file_size(path, none);
    if (!none) total += static_cast<std::int64_t>(size);
  };
  for (const auto& [name, path] : files.npy) add_size(path);
  for (const auto& [name, path] : files.buffers) add_size(path);
  if (!files.safetensors.empty()) add_size(files.safetensors);
  return [&progress, total, done = std::int64_t{0}](std::size_t bytes) mutable {
    progress.at(done += static_cast<std::int64_t>(bytes), total);
  };
}

}  // namespace

std::string option_of(std::string_view name) {
  std::string option = "--" + std::string(name);
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

TensorFiles::TensorFiles(const InputFiles& files, Progress& progress)
    : files_(files), count_(counter(files, progress)) {
  if (!files.safetensors.empty()) safetensors_.emplace(source_.emplace(files.safetensors, count_));
}

void TensorFiles::check_names(const std::vector<std::string_view>& known) const {
  if (!safetensors_) return;
  for (const auto& [name, entry] : safetensors_->entries()) {
    if (!name.starts_with(files_.prefix)) continue;
    if (std::ranges::count(known, std::string_view(name).substr(files_.prefix.size())) != 0) continue;
    std::string all;
    for (const std::string_view k : known) all.append(all.empty() ? "" : ", ").append(k);
    throw Error(ErrorCode::bad_file,
                text(files_.safetensors, " has a tensor '", name, "', which is not an input; inputs are ", all,
                     " (--prefix selects the names that begin with it)"));
  }
}

bool TensorFiles::has(const std::string& name) const {
  return files_.npy.contains(name) || (safetensors_ && safetensors_->has(files_.prefix + name));
}

std::optional<io::Array> TensorFiles::find(const std::string& name) const {
  if (!has(name)) return std::nullopt;
  const auto npy = files_.npy.find(name);
  return npy != files_.npy.end() ? read(npy->second) : safetensors_->read(files_.prefix + name);
}

io::Array TensorFiles::read(const std::string& path) const {
  return io::read_npy(io::FileSource(path, count_), files_.void2);
}

void TensorFiles::is_missing(const std::string& name) const {
  throw Error(ErrorCode::bad_value,
              text(name, " is missing: give ", option_of(name), " FILE.npy, or --in FILE.safetensors with a tensor '",
                   files_.prefix, name, "'"));
}

Loaded load(const InputFiles& files, Progress& progress) {
  const TensorFiles source(files, progress);
  Loaded loaded;
  loaded.op = source.has("dout") ? kBackward : kForward;
  std::vector<std::string_view> known;
  for (const RoleRow& row : kRoleTable)
    if (reads(row, loaded.op)) known.push_back(row.name);
  source.check_names(known);
  for (const RoleRow& row : kRoleTable) {
    if (!reads(row, loaded.op)) {
      want(!files.npy.contains(std::string(row.name)) || std::ranges::find(known, row.name) != known.end(),
           ErrorCode::bad_value, option_of(row.name),
           is_backward(loaded.op) ? " is not supported with dout: gradients do not use it"
                                  : " needs dout: give --dout FILE.npy, or a tensor 'dout' in --in");
      continue;
    }
    std::optional<io::Array> array = source.find(row.name);
    if (!array) continue;
    const Tensor t = loaded.arrays.emplace_back(*std::move(array)).view();
    row.input ? void(loaded.tensors.*row.input = t) : void(loaded.tensors.*row.output = t);
  }
  for (const auto& [name, path] : files.buffers) {
    loaded.arrays.push_back(source.read(path));
    loaded.tensors.mod_buffers.push_back({name, loaded.arrays.back().view()});
  }
  for (const RoleRow& row : kRoleTable) {
    // An output is what a backward's forward gave; it is computed if it is not given.
    if (!row.unit_last || !reads(row, loaded.op) || row.output) continue;
    if (!(loaded.tensors.*row.input).given()) source.is_missing(row.name);
  }
  return loaded;
}

}  // namespace onepass::cli
