#include "cuda/target.hpp"

#include <string>
#include <utility>

#include "base/text.hpp"
#include "cuda/compile/program.hpp"
#include "onepass/error.hpp"
#include "problem/roles.hpp"

namespace onepass::cuda {
namespace {

constexpr int kMiB = 1 << 20;

struct Row {
  std::string_view arch;
  int major, minor, shared_bytes;
  const char* card;
  int multiprocessors, l2_bytes;
};
// Compute capabilities and the shared memory of a CTA: CUDA C++ programming guide, "Compute Capabilities". The other
// numbers order tiles and count splits in an `explain` for a named target; a real device reports its own. Sources:
// NVIDIA's white papers of the A100, GA102, Ada, H100 and RTX Blackwell architectures, and the technical brief of the
// Jetson AGX Orin. B200: its driver reports them (github.com/pytorch/ao/pull/4002). B300: NVIDIA's "Inside Blackwell
// Ultra" names the SMs of the full chip; the L2 is the B200's.
constexpr Row kTargets[] = {
    {"sm_80", 8, 0, 166912, "NVIDIA A100", 108, 40 * kMiB},
    {"sm_86", 8, 6, 101376, "NVIDIA RTX A6000", 84, 6 * kMiB},
    {"sm_87", 8, 7, 166912, "NVIDIA Jetson AGX Orin", 16, 4 * kMiB},
    {"sm_89", 8, 9, 101376, "NVIDIA GeForce RTX 4090", 128, 72 * kMiB},
    {"sm_90", 9, 0, 232448, "NVIDIA H100 SXM", 132, 50 * kMiB},
    {"sm_100", 10, 0, 232448, "NVIDIA B200", 148, 126 * kMiB},
    {"sm_103", 10, 3, 232448, "NVIDIA B300", 160, 126 * kMiB},
    {"sm_120", 12, 0, 101376, "NVIDIA GeForce RTX 5090", 170, 96 * kMiB},
};

// A device is named by its architecture, by the architecture-specific form that its kernels are compiled for, or by its
// compute capability.
bool names(std::string_view word, const Row& row) {
  return word == row.arch || word == text(row.arch, "a") || word == text(row.major, ".", row.minor);
}

const Row& row_of(std::string_view arch) {
  std::string known;
  for (const auto& row : kTargets) {
    if (names(arch, row)) return row;
    known += text(known.empty() ? "" : ", ", row.arch);
  }
  throw Error(ErrorCode::bad_value, text("arch must be one of ", known, " (got '", arch, "')"));
}

}  // namespace

DeviceFacts typical_device(std::string_view arch) {
  const Row& row = row_of(arch);
  DeviceFacts facts;
  facts.major = facts.chip_major = row.major;
  facts.minor = facts.chip_minor = row.minor;
  facts.multiprocessors = row.multiprocessors;
  facts.l2_bytes = row.l2_bytes;
  facts.shared_bytes = row.shared_bytes;
  facts.name = row.card;
  return facts;
}

DeviceFacts as_target(DeviceFacts here, std::string_view arch) {
  const Row& row = row_of(arch);
  if (std::pair(row.major, row.minor) > std::pair(here.major, here.minor) || row.shared_bytes > here.shared_bytes)
    throw Error(ErrorCode::unsupported, text("kernels for ", row.arch, " do not run on ", here.name, " (",
                                             arch_text(here.major, here.minor), ")"));
  here.major = row.major;
  here.minor = row.minor;
  here.shared_bytes = row.shared_bytes;
  return here;
}

// The problem as a call on the device would have it: only the device knows the lengths of packed sequences.
Problem as_called(Problem p) {
  p.device = {DeviceKind::cuda, 0};
  p.lengths_k.clear();
  if (!p.varlen) return p;
  p.lengths_q.clear();
  p.seq_q = p.total_q;
  if (p.packed_k()) p.seq_k = p.total_k;
  for (const RoleRow& row : kRoleTable)
    if (!row.unit_last && uses(p, row)) p.layout.*row.layout = row_major(p, row);
  return p;
}

}  // namespace onepass::cuda
