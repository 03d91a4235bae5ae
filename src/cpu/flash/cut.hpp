// How a call of cpu.flash is cut into tasks, where its K and V are read, and the memory that all tasks share.
#pragma once
#include <cstdint>

#include "cpu/common/place.hpp"
#include "cpu/flash/flash.hpp"

namespace onepass::cpu::flash {

// By the longest sequences of a call.
struct Waves {
  int panels = 1;  // per task
  KeySplits splits;
  std::int64_t join_every = 0;
  std::int64_t row_blocks = 0;
  Source k = Source::block, v = Source::block;
  std::int64_t slots = 0;  // K/V heads per wave
};

Waves waves_of(const Problem& problem, const Geometry& geometry, const Longest& longest);
// Splits of any call within the bounds.
std::int64_t splits_at_most(const Problem& problem, const Geometry& geometry);

struct Memory {
  Partials partials;
  float *packed_k = nullptr, *packed_v = nullptr;
  std::uint8_t* packed_finite = nullptr;
  std::uint32_t* packed_flags = nullptr;
};
// most: the waves of a call whose sequences are as long as they may be. splits: those of the call, or the most.
Memory book(Workspace& workspace, const Problem& problem, const Geometry& geometry, const Waves& most,
            std::int64_t splits);

}  // namespace onepass::cpu::flash
