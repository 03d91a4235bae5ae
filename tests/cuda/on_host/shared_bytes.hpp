// Shared memory of a CTA that an emulated kernel of cuda.sm80 is for, by the beginning of its name.
#pragma once
#include <string_view>

namespace onepass {

inline int shared_bytes(std::string_view kernel) {
  if (kernel.starts_with("ada_")) return 101376;  // 8.6, 8.9 and 12.0
  return 232448;                                  // Hopper
}

}  // namespace onepass
