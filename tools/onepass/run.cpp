// `onepass run`: attention and its gradients on tensors from files.
#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "base/text.hpp"
#include "command.hpp"
#include "onepass/attention.hpp"
#include "problem/attention/arguments.hpp"
#include "progress.hpp"
#include "running.hpp"
#include "seed.hpp"

namespace onepass::cli {
namespace {

struct Flags : Running {
  std::vector<std::string> buffers;
  std::string layout = "bhsd", mask, window;
  std::optional<double> scale;
  std::optional<std::int64_t> align_offset;
  Attention attention;
  std::optional<std::string> grads;
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

// What a forward does not have.
void refuse_gradients(const Flags& flags) {
  want(!flags.grads && !flags.attention.deterministic, ErrorCode::bad_value,
       flags.grads ? "--grads" : "--deterministic",
       " goes with a dout, whose gradients it is of: give --dout FILE.npy, or a tensor 'dout' in --in");
}

// What a backward of a forward that has been computed does not have.
void refuse_forward(const Flags& flags) {
  want(!flags.attention.unified_max && !flags.attention.batch_invariant, ErrorCode::bad_value,
       flags.attention.unified_max ? "--unified-max" : "--batch-invariant",
       " is of a forward, and none is computed: out and lse are given");
}

Problem with_gradients(const std::string& names) {
  try {
    // Not a second word of the line.
    want(names.find_first_not_of("abcdefghijklmnopqrstuvwxyz_,") == names.npos, ErrorCode::bad_value, names);
    return parse_problem("bwd s0 fp32 bias=fp32:1111 sinks alibi grads=" + names);
  } catch (const Error&) {
    throw Error(ErrorCode::bad_value, text("--grads is '", names,
                                           "'; some of dq, dk, dv, dbias, dsinks and dalibi_slopes, each once, with "
                                           "commas between them, are accepted"));
  }
}

// The gradients that --grads names.
Results gradient_results(const Flags& flags, const Tensors& a) {
  want(is_safetensors(flags.outputs.out) && !flags.outputs.want_lse, ErrorCode::bad_value,
       "gradients go into one file, --out FILE.safetensors, without --lse");
  const Problem named = with_gradients(flags.grads.value_or("dq,dk,dv"));
  const DType dtype = flags.out_dtype.empty() ? a.q.dtype : dtype_from_name(flags.out_dtype);
  Results r;
  for (const RoleRow& row : kRoleTable) {
    if (!is_asked(named.gradients, row.role)) continue;
    const RoleRow& base = row_of(row.gradient_of);
    const ConstTensor of = tensor_of(a, base);
    want(of.given(), ErrorCode::bad_value, "--grads asks for ", row.name, " but there is no ", base.name);
    r.push_back({&row, row.types == Types::f32 ? DType::f32 : dtype, file_shape(flags, row, of)});
  }
  return r;
}

Tensor oriented(const Flags& flags, const RoleRow& row, Tensor t) {
  return flags.layout == "bshd" && row.unit_last && t.rank == 4 ? t.permuted({0, 2, 1, 3}) : t;
}

Problem checked_problem(const Flags& flags, Tensors tensors, const Results& results, const Attention& attention) {
  for (const Result& r : results)
    set_output(tensors, *r.row, oriented(flags, *r.row, placeholder(r, tensors.q.device)));
  Problem problem = make_problem(attention, tensors);
  problem.alignment = kAligned;  // all memory here is allocated, and so is what the placeholders stand for
  return problem;
}

void run_command(Flags& flags) {
  const Device device = device_from(flags.device);
  check_destinations(flags.outputs);
  Attention attention = flags.attention;
  attention.band = band_of(flags);
  attention.scale = flags.scale;
  InputFiles files = flags.files();
  files.buffers = buffers_of(flags);
  files.bshd = flags.layout == "bshd";
  Loaded loaded = [&] {
    Progress progress("reading", flags.progress);
    return load(files, progress);
  }();
  const bool backward = loaded.op == Op::backward;
  if (!backward) refuse_gradients(flags);
  const bool forward_first = backward && !loaded.tensors.out.given() && !loaded.tensors.lse.given();
  if (backward && !forward_first) refuse_forward(flags);
  if (forward_first) {  // what it reads of its forward
    const DType dtype = loaded.tensors.dout.dtype;
    for (const Result& r : forward_results(flags, loaded.tensors, dtype, true)) {
      loaded.arrays.emplace_back(r.row->name, r.dtype, r.shape);
      set_output(loaded.tensors, *r.row, oriented(flags, *r.row, loaded.arrays.back().view()));
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
  compute(
      flags, problem, tensors, results, on_device ? &*on_device : nullptr,
      [&](const RoleRow& row, const Tensor& t) { return oriented(flags, row, t); },
      [&](const Tensors& all, Executor& executor) {
        if (forward_first) onepass::attention(tensors_of(Op::forward, all), attention, {.executor = &executor});
      });
}

}  // namespace

void add_run(CLI::App& app) {
  CLI::App* c = app.add_subcommand(
      "run",
      "Compute attention, with --dout its gradients, or another operator, on tensors from .npy or .safetensors "
      "files");
  auto flags = std::make_shared<Flags>();
  for (const RoleRow& row : kRoleTable)
    if (row.input && (reads(row, Op::forward) || reads(row, Op::backward))) add_tensor_option(*c, *flags, row);
  add_running_options(*c, *flags);
  c->add_option("--layout", flags->layout, "Of q, k, v and out: bhsd (default) or bshd")
      ->group("Tensors")
      ->check(CLI::IsMember({"bhsd", "bshd"}));
  c->add_option("--out", flags->outputs.out, "Result: .npy, or .safetensors with out (and lse), or with gradients")
      ->group("Results")
      ->type_name("FILE");
  CLI::Option* lse = c->add_option("--lse", flags->outputs.lse,
                                   "Log-sum-exp of every row too: .npy; no file if --out is .safetensors");
  lse->group("Results")->expected(0, 1)->type_name("FILE");
  c->add_option("--grads", flags->grads, "With --dout: which gradients, of dq,dk,dv,dbias,dsinks,dalibi_slopes")
      ->group("Results")
      ->default_str("dq,dk,dv");
  c->add_flag("--deterministic", flags->attention.deterministic, "With --dout: the same bits every time")
      ->group("Running");
  c->add_flag("--batch-invariant", flags->attention.batch_invariant,
              "A sequence's results do not depend on what else is in the batch")
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
  c->add_option("--unified-max", flags->attention.unified_max,
                "Of few rows: what weights refer to in place of the rows' maxima (docs/features/flashdecoding_pp.md)")
      ->group("Scores");
  c->add_option("--score-mod", flags->attention.score_mod, "C++ expression: the new score (docs/features/score_mod.md)")
      ->group("Scores");
  c->add_option("--mask-mod", flags->attention.mask_mod, "C++ expression: true where the query sees the key")
      ->group("Scores");
  c->add_option("--buffer", flags->buffers, "NAME=FILE.npy: a tensor that the expressions read; may be repeated")
      ->group("Scores");
  c->add_option("--dropout", flags->attention.dropout_p, "Probability in [0, 1]")->group("Scores");
  add_seed(*c, flags->attention.seed, "Of the dropout")->group("Scores");
  add_run_operators(*c);
  c->callback([flags, lse, c] {
    if (!c->get_subcommands().empty()) return;
    if (flags->outputs.out.empty()) throw CLI::RequiredError("--out");
    flags->outputs.want_lse = lse->count() > 0;
    run_command(*flags);
  });
}

}  // namespace onepass::cli
