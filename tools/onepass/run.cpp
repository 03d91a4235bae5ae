// `onepass run`: attention and its gradients on tensors from files.
#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <type_traits>

#include "base/text.hpp"
#include "onepass/attention.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/attention/options.hpp"
#include "problem/callers_layout.hpp"
#include "tools/onepass/command.hpp"
#include "tools/onepass/progress.hpp"
#include "tools/onepass/running.hpp"
#include "tools/onepass/seed.hpp"

namespace onepass::cli {
namespace {

struct Flags : Running {
  std::vector<std::string> buffers;
  std::string layout = "bhsd", mask, window;
  std::optional<std::int64_t> align_offset;
  Attention attention;
  std::optional<std::string> grads;
};

Band band_of(const Flags& flags) {
  Band band;
  if (const NamedMask* const mask = mask_named(flags.mask)) band.causal = mask->causal, band.align = mask->align;
  if (flags.align_offset.has_value() != (band.align == Align::offset))
    throw Error(ErrorCode::bad_value,
                "--align-offset and --mask causal_offset (or aligned_offset) must be given together");
  band.offset = flags.align_offset.value_or(0);
  if (flags.window.empty()) return band;
  const char *at = flags.window.data(), *end = at + flags.window.size();
  const auto left = std::from_chars(at, end, band.left);
  const bool colon = left.ec == std::errc{} && left.ptr != end && *left.ptr == ':';
  const auto right = colon ? std::from_chars(left.ptr + 1, end, band.right) : left;
  if (!colon || right.ec != std::errc{} || right.ptr != end) {
    throw Error(ErrorCode::bad_value,
                text("--window must be LEFT:RIGHT in keys, -1 for unbounded (got '", flags.window, "')"));
  }
  return band;
}

std::map<std::string, std::string> buffers_of(const Flags& flags) {
  std::map<std::string, std::string> buffers;
  for (const std::string& word : flags.buffers) {
    const std::size_t equals = word.find('=');
    if (equals == word.npos || !buffers.emplace(word.substr(0, equals), word.substr(equals + 1)).second)
      throw Error(ErrorCode::bad_value, text("--buffer must be NAME=FILE.npy, each name once (got '", word, "')"));
  }
  return buffers;
}

// As --layout has it.
io::Shape file_shape(const RoleRow& row, const ConstTensor& t) {
  const Dims shape = turned(row.name, t).shape;
  return {shape.begin(), shape.begin() + t.rank};
}

// out, then a number for each row of these roles
Results forward_results(const Tensors& a, DType out_dtype, const std::vector<Role>& row_roles) {
  ConstTensor out = a.q;
  out.shape[out.rank - 1] = a.v.shape[a.v.rank - 1];
  const RoleRow& of_out = row_of(Role::out);
  Results r;
  r.push_back({&of_out, out_dtype, file_shape(of_out, out)});
  ConstTensor rows = a.q.rank == 3 ? a.q.permuted({1, 0, 2}) : a.q;
  rows.rank -= 1;
  for (const Role role : row_roles) r.push_back({&row_of(role), DType::f32, file_shape(row_of(role), rows)});
  return r;
}

DType out_dtype_of(const Flags& flags, DType of_q) {
  if (!flags.out_dtype.empty()) return dtype_from_name(flags.out_dtype);
  return of_q == DType::f8e4m3 ? DType::bf16 : of_q;
}

// Options that a forward does not have.
void refuse_gradients(const Flags& flags) {
  want(!flags.grads && !flags.attention.deterministic, ErrorCode::bad_value,
       flags.grads ? "--grads" : "--deterministic", " needs dout: give --dout FILE.npy, or a tensor 'dout' in --in");
}

// Options that the backward of a computed forward does not have.
void refuse_forward(const Flags& flags) {
  want(!flags.attention.unified_max && !flags.attention.batch_invariant, ErrorCode::bad_value,
       flags.attention.unified_max ? "--unified-max" : "--batch-invariant",
       " is not supported with out and lse, because no forward is computed");
}

Problem with_gradients(const std::string& names) {
  try {
    // Not a second word of the line.
    want(names.find_first_not_of("abcdefghijklmnopqrstuvwxyz_,") == names.npos, ErrorCode::bad_value, names);
    return parse_problem("bwd s0 fp32 bias=fp32:1111 sinks alibi grads=" + names);
  } catch (const Error&) {
    throw Error(ErrorCode::bad_value, text("--grads must be a comma-separated list of dq, dk, dv, dbias, dsinks and "
                                           "dalibi_slopes, each once (got '",
                                           names, "')"));
  }
}

// The gradients that --grads names.
Results gradient_results(const Flags& flags, const Tensors& a) {
  want(is_safetensors(flags.outputs.out) && flags.outputs.wanted_rows().empty(), ErrorCode::bad_value,
       "gradients need --out FILE.safetensors, and do not support --lse, --row-max and --entropy");
  const Problem named = with_gradients(flags.grads.value_or("dq,dk,dv"));
  const DType dtype = flags.out_dtype.empty() ? a.q.dtype : dtype_from_name(flags.out_dtype);
  Results r;
  for (const RoleRow& row : kRoleTable) {
    if (!is_asked(named.gradients, row.role)) continue;
    const RoleRow& base = row_of(row.gradient_of);
    const ConstTensor of = tensor_of(a, base);
    want(of.given(), ErrorCode::bad_value, "--grads asks for ", row.name, ", but ", base.name, " is missing");
    r.push_back({&row, row.types == Types::f32 ? DType::f32 : dtype, file_shape(row, of)});
  }
  return r;
}

Problem checked_problem(Tensors tensors, const Results& results, const Attention& attention) {
  for (const Result& r : results) set_output(tensors, *r.row, turned(r.row->name, placeholder(r, tensors.q.device)));
  Problem problem = problem_of(tensors, attention);
  problem.alignment = kAligned;  // all memory here is allocated, and so is what the placeholders stand for
  return problem;
}

void run_command(Flags& flags) {
  const Device device = device_from(flags.device);
  check_destinations(flags.outputs);
  Attention attention = flags.attention;
  attention.band = band_of(flags);
  InputFiles files = flags.files();
  files.buffers = buffers_of(flags);
  Loaded loaded = [&] {
    Progress progress("reading", flags.progress);
    return load(files, progress);
  }();
  const CallersLayout layout(flags.layout == "bshd", loaded.tensors.page_table.given());
  for_each_role(loaded.tensors, [](const RoleRow& row, auto& t) { t = turned(row.name, t); });
  const bool backward = is_backward(loaded.op);
  if (!backward) refuse_gradients(flags);
  const bool forward_first = backward && !loaded.tensors.out.given() && !loaded.tensors.lse.given();
  if (backward && !forward_first) refuse_forward(flags);
  if (forward_first) {  // what it reads of its forward
    const DType dtype = loaded.tensors.dout.dtype;
    std::vector<Role> rows{Role::lse};
    if (loaded.tensors.dentropy.given()) rows.push_back(Role::entropy);
    for (const Result& r : forward_results(loaded.tensors, dtype, rows)) {
      loaded.arrays.emplace_back(r.row->name, r.dtype, r.shape);
      set_output(loaded.tensors, *r.row, turned(r.row->name, loaded.arrays.back().view()));
    }
  }
  Tensors tensors = loaded.tensors;
  std::vector<Role> row_roles;
  for (const RowFile* rows : flags.outputs.wanted_rows()) row_roles.push_back(rows->role);
  Results results = backward ? gradient_results(flags, tensors)
                             : forward_results(tensors, out_dtype_of(flags, tensors.q.dtype), row_roles);
  Attention first = attention;
  Tensors on_host = tensors;
  if (device.kind == DeviceKind::cuda) {  // whose compiler takes more than the CPU's interpreter
    first.score_mod = first.mask_mod = "";
    on_host.mod_buffers.clear();
  }
  Problem problem = checked_problem(on_host, results, first);
  std::optional<DeviceTensors> on_device;
  if (device.kind == DeviceKind::cuda) {  // what only host memory shows, such as cu_seqlens, has been checked
    tensors = on_device.emplace(device).copied(tensors, loaded.arrays);
    bound_lengths(attention, problem);
    problem = checked_problem(tensors, results, attention);
  }
  compute(
      flags, problem, tensors, results, on_device ? &*on_device : nullptr,
      [](const RoleRow& row, const Tensor& t) { return turned(row.name, t); },
      [&](const Tensors& all, Executor& executor) {
        if (forward_first) onepass::attention(tensors_of(kForward, all), attention, {.executor = &executor});
      });
}

// --softcap, .., a row of attention/options.hpp each.
void add_attention_options(const Command& c, const std::shared_ptr<Flags>& flags) {
  for_each_option([&](const OptionRow& row, auto option) {
    using T = OptionType<decltype(option)>;
    T& to = flags->attention.*option;
    if constexpr (std::is_same_v<T, Band>) {
      return;  // --mask, --align-offset and --window
    } else if (row.word) {
      const std::string name = option_of(row.word);
      if constexpr (std::is_same_v<T, bool>)
        c.flag(name, to, row.help).group("Running");
      else if constexpr (std::is_same_v<T, std::array<std::uint32_t, 4>>)
        c.option(name, to, row.help).delimiter(':').group("Scores");
      else if constexpr (std::is_same_v<T, std::uint64_t>)
        add_seed(c, to, row.help).group("Scores");
      else if constexpr (Choice<T>)
        c.option(
             name, [flags, &to](const std::string& x) { to = choice_named<T>(x).value_or(T{}); }, row.help)
            .group("Scores")
            .one_of({std::string(words_of(T{})[0]), std::string(words_of(T{})[1])});
      else
        c.option(name, to, row.help).group("Scores");
    }
  });
}

}  // namespace

void add_run(const Command& app) {
  const Command c = app.subcommand(
      "run",
      "Compute attention, its gradients (with --dout) or another operator on tensors from .npy or .safetensors files");
  auto flags = std::make_shared<Flags>();
  for (const RoleRow& row : kRoleTable)
    if (row.input && (reads(row, kForward) || reads(row, kBackward))) add_tensor_option(c, *flags, row);
  add_running_options(c, *flags);
  c.option("--layout", flags->layout, "Layout of q, k, v, out and rows: bhsd (default) or bshd")
      .group("Tensors")
      .one_of({"bhsd", "bshd"});
  c.option("--out", flags->outputs.out, "Result: .npy, or .safetensors with out and rows, or with gradients")
      .group("Results")
      .type_name("FILE");
  add_row_file(c, flags->outputs.lse, "Also write the log-sum-exp of each row");
  add_row_file(c, flags->outputs.row_max, "Also write the largest score of each row");
  add_row_file(c, flags->outputs.entropy, "Also write the entropy of each row's weights");
  c.option("--grads", flags->grads,
           "With --dout: the gradients to compute, a list of dq,dk,dv,dbias,dsinks,dalibi_slopes")
      .group("Results")
      .default_text("dq,dk,dv");
  c.option("--out-dtype", flags->out_dtype, "Dtype of out, or of dq, dk and dv: fp32, or the dtype of q (default)")
      .group("Results")
      .one_of({"fp32", "fp16", "bf16"});
  std::vector<std::string> masks;
  masks.reserve(std::size(kNamedMasks));
  for (const NamedMask& mask : kNamedMasks) masks.emplace_back(mask.name);
  c.option("--mask", flags->mask,
           "causal_bottom_right, causal_top_left, causal_offset; aligned_top_left, aligned_offset for --window alone")
      .group("Scores")
      .one_of(masks);
  c.option("--align-offset", flags->align_offset, "With --mask causal_offset: query i sees keys 0 to i + N")
      .group("Scores")
      .type_name("N");
  c.option("--window", flags->window, "LEFT:RIGHT, the keys seen on either side of the diagonal; -1 is unbounded")
      .group("Scores");
  c.option("--buffer", flags->buffers, "NAME=FILE.npy: a tensor that the expressions read; may be repeated")
      .group("Scores");
  add_attention_options(c, flags);
  add_run_operators(c);
  c.on_run([flags, c] {
    if (c.subcommand_given()) return;
    if (flags->outputs.out.empty()) option_is_missing("--out");
    run_command(*flags);
  });
}

}  // namespace onepass::cli
