// The memory of a call: what all tasks share, and behind it a part for each worker.
#pragma once
#include <cstddef>

#include "base/workspace.hpp"
#include "expression/expression.hpp"
#include "problem/problem.hpp"

namespace onepass::cpu {

struct CallMemory {
  CallMemory() = default;
  CallMemory(const Workspace& shared, const Workspace& of_worker)
      : shared_bytes(shared.bytes()), worker_bytes(of_worker.bytes()) {}
  std::size_t bytes(int workers) const { return shared_bytes + static_cast<std::size_t>(workers) * worker_bytes; }
  Workspace of_worker(void* memory, int worker) const {
    return Workspace(static_cast<std::byte*>(memory) + bytes(worker));
  }

  std::size_t shared_bytes = 0, worker_bytes = 0;
};

// Memory in which a worker evaluates a score_mod or a mask_mod; none without them.
inline ExprMemory<float> book_mods(Workspace& w, const Problem& p) {
  if (p.score_mod.empty() && p.mask_mod.empty()) return {};
  constexpr std::int64_t kValues = std::int64_t{Expression::kMaxSteps} * kExprBlock;
  return {w.take<float>(kValues), w.take<std::int32_t>(kValues)};
}

}  // namespace onepass::cpu
