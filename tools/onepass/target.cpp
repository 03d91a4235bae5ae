#include "tools/onepass/target.hpp"

#include "base/text.hpp"
#include "cuda/target.hpp"
#include "onepass/error.hpp"

namespace onepass::cli {

void add_target(const Command& command, std::string& target) {
  command.option("--target", target,
                 "Use the kernels and tiles of a GPU of this architecture on the GPU at hand, such as sm_89");
}

std::unique_ptr<cuda::PretendedDevice> as_target(Device device, const std::string& target) {
  if (target.empty()) return nullptr;
  if (device.kind != DeviceKind::cuda)
    throw Error(ErrorCode::bad_value, text("--target needs a problem on a GPU (got '", target, "' on a CPU)"));
  return std::make_unique<cuda::PretendedDevice>(cuda::as_target(cuda::device_facts(device.index), target));
}

}  // namespace onepass::cli
