#include "inputs.hpp"

#include <algorithm>
#include <filesystem>

#include "onepass/error.hpp"
#include "tools/onepass/io/npy.hpp"
#include "tools/onepass/io/safetensors.hpp"

namespace onepass::cli {
namespace {

constexpr Input kInputs[] = {
    {"q", &Arguments::q, "queries [batch, heads, seq, dim]"},
    {"k", &Arguments::k, "keys [batch, heads_kv, seq, dim]"},
    {"v", &Arguments::v, "values [batch, heads_kv, seq, dim_v]"},
    {"bias", &Arguments::bias, "added to the scores [batch|1, heads|1, seq_q|1, seq_k|1]"},
    {"bool_mask", &Arguments::bool_mask, "bool, true = may attend, shaped as bias"},
    {"alibi_slopes", &Arguments::alibi_slopes, "fp32 [heads] or [batch, heads]"},
    {"sinks", &Arguments::sinks, "fp32 [heads], logits that join the denominator"},
    {"cu_seqlens_q", &Arguments::cu_seqlens_q, "int32 [batch + 1]: q is packed [total, heads, dim]"},
    {"cu_seqlens_k", &Arguments::cu_seqlens_k, "int32 [batch + 1]: k and v are packed"},
};

// A misspelt name must not leave a mask or a bias out in silence.
void check_names(const io::Safetensors& file, const InputFiles& files) {
  for (const auto& [name, entry] : file.entries()) {
    if (!name.starts_with(files.prefix)) continue;
    const std::string rest = name.substr(files.prefix.size());
    if (std::any_of(std::begin(kInputs), std::end(kInputs), [&](const Input& i) { return rest == i.name; })) continue;
    std::string known;
    for (const Input& input : kInputs) known += (known.empty() ? "" : ", ") + std::string(input.name);
    throw Error(ErrorCode::bad_file, text(files.safetensors, " holds '", name, "', which is no input; inputs are ",
                                          known, " (with --prefix only names that begin with it are looked at)"));
  }
}

}  // namespace

std::span<const Input> inputs() { return kInputs; }

std::string option_of(const Input& input) {
  std::string option = std::string("--") + input.name;
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
    check_names(*safetensors, files);
  }
  for (const Input& input : kInputs) {
    const auto npy = files.npy.find(input.name);
    if (npy != files.npy.end()) {
      loaded.arrays.push_back(io::read_npy(io::FileSource(npy->second, count), files.void2));
    } else if (safetensors && safetensors->has(files.prefix + input.name)) {
      loaded.arrays.push_back(safetensors->read(files.prefix + input.name));
    } else {
      continue;
    }
    loaded.tensors.*input.tensor = loaded.arrays.back().view();
  }
  for (const auto& [name, path] : files.buffers) {
    loaded.arrays.push_back(io::read_npy(io::FileSource(path, count), files.void2));
    loaded.tensors.mod_buffers.push_back({name, loaded.arrays.back().view()});
  }
  for (const Input& input : std::span(kInputs).first(3)) {
    Tensor& t = loaded.tensors.*input.tensor;
    if (!t.given()) {
      throw Error(ErrorCode::bad_value,
                  text(input.name, " is missing: give ", option_of(input),
                       " FILE.npy, or --in FILE.safetensors with a tensor '", files.prefix, input.name, "'"));
    }
    if (files.bshd && t.rank == 4) t = t.permuted({0, 2, 1, 3});
  }
  return loaded;
}

}  // namespace onepass::cli
