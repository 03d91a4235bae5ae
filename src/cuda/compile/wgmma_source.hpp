// The wgmma instructions of the widths a kernel uses, as device source.
#pragma once
#include <string>
#include <vector>

namespace onepass::cuda {

// `struct Wgmma<N>` for each N of `widths` (multiples of 8 up to 256): d[64 x N] (+)= A B, fp32 out; element is "bf16",
// "f16" or "e4m3", which knows K-major operands only.
//   shared: A and B K-major in shared memory; registers_kmajor, registers_mnmajor: A in registers, B as named.
std::string wgmma_source(const std::vector<int>& widths, const std::string& element);

}  // namespace onepass::cuda
