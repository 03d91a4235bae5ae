// `onepass run`: attention on tensors from files.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "command.hpp"
#include "core/arguments.hpp"
#include "core/text.hpp"
#include "device_tensors.hpp"
#include "inputs.hpp"
#include "onepass/attention.hpp"
#include "outputs.hpp"
#include "progress.hpp"
#include "streams.hpp"

namespace onepass::cli {
namespace {

struct Flags {
  std::map<std::string, std::string> npy;
  std::vector<std::string> buffers;
  std::string in, prefix, layout = "bhsd", dtype, out_dtype, mask, window, device = "cpu";
  std::optional<double> scale;
  std::optional<std::int64_t> align_offset;
  Attention attention;
  std::string implementation;
  int threads = 0, repeat = 1;
  OutputFiles outputs;
  std::string grads = "dq,dk,dv";
  bool json = false, progress = false;
};

Band band_of(const Flags& flags) {
  Band band;
  band.causal = flags.mask.starts_with("causal");
  if (flags.mask.ends_with("top_left")) band.align = Align::top_left;
  if (flags.mask.ends_with("offset")) band.align = Align::offset;
  if (flags.align_offset.has_value() != (band.align == Align::offset))
    throw Error(ErrorCode::bad_value,
                "--align-offset goes with --mask causal_offset or aligned_offset, and these with it");
  band.offset = flags.align_offset.value_or(0);
  if (flags.window.empty()) return band;
  const char *at = flags.window.data(), *end = at + flags.window.size();
  const auto left = std::from_chars(at, end, band.left);
  const bool colon = left.ec == std::errc{} && left.ptr != end && *left.ptr == ':';
  const auto right = colon ? std::from_chars(left.ptr + 1, end, band.right) : left;
  if (!colon || right.ec != std::errc{} || right.ptr != end) {
    throw Error(ErrorCode::bad_value,
                text("--window is '", flags.window, "'; LEFT:RIGHT in keys is expected, -1 for unbounded"));
  }
  return band;
}

std::map<std::string, std::string> buffers_of(const Flags& flags) {
  std::map<std::string, std::string> buffers;
  for (const std::string& word : flags.buffers) {
    const std::size_t equals = word.find('=');
    if (equals == word.npos || !buffers.emplace(word.substr(0, equals), word.substr(equals + 1)).second)
      throw Error(ErrorCode::bad_value, text("--buffer is '", word, "'; NAME=FILE.npy, each name once, is expected"));
  }
  return buffers;
}

// Where a result goes. Its shape follows the inputs'; that those fit is checked before memory is had.
struct Result {
  const RoleRow* row;
  DType dtype;
  io::Shape shape;  // of the file
  std::optional<io::Array> memory{};
};
using Results = std::vector<Result>;

io::Shape file_shape(const Flags& flags, const RoleRow& row, const ConstTensor& t) {
  io::Shape shape(t.shape.begin(), t.shape.begin() + t.rank);
  if (flags.layout == "bshd" && row.unit_last && t.rank == 4) std::swap(shape[1], shape[2]);
  return shape;
}

// out, and lse if it is wanted
Results forward_results(const Flags& flags, const Tensors& a, DType out_dtype, bool want_lse) {
  ConstTensor out = a.q;
  out.shape[out.rank - 1] = a.v.shape[a.v.rank - 1];
  const RoleRow &of_out = row_of(Role::out), &of_lse = row_of(Role::lse);
  Results r;
  r.push_back({&of_out, out_dtype, file_shape(flags, of_out, out)});
  const io::Shape packed{a.q.shape[1], a.q.shape[0]}, rows{a.q.shape[0], a.q.shape[1], a.q.shape[2]};
  if (want_lse) r.push_back({&of_lse, DType::f32, a.q.rank == 3 ? packed : rows});
  return r;
}

DType out_dtype_of(const Flags& flags, DType of_q) {
  if (!flags.out_dtype.empty()) return dtype_from_name(flags.out_dtype);
  return of_q == DType::f8e4m3 ? DType::bf16 : of_q;
}

// The gradients that --grads names.
Results gradient_results(const Flags& flags, const Tensors& a) {
  want(is_safetensors(flags.outputs.out) && !flags.outputs.want_lse, ErrorCode::bad_value,
       "gradients go into one file, --out FILE.safetensors, without --lse");
  const Problem named = parse_problem(text("bwd s0 fp32 bias=fp32:1111 sinks alibi grads=", flags.grads));
  Results r;
  for (const RoleRow& row : kRoleTable) {
    if (!is_asked(named.gradients, row.role)) continue;
    const RoleRow& base = row_of(row.gradient_of);
    const ConstTensor of = tensor_of(a, base);
    want(of.given(), ErrorCode::bad_value, "--grads asks for ", row.name, " but there is no ", base.name);
    const bool wide = row.types == Types::f32 || flags.out_dtype == "fp32";
    r.push_back({&row, wide ? DType::f32 : a.q.dtype, file_shape(flags, row, of)});
  }
  return r;
}

Tensor oriented(const Flags& flags, const RoleRow& row, Tensor t) {
  return flags.layout == "bshd" && row.unit_last && t.rank == 4 ? t.permuted({0, 2, 1, 3}) : t;
}

Problem checked_problem(const Flags& flags, Tensors tensors, const Results& results, const Attention& attention) {
  static std::byte somewhere;  // no element of it is touched
  const auto placeholder = [&](const char* name, const io::Shape& shape, DType dtype) {
    Tensor t;
    t.data = &somewhere;
    t.dtype = dtype;
    t.device = tensors.q.device;
    t.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape.begin());
    io::elements_of(name, shape);
    std::int64_t step = 1;
    for (int i = t.rank - 1; i >= 0; --i) {
      t.stride[i] = step;
      step *= std::max<std::int64_t>(shape[i], 1);
    }
    return t;
  };
  for (const Result& r : results)
    tensors.*r.row->output = oriented(flags, *r.row, placeholder(r.row->name, r.shape, r.dtype));
  Problem problem = make_problem(attention, tensors);
  problem.alignment = kAligned;  // all memory here is allocated, and so is what the placeholders stand for
  return problem;
}

// `on_device` is null on the CPU.
double seconds_of(const Flags& flags, const Plan& plan, const Tensors& tensors, Executor& executor,
                  DeviceTensors* on_device) {
  Progress progress("computing", flags.progress);
  ProgressExecutor counting(executor, progress);
  const std::size_t bytes = plan.workspace_bytes();
  const io::Array in_memory("the workspace", DType::boolean, {on_device ? 0 : static_cast<std::int64_t>(bytes)});
  void* const workspace = on_device ? on_device->scratch(bytes) : in_memory.data();
  const Launch launch{.executor = &counting, .workspace = {static_cast<std::byte*>(workspace), bytes}};
  std::vector<double> times;
  for (int i = 0; i < flags.repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run(plan, tensors, launch);
    if (on_device) on_device->wait();
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + flags.repeat / 2, times.end());
  return times[static_cast<std::size_t>(flags.repeat / 2)];
}

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} us", seconds * 1e6)
         : seconds < 1  ? fmt::format("{:.2f} ms", seconds * 1e3)
                        : fmt::format("{:.2f} s", seconds);
}

WrittenOutputs write(const Flags& flags, const Results& results) {
  Progress progress("writing", flags.progress);
  NamedArrays arrays;
  std::int64_t done = 0, total = 0;
  for (const Result& r : results) {
    arrays.emplace_back(r.row->name, &*r.memory);
    total += static_cast<std::int64_t>(r.memory->bytes());
  }
  const auto count = [&](std::size_t bytes) { progress.at(done += static_cast<std::int64_t>(bytes), total); };
  return {flags.outputs, arrays, count};
}

void report(const Flags& flags, const Problem& problem, const Plan& plan, const Executor& executor, double seconds) {
  if (flags.json) {
    nlohmann::ordered_json j{{"problem", to_string(problem)},
                             {"implementation", plan.name()},
                             {"config", plan.describe()},
                             {"threads", executor.workers()},
                             {"seconds", seconds},
                             {"repeat", flags.repeat},
                             {"out", flags.outputs.out}};
    if (!flags.outputs.lse.empty()) j["lse"] = flags.outputs.lse;
    print_json(j);
    return;
  }
  fmt::print("{}\n{}: {}\n{}{}, {} thread{}\n", to_string(problem), plan.name(), plan.describe(), time_text(seconds),
             flags.repeat > 1 ? fmt::format(" (median of {})", flags.repeat) : "", executor.workers(),
             executor.workers() == 1 ? "" : "s");
}

void run_command(Flags& flags) {
  const Device device = device_from(flags.device);
  check_destinations(flags.outputs);
  Attention attention = flags.attention;
  attention.band = band_of(flags);
  attention.scale = flags.scale;
  const InputFiles files{flags.npy,
                         buffers_of(flags),
                         flags.in,
                         flags.prefix,
                         flags.dtype.empty() ? std::nullopt : std::optional(dtype_from_name(flags.dtype)),
                         flags.layout == "bshd"};
  Loaded loaded = [&] {
    Progress progress("reading", flags.progress);
    return load(files, progress);
  }();
  const bool backward = loaded.op == Op::backward;
  const bool forward_first = backward && !loaded.tensors.out.given() && !loaded.tensors.lse.given();
  if (forward_first) {  // what it reads of its forward
    const DType dtype = loaded.tensors.dout.dtype;
    for (const Result& r : forward_results(flags, loaded.tensors, dtype, true)) {
      loaded.arrays.emplace_back(r.row->name, r.dtype, r.shape);
      loaded.tensors.*r.row->output = oriented(flags, *r.row, loaded.arrays.back().view());
    }
  }
  Tensors tensors = loaded.tensors;
  Results results = backward
                        ? gradient_results(flags, tensors)
                        : forward_results(flags, tensors, out_dtype_of(flags, tensors.q.dtype), flags.outputs.want_lse);
  Attention first = attention;
  Tensors on_host = tensors;
  if (device.kind == DeviceKind::cuda) {  // whose compiler takes more than the CPU's interpreter
    first.score_mod = first.mask_mod = "";
    on_host.mod_buffers.clear();
  }
  Problem problem = checked_problem(flags, on_host, results, first);
  std::optional<DeviceTensors> on_device;
  if (device.kind == DeviceKind::cuda) {  // what only host memory shows, such as cu_seqlens, has been checked
    tensors = on_device.emplace(device).copied(tensors, loaded.arrays);
    bound_lengths(attention, problem);
    problem = checked_problem(flags, tensors, results, attention);
  }
  const std::shared_ptr<Executor> executor = make_executor(flags.threads);
  const Plan plan = make_plan(problem, flags.implementation, executor.get());
  const auto placed = [&](const io::Array& memory) {
    return on_device ? on_device->copied(memory.view(), memory) : memory.view();
  };
  std::vector<Tensor> as_in_files;
  for (Result& r : results) {
    as_in_files.push_back(placed(r.memory.emplace(r.row->name, r.dtype, r.shape)));
    tensors.*r.row->output = oriented(flags, *r.row, as_in_files.back());
  }
  if (forward_first) onepass::attention(tensors_of(Op::forward, tensors), attention, {.executor = executor.get()});
  const double seconds = seconds_of(flags, plan, tensors, *executor, on_device ? &*on_device : nullptr);
  for (std::size_t i = 0; on_device && i < results.size(); ++i) on_device->fetch(as_in_files[i], *results[i].memory);
  WrittenOutputs written = write(flags, results);
  report(flags, problem, plan, *executor, seconds);
  flush_output();  // a caller who cannot be told gets no files either
  written.commit();
}

}  // namespace

void add_run(CLI::App& app) {
  CLI::App* c = app.add_subcommand(
      "run", "Compute attention, or with --dout its gradients, on tensors from .npy or .safetensors files");
  auto flags = std::make_shared<Flags>();
  for (const RoleRow& row : kRoleTable) {
    if (!row.input) continue;
    c->add_option_function<std::string>(
         option_of(row.name), [flags, &row](const std::string& file) { flags->npy[row.name] = file; },
         std::string(".npy: ") + row.help)
        ->group("Tensors")
        ->type_name("FILE");
  }
  c->add_option("--in", flags->in, ".safetensors with tensors of these names")->group("Tensors")->type_name("FILE");
  c->add_option("--prefix", flags->prefix, "Of the names in --in, such as layers.0.")->group("Tensors");
  c->add_option("--layout", flags->layout, "Of q, k, v and out: bhsd (default) or bshd")
      ->group("Tensors")
      ->check(CLI::IsMember({"bhsd", "bshd"}));
  c->add_option("--dtype", flags->dtype, "What .npy files of dtype '<V2' (ml_dtypes) hold: bf16")
      ->group("Tensors")
      ->check(CLI::IsMember({"bf16"}));
  c->add_option("--out", flags->outputs.out, "Result: .npy, or .safetensors with out (and lse), or with gradients")
      ->group("Results")
      ->required()
      ->type_name("FILE");
  CLI::Option* lse = c->add_option("--lse", flags->outputs.lse,
                                   "Log-sum-exp of every row too: .npy; no file if --out is .safetensors");
  lse->group("Results")->expected(0, 1)->type_name("FILE");
  c->add_option("--grads", flags->grads, "With --dout: which gradients, of dq,dk,dv,dbias,dsinks,dalibi_slopes")
      ->group("Results")
      ->default_str("dq,dk,dv");
  c->add_flag("--deterministic", flags->attention.deterministic, "With --dout: the same bits every time")
      ->group("Running");
  c->add_option("--out-dtype", flags->out_dtype, "Of out, or of dq, dk and dv: fp32, or the dtype of q (default)")
      ->group("Results")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  c->add_option(
       "--mask", flags->mask,
       "causal_bottom_right, causal_top_left, causal_offset; aligned_top_left, aligned_offset for --window alone")
      ->group("Scores")
      ->check(CLI::IsMember(
          {"causal_bottom_right", "causal_top_left", "causal_offset", "aligned_top_left", "aligned_offset"}));
  c->add_option("--align-offset", flags->align_offset, "Of --mask causal_offset: query i sees keys 0 to i + N")
      ->group("Scores")
      ->type_name("N");
  c->add_option("--window", flags->window, "LEFT:RIGHT keys around the diagonal, -1 for unbounded")->group("Scores");
  c->add_option("--scale", flags->scale, "Of q.k; default 1/sqrt(dim)")->group("Scores");
  c->add_option("--softcap", flags->attention.softcap, "c: scores become c tanh(score / c)")->group("Scores");
  c->add_option_function<std::string>("--accumulation",
                                      [flags](const std::string& name) {
                                        flags->attention.accumulation =
                                            name == "fast" ? Accumulation::fast : Accumulation::exact;
                                      })
      ->description("Of products of fp8_e4m3 q, k and v: exact (default) or fast")
      ->group("Scores")
      ->check(CLI::IsMember({"exact", "fast"}));
  c->add_option("--score-mod", flags->attention.score_mod, "C++ expression: the new score (docs/score_mod.md)")
      ->group("Scores");
  c->add_option("--mask-mod", flags->attention.mask_mod, "C++ expression: true where the query sees the key")
      ->group("Scores");
  c->add_option("--buffer", flags->buffers, "NAME=FILE.npy: a tensor that the expressions read; may be repeated")
      ->group("Scores");
  c->add_option("--dropout", flags->attention.dropout_p, "Probability in [0, 1]")->group("Scores");
  c->add_option("--seed", flags->attention.seed, "Of the dropout")->check(CLI::NonNegativeNumber)->group("Scores");
  c->add_option("--implementation", flags->implementation,
                "By name, as in onepass info; default: the first that accepts")
      ->group("Running");
  c->add_option("--device", flags->device, "cpu (default), cuda or cuda:1: tensors are copied there and back")
      ->group("Running");
  c->add_option("--threads", flags->threads, "Default: all")->group("Running")->check(CLI::Range(1, 1024));
  c->add_option("--repeat", flags->repeat, "Run so often and print the median time")
      ->group("Running")
      ->check(CLI::Range(1, 1000000));
  c->add_flag("--json", flags->json, "Print JSON")->group("Running");
  add_progress_flag(*c, flags->progress);
  c->callback([flags, lse] {
    flags->outputs.want_lse = lse->count() > 0;
    run_command(*flags);
  });
}

}  // namespace onepass::cli
