// explain() for a GPU that is not here.
#include <string>

#include "base/text.hpp"
#include "cuda/host/pretended.hpp"
#include "cuda/target.hpp"
#include "onepass/quantize.hpp"
#include "plan/plan.hpp"
#include "problem/grammar/on.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

// Under the first line, which is the problem.
std::string with_device(std::string explained, const cuda::DeviceFacts& device) {
  const std::string line = text("on ", device.name, " (sm_", device.major, device.minor, ", ", device.multiprocessors,
                                " multiprocessors), which need not be here\n");
  return explained.insert(explained.find('\n') + 1, line);
}

}  // namespace

std::string explain_for(std::string_view target, const Problem& problem) {
  const cuda::DeviceFacts device = cuda::typical_device(target);
  const cuda::PretendedDevice pretended(device);
  return with_device(explain(cuda::as_called(problem)), device);
}

inline namespace v0 {

std::string explain_for(std::string_view target, std::string_view line) {
  return explain_for(target, parse_problem_on({DeviceKind::cuda, 0}, line));
}

std::string explain_for(std::string_view target, const AttentionTensors& tensors, const Attention& attention,
                        const Fp8Options& options) {
  const cuda::DeviceFacts device = cuda::typical_device(target);
  const cuda::PretendedDevice pretended(device);
  Tensors there = tensors;
  for_each_role(there, [](const RoleRow&, auto& tensor) { tensor.device = {DeviceKind::cuda, 0}; });
  for (NamedTensor& buffer : there.mod_buffers) buffer.tensor.device = {DeviceKind::cuda, 0};
  return with_device(explain(there, attention, options), device);
}

}  // namespace v0
}  // namespace onepass
