// How a call is run: its stream, its threads, its memory.
#pragma once
#include <cstddef>
#include <span>

#include "onepass/executor.hpp"

namespace onepass::inline v0 {

struct Launch {
  void* stream = nullptr;            // CUDA stream of the device's primary context
  Executor* executor = nullptr;      // CPU threads; nullptr: default_executor()
  std::span<std::byte> workspace{};  // where the tensors are, aligned to 64 bytes; of one stream or thread at a time
};

}  // namespace onepass::inline v0
