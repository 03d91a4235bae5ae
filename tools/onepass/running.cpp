#include "tools/onepass/running.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "onepass/attention.hpp"
#include "plan/plan.hpp"
#include "tools/onepass/command.hpp"
#include "tools/onepass/progress.hpp"
#include "tools/onepass/streams.hpp"

namespace onepass::cli {
namespace {

double seconds_of(const Running& running, const Plan& plan, const Tensors& tensors, Executor& executor,
                  DeviceTensors* on_device) {
  Progress progress("computing", running.progress);
  ProgressExecutor counting(executor, progress);
  const std::size_t bytes = plan.workspace_bytes();
  const io::Array in_memory("the workspace", DType::boolean, {on_device ? 0 : static_cast<std::int64_t>(bytes)});
  void* const workspace = on_device ? on_device->scratch(bytes) : in_memory.data();
  const Launch launch{.executor = &counting, .workspace = {static_cast<std::byte*>(workspace), bytes}};
  std::vector<double> times;
  for (int i = 0; i < running.repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run(plan, tensors, launch);
    if (on_device) on_device->wait();
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + running.repeat / 2, times.end());
  return times[static_cast<std::size_t>(running.repeat / 2)];
}

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} us", seconds * 1e6)
         : seconds < 1  ? fmt::format("{:.2f} ms", seconds * 1e3)
                        : fmt::format("{:.2f} s", seconds);
}

WrittenOutputs write(const Running& running, const Results& results) {
  Progress progress("writing", running.progress);
  NamedArrays arrays;
  std::int64_t done = 0, total = 0;
  for (const Result& r : results) {
    arrays.emplace_back(r.row->name, &*r.memory);
    total += static_cast<std::int64_t>(r.memory->bytes());
  }
  const auto count = [&](std::size_t bytes) { progress.at(done += static_cast<std::int64_t>(bytes), total); };
  return {running.outputs, arrays, count};
}

void report(const Running& running, const Problem& problem, const Plan& plan, const Executor& executor,
            double seconds) {
  if (running.json) {
    nlohmann::ordered_json j{{"problem", to_string(problem)},
                             {"implementation", plan.name()},
                             {"config", plan.describe()},
                             {"threads", executor.workers()},
                             {"seconds", seconds},
                             {"repeat", running.repeat},
                             {"out", running.outputs.out}};
    for (const RowFile* rows : running.outputs.wanted_rows())
      if (!rows->path.empty()) j[row_of(rows->role).name] = rows->path;
    print_json(j);
    return;
  }
  fmt::print("{}\n{}: {}\n{}{}, {} thread{}\n", to_string(problem), plan.name(), plan.describe(), time_text(seconds),
             running.repeat > 1 ? fmt::format(" (median of {})", running.repeat) : "", executor.workers(),
             executor.workers() == 1 ? "" : "s");
}

}  // namespace

InputFiles Running::files() const {
  return {npy, {}, in, prefix, dtype.empty() ? std::nullopt : std::optional(dtype_from_name(dtype))};
}

void add_tensor_option(const Command& command, Running& running, const RoleRow& row) {
  command
      .option(
          option_of(row.name), [&running, &row](const std::string& file) { running.npy[row.name] = file; },
          std::string(".npy: ") + row.help)
      .group("Tensors")
      .type_name("FILE");
}

void add_row_file(const Command& command, RowFile& rows, const std::string& help) {
  command
      .optional_word(
          rows.option,
          [&rows](const std::string& file) {
            rows.wanted = true;
            rows.path = file;
          },
          help + ": .npy; without a file if --out is .safetensors")
      .group("Results")
      .type_name("FILE");
}

void add_running_options(const Command& command, Running& running) {
  command.option("--in", running.in, ".safetensors with tensors of these names").group("Tensors").type_name("FILE");
  command.option("--prefix", running.prefix, "Prefix of the tensor names in --in, such as layers.0.").group("Tensors");
  command.option("--dtype", running.dtype, "Dtype of .npy files that say '<V2', as ml_dtypes writes them: bf16")
      .group("Tensors")
      .one_of({"bf16"});
  command
      .option("--implementation", running.implementation,
              "Name of the implementation, as in onepass info; default: the first that supports the problem")
      .group("Running");
  command.option("--device", running.device, "cpu (default), cuda or cuda:N; tensors are copied to the device and back")
      .group("Running");
  command.option("--threads", running.threads, "Number of threads; default: all cores").group("Running").range(1, 1024);
  command.option("--repeat", running.repeat, "Number of runs; prints the median time")
      .group("Running")
      .range(1, 1000000);
  command.flag("--json", running.json, "Print JSON").group("Running");
  add_progress_flag(command, running.progress);
}

Tensor placeholder(const Result& result, Device device) {
  static std::byte somewhere;  // no element of it is touched
  io::elements_of(result.row->name, result.shape);
  Tensor t;
  t.data = &somewhere;
  t.dtype = result.dtype;
  t.device = device;
  t.rank = static_cast<int>(result.shape.size());
  std::copy(result.shape.begin(), result.shape.end(), t.shape.begin());
  std::int64_t step = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.stride[i] = step;
    step *= std::max<std::int64_t>(result.shape[static_cast<std::size_t>(i)], 1);
  }
  return t;
}

void set_output(Tensors& tensors, const RoleRow& row, const Tensor& t) { tensors.*row.output = t; }

void compute(const Running& running, const Problem& problem, Tensors tensors, Results& results,
             DeviceTensors* on_device, const Orient& orient,
             const std::function<void(const Tensors&, Executor&)>& first) {
  const std::shared_ptr<Executor> executor = make_executor(running.threads);
  const Plan plan = make_plan(problem, running.implementation, executor.get());
  std::vector<Tensor> as_in_files;
  for (Result& r : results) {
    const io::Array& memory = r.memory.emplace(r.row->name, r.dtype, r.shape);
    const Tensor t = on_device ? on_device->copied(memory.view(), memory) : memory.view();
    as_in_files.push_back(t);
    set_output(tensors, *r.row, orient ? orient(*r.row, t) : t);
  }
  if (first) first(tensors, *executor);
  const double seconds = seconds_of(running, plan, tensors, *executor, on_device);
  for (std::size_t i = 0; on_device && i < results.size(); ++i) on_device->fetch(as_in_files[i], *results[i].memory);
  WrittenOutputs written = write(running, results);
  report(running, problem, plan, *executor, seconds);
  flush_output();  // if stdout cannot be written, no file is
  written.commit();
}

}  // namespace onepass::cli
