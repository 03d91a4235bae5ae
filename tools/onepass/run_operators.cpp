// `onepass run softmax`, `softmax_bwd`, `flat_gemm` and `linear`: the operators beside attention on tensors from files.
#include <array>
#include <memory>
#include <optional>

#include "base/text.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/softmax/softmax_problem.hpp"
#include "tools/onepass/command.hpp"
#include "tools/onepass/running.hpp"

namespace onepass::cli {
namespace {

struct Operator {
  Op op;
  Role result;
  const char* help;
};
constexpr std::array<Operator, 4> kOperators{
    {{kSoftmax, Role::y, "y, the softmax of the rows of x"},
     {kSoftmaxBackward, Role::dx, "dx, the gradient of a softmax, from y and dy"},
     {kFlatGemm, Role::y, "y = x w^T for few rows of x and a wide matrix w"},
     {kLinear, Role::y, "y = x w^T for any number of rows, by the fastest kernel on this machine"}}};

struct Flags : Running {
  CallOptions options;
};

Tensors read(const Running& flags, Op op, std::deque<io::Array>& arrays) {
  const InputFiles files = flags.files();
  Progress progress("reading", flags.progress);
  const TensorFiles source(files, progress);
  std::vector<std::string_view> known;
  for (const RoleRow& row : kRoleTable)
    if (reads(row, op)) known.push_back(row.name);
  source.check_names(known);
  Tensors tensors;
  for (const RoleRow& row : kRoleTable) {
    if (!reads(row, op)) continue;
    std::optional<io::Array> array = source.find(row.name);
    if (!array && use_of(row, op) == Use::needs) source.is_missing(row.name);
    if (!array) continue;
    const Tensor t = arrays.emplace_back(*std::move(array)).view();
    row.input ? void(tensors.*row.input = t) : set_output(tensors, row, t);
  }
  return tensors;
}

// y or dx, then lse if it is wanted.
Results results_of(const Flags& flags, const Operator& o, const Tensors& t) {
  const ConstTensor rows = reads(row_of(Role::y), o.op) ? ConstTensor(t.y) : t.x;
  io::Shape shape(rows.shape.begin(), rows.shape.begin() + rows.rank);
  if (o.op->matrices) shape = {t.x.shape[0], t.w.shape[0]};
  Results r;
  r.push_back({&row_of(o.result), flags.out_dtype.empty() ? rows.dtype : dtype_from_name(flags.out_dtype), shape});
  if (!flags.outputs.lse.wanted) return r;
  shape.pop_back();
  if (shape.empty()) shape = {1};
  r.push_back({&row_of(Role::lse), DType::f32, shape});
  return r;
}

void run_operator(const Operator& o, const Flags& flags) {
  const Device device = device_from(flags.device);
  check_destinations(flags.outputs);
  std::deque<io::Array> arrays;
  Tensors tensors = read(flags, o.op, arrays);
  Results results = results_of(flags, o, tensors);
  std::optional<DeviceTensors> on_device;
  if (device.kind == DeviceKind::cuda) tensors = on_device.emplace(device).copied(tensors, arrays);
  Tensors planned = tensors;
  for (const Result& r : results) set_output(planned, *r.row, placeholder(r, on_device ? device : Device{}));
  Problem problem = problem_of(o.op, planned, flags.options);
  problem.alignment = kAligned;  // all memory here is allocated, and so is what the placeholders stand for
  compute(flags, problem, tensors, results, on_device ? &*on_device : nullptr);
}

void add(const Command& run, const Operator& o) {
  const Command c = run.subcommand(std::string(o.op->word), o.help);
  auto flags = std::make_shared<Flags>();
  for (const RoleRow& row : kRoleTable)
    if (reads(row, o.op)) add_tensor_option(c, *flags, row);
  add_running_options(c, *flags);
  c.option("--out", flags->outputs.out,
           text("Result: ", row_of(o.result).name, " as .npy, or as .safetensors",
                writes(row_of(Role::lse), o.op) ? ", which also holds lse" : ""))
      .group("Results")
      .required()
      .type_name("FILE");
  c.option("--out-dtype", flags->out_dtype, "Dtype of the result: fp32, or the dtype of the input (default)")
      .group("Results")
      .one_of({"fp32", "fp16", "bf16"});
  if (writes(row_of(Role::lse), o.op)) add_row_file(c, flags->outputs.lse, "Also write the log-sum-exp of each row");
  if (is_said(o.op->words, "log")) {
    c.option("--scale", flags->options.scale, "Factor of the scores; default: 1").group("Scores");
    c.flag("--log", flags->options.log, "Compute the logarithm of the softmax").group("Scores");
  }
  c.on_run([flags, &o, run] {
    const std::string early = run.first_option_given();  // one of attention's
    want(early.empty(), ErrorCode::bad_value, "options of ", o.op->word, " must come after it (got ", early,
         " before it)");
    run_operator(o, *flags);
  });
}

}  // namespace

void add_run_operators(const Command& run) {
  for (const Operator& o : kOperators) add(run, o);
}

}  // namespace onepass::cli
