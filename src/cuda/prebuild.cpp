#include "cuda/prebuild.hpp"
#include "base/text.hpp"

#include <iterator>
#include <span>
#include <vector>

#include "cuda/append/host.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/decode/decode.hpp"
#include "cuda/gemm/flat_gemm.hpp"
#include "cuda/gemm/gemv.hpp"
#include "cuda/gemm/plain_gemm.hpp"
#include "cuda/merge/merge.hpp"
#include "cuda/mixed/mixed.hpp"
#include "cuda/mla/mla.hpp"
#include "cuda/plain/plain.hpp"
#include "cuda/quantize/quantize.hpp"
#include "cuda/sm80/backward/backward.hpp"
#include "cuda/sm80/forward/forward.hpp"
#include "cuda/sm90/backward/backward.hpp"
#include "cuda/sm90/forward/forward.hpp"
#include "cuda/softmax/softmax.hpp"
#include "onepass/error.hpp"
#include "problem/attention/fp8.hpp"
#include "problem/roles.hpp"
#include "problem/softmax/softmax_problem.hpp"
#include "problem/tensor_checks.hpp"

namespace onepass::cuda {
namespace {

// The kernels that write a cache like the problem's: tokens as they are, or rotated, by halves or interleaved, with
// tables of fp32 or of the new tokens' dtype.
std::vector<TargetKernel> appending_kernels(const Problem& p, const std::string& arch) {
  std::vector<TargetKernel> kernels;
  if ((!p.paged() && !p.seqused) || !is_data(p.dtype)) return kernels;
  const ScalarType data = scalar_type_of(p.dtype), cache = scalar_type_of(p.key_dtype());
  const bool pieces = p.dim_qk % kAppendAtOnce == 0 && p.dim_v % kAppendAtOnce == 0;
  const auto add = [&](ScalarType table, bool interleaved) {
    const AppendConfig c = {data, cache, table, interleaved, p.varlen, p.paged(), pieces ? kAppendAtOnce : 1};
    kernels.push_back({"append_kv", append_program(c, arch)});
  };
  add(ScalarType::none, false);
  for (const bool interleaved : {false, true}) {
    add(ScalarType::f32, interleaved);
    if (data != ScalarType::f32) add(data, interleaved);
  }
  return kernels;
}

}  // namespace

std::vector<TargetKernel> kernels_on(const Target& target, const Problem& problem) {
  const Problem p = as_called(problem);
  std::vector<TargetKernel> kernels;
  const std::string arch = arch_of(target);
  std::string refusals, why;
  const auto list = [&](const char* implementation, KernelProgram program) {
    if (p.bool_mask) kernels.push_back({implementation, mask_program(arch)});
    kernels.push_back({implementation, std::move(program)});
    return kernels;
  };
  const auto refusal = [&](const char* last) {
    return Error(ErrorCode::unsupported,
                 text("no kernel supports \"", to_string(p), "\" on ", arch, refusals, "; ", last, ": ", why));
  };
  if (p.fp8) {
    const Fp8Problems parts = fp8_problems(p);
    for (KernelProgram& program : quantize_programs(parts.quantizes, arch))
      kernels.push_back({quantize_implementation().name, std::move(program)});
    for (TargetKernel& kernel : kernels_on(target, parts.attention)) kernels.push_back(std::move(kernel));
    return kernels;
  }
  if (p.op == Op::append) {
    AppendPlan plan;
    if (!select_append(p, plan, why)) throw refusal(append_implementation().name);
    return list(append_implementation().name, append_program(plan.config, arch));
  }
  if (p.op == Op::merge) {
    MergeConfig c;
    if (!select_merge(p, c, why)) throw refusal(merge_implementation().name);
    return list(merge_implementation().name, merge_program(c, arch));
  }
  if (operator_of(p.op).matrices) {  // of a linear all that may be chosen
    if (GemvConfig c; p.op == Op::linear && select_gemv(p, c, why))
      kernels.push_back({gemv_implementation().name, gemv_program(c, arch)});
    if (FlatGemmPlan plan; select_flat_gemm(p, target.shared_bytes, 1, plan, why))
      kernels.push_back({flat_gemm_implementation().name, flat_gemm_program(plan.config, arch)});
    if (!kernels.empty()) return kernels;
    const char* const name = plain_gemm_implementation().name;
    PlainGemmConfig c;
    if (!select_plain_gemm(p, c, why)) throw refusal(name);
    return list(name, plain_gemm_program(c, arch));
  }
  if (operator_of(p.op).unit_scale) {
    const Implementation& row = p.op == Op::softmax ? softmax_implementation() : softmax_backward_implementation();
    SoftmaxPlan plan;
    if (!select_softmax(p, plan, why)) throw refusal(row.name);
    if (plan.pieces > 1) kernels.push_back({row.name, softmax_program(states_config(plan), arch)});
    kernels.push_back({row.name, softmax_program(plan.config, arch)});
    return kernels;
  }
  if (p.op == Op::quantize) {
    const char* const name = quantize_implementation().name;
    QuantizePlan plan;
    if (!select_quantize(p, 1, plan, why)) throw refusal(name);
    for (KernelProgram& program : quantize_programs(plan, arch)) kernels.push_back({name, std::move(program)});
    return kernels;
  }
  if (p.op == Op::backward) {
    const BackwardFeatures f = backward_features_of(p);
    const std::string mods = mods_source(p, true);
    const auto list_all = [&](const char* implementation, const BackwardShape& shape, const char* sum_tile,
                              KernelProgram program) {
      BackwardPrograms around = backward_programs(f, shape, sum_tile, arch, mods);
      kernels.push_back({implementation, std::move(around.pre)});
      if (f.dq) kernels.push_back({implementation, std::move(around.post)});
      if (f.dsinks || f.dslopes) kernels.push_back({implementation, std::move(around.sums)});
      return list(implementation, std::move(program));
    };
    if (target.major == 9) {
      const char* const name = sm90::backward_implementation().name;
      if (sm90::BackwardConfig c; sm90::select_config(p, f, c, why)) {
        const BackwardShape shape = sm90::shape_of(p, c);
        if (c.guarded) kernels.push_back({name, sm90::program_of(f, shape, sm90::careful_of(c), mods)});
        return list_all(name, shape, sm90::kSumTile, sm90::program_of(f, shape, c, mods));
      }
      refusals += text("; ", name, ": ", why);
    }
    const char* const name = sm80::backward_implementation().name;
    if (sm80::BackwardConfig c; sm80::select_config(p, f, target.shared_bytes, c, why)) {
      const BackwardShape shape = sm80::shape_of(p, c);
      if (f.dbias) kernels.push_back({name, sm80::program_of(f, shape, c, arch, mods, true)});
      const std::vector<BackwardFeatures> parts = sm80::parts_of(f);
      for (const BackwardFeatures& part : std::span(parts).first(parts.size() - 1))
        kernels.push_back({name, sm80::program_of(part, shape, c, arch, mods)});
      return list_all(name, shape, sm80::kSumTile, sm80::program_of(parts.back(), shape, c, arch, mods));
    }
    throw refusal(name);
  }
  kernels = appending_kernels(p, arch);
  if (target.major == 9) {
    const char* const name = decode::mla_implementation().name;
    if (decode::MlaConfig c; decode::select_mla(p, c, why)) {
      kernels.push_back({name, decode::mla_program(features_of(p), c)});
      for (const bool many : {false, true})
        kernels.push_back({name, decode::mla_merge_program(features_of(p), c, many)});
      return kernels;
    }
    refusals += text("; ", name, ": ", why);
  }
  const char* const few_rows = decode::implementation().name;
  if (decode::DecodeConfig c; decode::select_config(p, target.shared_bytes, c, why)) {
    const auto add = [&] {
      kernels.push_back({few_rows, decode::program_of(features_of(p), c, arch, mods_source(p))});
    };
    add();
    c.even = decode::may_be_even(p, decode::sharing_of(c));
    if (c.even) add();
    return kernels;
  }
  refusals += text("; ", few_rows, ": ", why);
  if (is_mixed(p, why)) {  // the prefill kernel's part follows
    for (const Problem& few : decoded_parts(p)) {
      if (decode::DecodeConfig c; decode::select_config(few, target.shared_bytes, c, why))
        kernels.push_back({few_rows, decode::program_of(features_of(few), c, arch, mods_source(few))});
    }
  }
  if (target.major == 9) {
    const char* const name = sm90::forward_implementation().name;
    if (sm90::ForwardConfig c; sm90::select_config(p, c, why))
      return list(name, sm90::program_of(sm90::features_of(p, c), c, mods_source(p)));
    refusals += text("; ", name, ": ", why);
  }
  const char* const name = sm80::forward_implementation().name;
  if (sm80::ForwardConfig c; sm80::select_config(p, target.shared_bytes, c, why))
    return list(name, sm80::program_of(features_of(p), c, arch, mods_source(p)));
  refusals += text("; ", name, ": ", why);
  if (!select_plain(p, why)) throw refusal(plain_implementation().name);
  return list(plain_implementation().name, plain_program(features_of(p), arch, mods_source(p)));
}

}  // namespace onepass::cuda
