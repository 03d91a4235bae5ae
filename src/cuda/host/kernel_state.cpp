#include "cuda/host/kernel_state.hpp"

#include "base/text.hpp"
#include "cuda/host/pretended.hpp"
#include "onepass/error.hpp"
#include "problem/block_mask.hpp"

namespace onepass::cuda {

void Kernels::add(const Kernels& part) {
  launched_.insert(launched_.end(), part.launched_.begin(), part.launched_.end());
  elsewhere_.insert(elsewhere_.end(), part.elsewhere_.begin(), part.elsewhere_.end());
}

std::vector<KernelProgram> Kernels::programs(const std::string& arch) const {
  std::vector<KernelProgram> all;
  for (const auto& kernels : {launched_, elsewhere_})
    for (const auto& kernel : kernels) all.push_back(kernel->program(arch));
  return all;
}

void Call::zero(void* memory, std::size_t bytes) const {
  check_cuda(driver()->memset8(reinterpret_cast<DevicePtr>(memory), 0, bytes, stream), "cuMemsetD8Async");
}

void KernelState::prepare() const {
  if (!idle_) kernels_.load(device_, nullptr);
}

void KernelState::run(const Tensors& tensors, void* workspace, Executor&, void* stream) const {
  if (idle_) return;
  const Call call{tensors, workspace, static_cast<Stream>(stream), device_};
  kernels_.load(device_, call.stream);
  const ContextScope scope(device_);
  launch(call);
}

Selected<const DeviceFacts*> device_of(const Problem& p) {
  if (p.device.kind != DeviceKind::cuda) return refuse("requires tensors on a CUDA device");
  if (std::string why; !pretended_device() && !driver(&why)) return refuse(why);
  try {
    return &device_facts(p.device.index);
  } catch (const Error& e) {
    return refuse(e.what());
  }
}

std::string why_too_old(const DeviceFacts& device) {
  return text("requires compute capability 8.0 or later (", device.name, " has ", device.major, ".", device.minor, ")");
}

std::vector<KernelProgram> programs_of(const PlanState& state, const std::string& arch) {
  const auto* const kernels = dynamic_cast<const KernelState*>(&computing(state));
  return kernels ? kernels->kernels().programs(arch) : std::vector<KernelProgram>{};
}

}  // namespace onepass::cuda
