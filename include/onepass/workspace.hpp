// Memory for plans on the CPU.
#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "onepass/export.h"
#include "onepass/plan.hpp"

namespace onepass::inline v0 {

// A workspace that grows with its plans, aligned to 64 bytes. One thread uses it at a time:
//   onepass::WorkspaceMemory memory;
//   onepass::run(plan, tensors, {.workspace = memory.of(plan)});
class ONEPASS_API WorkspaceMemory {
 public:
  WorkspaceMemory() = default;
  explicit WorkspaceMemory(std::size_t bytes);  // reserves
  WorkspaceMemory(WorkspaceMemory&& other) noexcept
      : memory_(std::move(other.memory_)), capacity_(std::exchange(other.capacity_, 0)) {}
  WorkspaceMemory& operator=(WorkspaceMemory&& other) noexcept {
    memory_ = std::move(other.memory_);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  // The memory that the plan needs, plan.workspace_bytes() bytes. Larger memory than before takes the place of it, and
  // the contents are lost; memory never shrinks. Throws Error: bad_device of a plan on a device, out_of_memory.
  std::span<std::byte> of(const Plan& plan);
  // The same for a number of bytes.
  std::span<std::byte> take(std::size_t bytes);
  std::size_t capacity() const { return capacity_; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlign); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace onepass::inline v0
