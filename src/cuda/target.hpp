// Devices by the name of their architecture: those that are not here, for explain() and for kernels that are compiled
// for other machines; and the device at hand with another's plans, which measures them.
#pragma once
#include <string_view>

#include "cuda/host/kernels.hpp"
#include "problem/problem.hpp"

namespace onepass::cuda {

// A common card of this architecture, without a context: kernels cannot be launched on it. arch: "sm_90", "sm_90a",
// "9.0" ...; throws Error (bad_value) naming those known.
DeviceFacts typical_device(std::string_view arch);

// The device at hand with the compute capability and shared memory of another architecture: plans choose the kernels
// and tiles of that GPU, compiled for this one. Throws Error (unsupported) if it is newer than the device.
DeviceFacts as_target(DeviceFacts here, std::string_view arch);

// The problem as a call on a device would have it: only the device knows the lengths of packed sequences.
Problem as_called(Problem problem);

}  // namespace onepass::cuda
