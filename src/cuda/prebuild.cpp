#include "cuda/prebuild.hpp"

#include "cuda/append/host.hpp"
#include "cuda/block_mask/host.hpp"
#include "cuda/host/kernel_state.hpp"
#include "cuda/host/pretended.hpp"
#include "cuda/implementations.hpp"
#include "cuda/quantize/quantize.hpp"
#include "problem/attention/fp8.hpp"

namespace onepass::cuda {

std::vector<TargetKernel> kernels_on(std::string_view target, const Problem& problem) {
  const DeviceFacts device = typical_device(target);
  const PretendedDevice pretended(device);
  const std::string arch = arch_of(device);
  const Request request = request_for(as_called(problem));
  const Op op = request.problem->op;
  std::vector<TargetKernel> kernels;
  const auto add = [&](const char* implementation, std::vector<KernelProgram> programs) {
    for (KernelProgram& program : programs) kernels.push_back({implementation, std::move(program)});
  };
  if (request.problem->fp8) {
    const Fp8Problems parts = fp8_problems(*request.problem);
    add("cuda.quantize", quantize_programs(parts.quantizes, arch));
    for (TargetKernel& kernel : kernels_on(target, parts.attention)) kernels.push_back(std::move(kernel));
    return kernels;
  }
  std::string refusals;
  for (const Implementation* row : implementations()) {
    // Each row with a dataflow may be a linear's: the choice among them is measured on the device.
    if (!kernels.empty() && (!op->kernels_of || row->dataflow == Dataflow::none)) break;
    if (!computes(*row, op)) continue;
    const Decision decision = decide(*row, request);
    if (decision)
      add(row->name, programs_of(*decision.state, arch));
    else
      refusals += text("; ", row->name, ": ", decision.refusal);
  }
  if (kernels.empty())
    throw Error(ErrorCode::unsupported,
                text("no kernel supports \"", to_string(*request.problem), "\" on ", arch, refusals));
  if (op == kForward) add("append_kv", append_programs(*request.problem, arch));
  if (request.problem->block_mask) add("block_mask", block_mask_programs(*request.problem, arch));
  return kernels;
}

}  // namespace onepass::cuda
