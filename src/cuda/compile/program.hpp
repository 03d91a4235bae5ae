// A kernel is source text, compiled when first needed for exactly its config.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onepass::cuda {

// "sm_80", for a device or a target. The wgmma kernels use "sm_90a".
std::string arch_text(int major, int minor);
template <class Device>
std::string arch_of(const Device& device) {
  return arch_text(device.chip_major, device.chip_minor);
}

// The input of NVRTC: `config` (C++ text, usually one constexpr Config) in front of an #include of `file`, one of the
// device sources embedded in the library ("sm90/forward.cuh").
struct KernelProgram {
  std::string file, entry;  // entry: the kernel's extern "C" name
  std::string config;
  std::string arch;         // "sm_90a"
  std::string user_code{};  // score_mod and mask_mod; a mistake in it is reported with the user's own line
  std::string generated{};  // text in front of `config` that says nothing to a reader of an error: instruction wrappers
};

struct Cubin {
  std::string bytes;
  std::string log;  // ptxas's resource report and warnings
};

// SHA-256 of everything the machine code depends on except the compiler's version. 64 hex digits.
std::string key_of(const KernelProgram& program);

// Runs NVRTC. Throws Error with the config and the compiler's log if it fails or there is no NVRTC. Thread-safe.
Cubin compile(const KernelProgram& program);

// Device source by the name it is included under; throws Error if there is none.
std::string_view device_source(std::string_view name);

}  // namespace onepass::cuda
