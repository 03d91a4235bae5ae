// A workspace that grows with its plans.
#include "onepass/workspace.hpp"

#include <algorithm>
#include <new>

#include "base/text.hpp"
#include "base/workspace.hpp"
#include "onepass/error.hpp"

namespace onepass::inline v0 {

WorkspaceMemory::WorkspaceMemory(std::size_t bytes) { (void)take(bytes); }

std::span<std::byte> WorkspaceMemory::take(std::size_t bytes) {
  static_assert(kAlign == std::align_val_t{Workspace::kAlign});
  if (bytes > capacity_) {
    memory_.reset();  // two at once may be too many
    capacity_ = 0;
    memory_.reset(static_cast<std::byte*>(::operator new(bytes, kAlign, std::nothrow)));
    want(memory_ != nullptr, ErrorCode::out_of_memory, "cannot allocate ", bytes, " bytes of workspace");
    capacity_ = bytes;
  }
  return {memory_.get(), bytes};
}

std::span<std::byte> WorkspaceMemory::of(const Plan& plan) {
  const Device device = plan.device();
  want(device.kind == DeviceKind::cpu, ErrorCode::bad_device, "WorkspaceMemory is memory of the CPU; the plan is for ",
       to_string(device));
  return take(plan.workspace_bytes());
}

}  // namespace onepass::inline v0
