// `onepass info`: this build, this machine, and which kernels meet.
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/cpu_info.hpp"
#include "base/text.hpp"
#include "cpu/common/place.hpp"
#include "cuda/compile/cubin_cache.hpp"
#include "cuda/host/kernels.hpp"
#include "onepass/executor.hpp"
#include "onepass/version.hpp"
#include "plan/implementations.hpp"
#include "problem/roles.hpp"
#include "reference/reference.hpp"
#include "tools/onepass/command.hpp"
#include "tools/onepass/machine.hpp"

namespace onepass::cli {
namespace {

// An implementation is usable here if it accepts one of these: prefill and decode in every dtype, then the first GPU.
constexpr const char* kProbes[] = {"h8 s512 d64 bf16",     "h8 s512 d64 fp32",   "h8 s512 d64 fp16",
                                   "h8 s1x512 d64 bf16",   "h8 s1x512 d64 fp32", "h8 s1x512 d64 fp16",
                                   "h8 s512 d64 bf16 cuda"};

struct Kernel {
  std::string name, refusal;  // empty: usable
};

std::vector<Kernel> kernels() {
  std::vector<Kernel> all;
  std::vector<const Implementation*> rows = plan::implementations();
  std::erase_if(rows, [](const Implementation* row) { return reference::is_reference(*row); });  // comes last, once
  for (const Implementation* row : plan::implementations(kBackward)) rows.push_back(row);
  for (const Implementation* row : rows) {
    const bool on_cuda = std::string_view(row->name).starts_with("cuda.");
    const auto refusal = [&](const char* probe) {
      return why_not(*row, parse_problem(text(row->op->word, " ", probe)));
    };
    Kernel kernel{row->name, refusal(on_cuda ? std::end(kProbes)[-1] : kProbes[0])};
    for (const char* probe : kProbes)
      if (refusal(probe).empty()) kernel.refusal.clear();
    all.push_back(std::move(kernel));
  }
  return all;
}

// The calls of an engine or a trainer, and which kernel each gets here.
struct CallKind {
  const char *name, *line;
};
constexpr CallKind kCallKinds[] = {
    {"prefill", "fwd b1 h32/8 s4096 d128 {} causal_bottom_right"},
    {"decoding", "fwd b16 h32/8 s1x4096 d128 {} causal_bottom_right"},
    {"a serving step", "fwd h32/8 d128 {} varlen=1,1,512 kv=paged:16 causal_bottom_right"},
    {"FP8 cache", "fwd b16 h32/8 s1x4096 d128 {} kv_dtype=fp8_e4m3"},
    {"gradients", "bwd b1 h32/8 s4096 d128 {} causal_bottom_right"}};
constexpr const char* kCallTypes[] = {"bf16", "fp16", "fp32"};

struct KernelOfCall {
  std::string device, call, dtype, kernel;
};
std::vector<KernelOfCall> kernels_of_calls(bool with_cuda) {
  std::vector<KernelOfCall> all;
  for (const bool cuda : {false, true}) {
    if (cuda && !with_cuda) continue;
    for (const CallKind& kind : kCallKinds) {
      for (const char* dtype : kCallTypes) {
        const Problem p = parse_problem(fmt::format(fmt::runtime(kind.line), dtype) + (cuda ? " cuda" : ""));
        const auto rows = plan::implementations(p.op);
        const auto takes = [&](const Implementation* row) { return why_not(*row, p).empty(); };
        const auto row = std::ranges::find_if(rows, takes);
        all.push_back({cuda ? "cuda" : "cpu", kind.name, dtype, row == rows.end() ? "none" : (*row)->name});
      }
    }
  }
  return all;
}

std::string library_of(const void* function) {
  Dl_info found{};
  return dladdr(function, &found) != 0 && found.dli_fname ? found.dli_fname : "";
}

// The needs of CUDA kernels: the driver with a GPU to run, NVRTC to compile those that are not in the cache.
struct CudaState {
  std::string driver_refusal, nvrtc_refusal, compiler, compiler_path;
  std::vector<std::string> devices;
};
CudaState cuda_state() {
  CudaState c;
  if (const cuda::Driver* d = cuda::driver(&c.driver_refusal)) {
    int count = 0;
    d->device_count(&count);
    for (int i = 0; i < count; ++i) {
      const cuda::DeviceFacts& f = cuda::device_facts(i);
      c.devices.push_back(fmt::format("{} ({}.{}, {} multiprocessors)", f.name, f.major, f.minor, f.multiprocessors));
    }
  }
  if (const cuda::Nvrtc* n = cuda::nvrtc(&c.nvrtc_refusal)) {
    c.compiler = fmt::format("{}.{}", n->major, n->minor);
    c.compiler_path = library_of(reinterpret_cast<const void*>(n->version));
  }
  return c;
}

// Where compiled kernels are read from: label, directory.
std::vector<std::pair<const char*, std::filesystem::path>> kernel_directories() {
  std::vector<std::pair<const char*, std::filesystem::path>> all;
  if (const auto d = cuda::prebuilt_directory(); !d.empty()) all.emplace_back("prebuilt", d);
  if (const auto d = cache_directory(); !d.empty()) all.emplace_back("cache", d);
  return all;
}

nlohmann::ordered_json as_json() {
  nlohmann::ordered_json j{{"version", version()},
                           {"cpu", cpu_name()},
                           {"cpus", usable_cpus()},
                           {"threads", default_executor().workers()},
                           {"simd", cpu::target_names()}};
  for (const Feature& f : features()) j["features"][f.name] = f.present;
  j["caches"] = nlohmann::ordered_json::array();
  for (const Cache& c : caches())
    j["caches"].push_back({{"level", c.level}, {"type", c.type}, {"bytes", c.bytes}, {"shared_by", c.shared_by}});
  for (const Kernel& k : kernels()) {
    j["implementations"].push_back({{"name", k.name}, {"usable", k.refusal.empty()}});
    if (!k.refusal.empty()) j["implementations"].back()["why_not"] = k.refusal;
  }
  const CudaState c = cuda_state();
  for (const KernelOfCall& k : kernels_of_calls(!c.devices.empty()))
    j["calls"].push_back({{"device", k.device}, {"call", k.call}, {"dtype", k.dtype}, {"implementation", k.kernel}});
  j["cuda"] = {{"usable", c.driver_refusal.empty()}, {"devices", c.devices}};
  if (!c.driver_refusal.empty()) j["cuda"]["why_not"] = c.driver_refusal;
  j["nvrtc"] = {{"usable", c.nvrtc_refusal.empty()}};
  c.nvrtc_refusal.empty() ? j["nvrtc"]["version"] = c.compiler : j["nvrtc"]["why_not"] = c.nvrtc_refusal;
  if (!c.compiler_path.empty()) j["nvrtc"]["library"] = c.compiler_path;
  for (const auto& [label, directory] : kernel_directories()) {
    const cuda::CubinDirectory found = cuda::look_through(directory);
    auto& entry = j["compiled_kernels"][label];
    entry = {{"directory", directory.string()}, {"kernels", found.kernels}, {"refused", found.refusals}};
    if (!found.refusal.empty()) entry["why_not"] = found.refusal;
  }
  return j;
}

std::string size_text(std::int64_t bytes) {
  return bytes >= 1 << 20 && bytes % (1 << 20) == 0 ? fmt::format("{} MiB", bytes >> 20)
                                                    : fmt::format("{} KiB", bytes >> 10);
}

void print() {
  std::vector<std::string> present, absent, cache_texts;
  for (const Feature& f : features()) (f.present ? present : absent).push_back(f.name);
  for (const Cache& c : caches()) {
    if (c.type != "instruction")
      cache_texts.push_back(fmt::format("L{}{} {}{}", c.level, c.type == "data" ? "d" : "", size_text(c.bytes),
                                        c.shared_by > 1 ? fmt::format(" (shared by {} CPUs)", c.shared_by) : ""));
  }
  const auto line = [](const char* label, const std::string& value) { fmt::print("{:<9}{}\n", label, value); };
  const auto list = [](const std::vector<std::string>& names) {
    return names.empty() ? std::string("none") : fmt::format("{}", fmt::join(names, ", "));
  };
  line("version", std::string(version()));
  line("cpu", cpu_name());
  line("threads", fmt::format("{} (of {} CPUs this process may use)", default_executor().workers(), usable_cpus()));
  line("simd", list(cpu::target_names()));
  line("present", list(present));
  line("absent", list(absent));
  line("caches", cache_texts.empty() ? "unknown" : list(cache_texts));
  const CudaState c = cuda_state();
  line("cuda", c.driver_refusal.empty() ? list(c.devices) : "no: " + c.driver_refusal);
  line("nvrtc", c.nvrtc_refusal.empty() ? c.compiler + ", " + c.compiler_path : "no: " + c.nvrtc_refusal);
  for (const auto& [label, directory] : kernel_directories()) {
    const cuda::CubinDirectory found = cuda::look_through(directory);
    line(label, !found.refusal.empty() ? "no: " + found.refusal
                                       : fmt::format("{}, {} kernels", directory.string(), found.kernels));
    for (const std::string& refusal : found.refusals) line("", refusal);
  }
  fmt::print("the kernel of a call (d128, 32/8 heads)\n  {:<22}{:<23}{:<23}{}\n", "", kCallTypes[0], kCallTypes[1],
             kCallTypes[2]);
  const auto calls = kernels_of_calls(!c.devices.empty());
  for (std::size_t i = 0; i < calls.size(); i += std::size(kCallTypes))
    fmt::print("  {:<22}{:<23}{:<23}{}\n", calls[i].device + ": " + calls[i].call, calls[i].kernel, calls[i + 1].kernel,
               calls[i + 2].kernel);
  fmt::print("implementations, best first:\n");
  for (const Kernel& k : kernels()) fmt::print("  {:<22}{}\n", k.name, k.refusal.empty() ? "yes" : "no: " + k.refusal);
}

}  // namespace

void add_info(const Command& app) {
  const Command command = app.subcommand("info", "Show this build, this machine and which kernels it can run");
  auto json = std::make_shared<bool>(false);
  command.flag("--json", *json, "Print JSON");
  command.on_run([json] { *json ? print_json(as_json()) : print(); });
}

}  // namespace onepass::cli
