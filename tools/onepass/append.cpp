// `onepass append`: new keys and values into a cache from files.
#include <array>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "base/text.hpp"
#include "onepass/append.hpp"
#include "plan/plan.hpp"
#include "problem/callers_layout.hpp"
#include "tools/onepass/command.hpp"
#include "tools/onepass/device_tensors.hpp"
#include "tools/onepass/inputs.hpp"
#include "tools/onepass/outputs.hpp"
#include "tools/onepass/progress.hpp"
#include "tools/onepass/streams.hpp"

namespace onepass::cli {
namespace {

struct Row {
  const char* name;
  const char* help;
  ConstTensor AppendTensors::* input;
  Tensor AppendTensors::* output;  // one of the two
};
constexpr std::array<Row, 13> kRows{
    {{"k_new", "new keys [batch, heads_kv, seq, dim]", &AppendTensors::k_new, nullptr},
     {"v_new", "new values [batch, heads_kv, seq, dim_v]", &AppendTensors::v_new, nullptr},
     {"k", "the cache [batch, heads_kv, capacity, dim], or pages [pages, page_size, heads_kv, dim]", nullptr,
      &AppendTensors::k},
     {"v", "the cache of values, shaped as k", nullptr, &AppendTensors::v},
     {"cache_seqlens", "int32 [batch]: the lengths before the new tokens", &AppendTensors::cache_seqlens, nullptr},
     {"slot_mapping", "int64 or int32 [tokens]: slots page_size * page + offset, in place of lengths and a table",
      &AppendTensors::slot_mapping, nullptr},
     {"positions", "int32 or int64 [tokens]: with slot_mapping, rows of cos and sin", &AppendTensors::positions,
      nullptr},
     {"page_table", "int32 [batch, pages]: k and v are pages", &AppendTensors::page_table, nullptr},
     {"cu_seqlens_q", "int32 [batch + 1]: k_new, v_new and q are packed [total, heads, dim]",
      &AppendTensors::cu_seqlens_q, nullptr},
     {"cos", "[positions, rotary_dim / 2]: k_new and q are rotated", &AppendTensors::cos, nullptr},
     {"sin", "shaped as cos", &AppendTensors::sin, nullptr},
     {"cos_sin_cache", "[positions, rotary_dim]: cos in the left half of the columns, sin in the right",
      &AppendTensors::cos_sin_cache, nullptr},
     {"q", "queries [batch, heads, seq, dim], rotated as the keys", &AppendTensors::q, nullptr}}};

struct Flags {
  InputFiles files;
  std::string layout = "bhsd", dtype, device = "cpu";
  OutputFiles outputs;
  bool interleaved = false, progress = false;
  int threads = 0;
};

// The output is a copy of the input: a file changes only where --out names it.
void append_command(Flags& flags) {
  const Device device = device_from(flags.device);
  want(is_safetensors(flags.outputs.out), ErrorCode::bad_value,
       "--out must be FILE.safetensors, which holds k, v and q (got '", flags.outputs.out, "')");
  check_destinations(flags.outputs);
  if (!flags.dtype.empty()) flags.files.void2 = dtype_from_name(flags.dtype);
  Progress reading("reading", flags.progress);
  const TensorFiles source(flags.files, reading);
  std::vector<std::string_view> known;
  known.reserve(std::size(kRows));
  for (const Row& row : kRows) known.push_back(row.name);
  source.check_names(known);

  const std::shared_ptr<Executor> executor = make_executor(flags.threads);
  const CallersLayout layout(flags.layout == "bshd", source.has("page_table") || source.has("slot_mapping"));
  std::optional<DeviceTensors> on_device;
  if (device.kind == DeviceKind::cuda) on_device.emplace(device);
  std::deque<io::Array> arrays;
  std::vector<std::pair<Tensor, io::Array*>> written;
  NamedArrays results;
  AppendTensors tensors;
  for (const Row& row : kRows) {
    std::optional<io::Array> array = source.find(row.name);
    if (!array) {
      if (row.output || row.input == &AppendTensors::k_new || row.input == &AppendTensors::v_new)
        source.is_missing(row.name);
      continue;
    }
    io::Array& memory = arrays.emplace_back(*std::move(array));
    Tensor t = memory.view();
    if (on_device) t = on_device->copied(t, memory);
    const bool is_q = row.input == &AppendTensors::q;
    if (row.output || is_q) written.emplace_back(t, &memory), results.emplace_back(row.name, &memory);
    t = turned(row.name, t);
    row.output ? void(tensors.*row.output = t) : void(tensors.*row.input = t);
    if (is_q) tensors.q_out = t;
  }
  append_kv(tensors, flags.interleaved, {.executor = executor.get()});
  if (on_device) {
    on_device->wait();
    for (const auto& [from, into] : written) on_device->fetch(from, *into);
  }
  Progress progress("writing", flags.progress);
  std::int64_t done = 0, total = 0;
  for (const auto& [name, array] : results) total += static_cast<std::int64_t>(array->bytes());
  WrittenOutputs files(flags.outputs, results,
                       [&](std::size_t bytes) { progress.at(done += static_cast<std::int64_t>(bytes), total); });
  fmt::print("appended {} to {}\n", shape_text(turned("k_new", tensors.k_new)), shape_text(turned("k", tensors.k)));
  flush_output();  // if stdout cannot be written, no file is
  files.commit();
}

}  // namespace

void add_append(const Command& app) {
  const Command c =
      app.subcommand("append", "Append new keys and values from files to a cache; cos and sin rotate the new keys");
  auto flags = std::make_shared<Flags>();
  for (const Row& row : kRows) {
    c.option(
         option_of(row.name), [flags, &row](const std::string& file) { flags->files.npy[row.name] = file; },
         std::string(".npy: ") + row.help)
        .group("Tensors")
        .type_name("FILE");
  }
  c.option("--in", flags->files.safetensors, ".safetensors with tensors of these names")
      .group("Tensors")
      .type_name("FILE");
  c.option("--prefix", flags->files.prefix, "Prefix of the tensor names in --in, such as layers.0.").group("Tensors");
  c.option("--layout", flags->layout, "Layout of all tensors except pages: bhsd (default) or bshd")
      .group("Tensors")
      .one_of({"bhsd", "bshd"});
  c.option("--dtype", flags->dtype, "Dtype of .npy files that say '<V2', as ml_dtypes writes them: bf16")
      .group("Tensors")
      .one_of({"bf16"});
  c.flag("--interleaved", flags->interleaved, "Rotate the pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)");
  c.option("--out", flags->outputs.out, "Result: .safetensors with k and v, and q if it is given")
      .group("Results")
      .required()
      .type_name("FILE");
  c.option("--device", flags->device, "cpu (default), cuda or cuda:N; tensors are copied to the device and back")
      .group("Running");
  c.option("--threads", flags->threads, "Number of threads; default: all cores").group("Running").range(1, 1024);
  add_progress_flag(c, flags->progress);
  c.on_run([flags] { append_command(*flags); });
}

}  // namespace onepass::cli
