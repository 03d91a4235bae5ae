// Where a pipeline lies in shared memory: one definition for the host, which books the bytes, and the device.
#pragma once
#include "algebra/portable.hpp"

namespace onepass {

constexpr int kBarrierBytes = 8;  // of an mbarrier

// `stages` stages of `parts` parts of `bytes` bytes each from `data` on; a part has two mbarriers of its own, from
// `full` and `empty` on. Offsets in bytes from the start of shared memory.
struct PipelineLayout {
  int data = 0, bytes = 0, stages = 0, parts = 1, full = 0, empty = 0;
  ONEPASS_HD constexpr int count() const { return stages * parts; }
  ONEPASS_HD constexpr int data_end() const { return data + count() * bytes; }
  ONEPASS_HD constexpr int barriers_end() const { return empty + count() * kBarrierBytes; }
  // The same with its barriers from `at` on.
  ONEPASS_HD constexpr PipelineLayout with_barriers(int at) const {
    return {data, bytes, stages, parts, at, at + count() * kBarrierBytes};
  }
};

}  // namespace onepass
