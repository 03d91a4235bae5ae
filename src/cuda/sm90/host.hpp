// Host code that both directions share.
#pragma once
#include <cstdint>
#include <string>

#include "cuda/attention/attention.hpp"
#include "cuda/host/kernels.hpp"
#include "problem/problem.hpp"
#include "problem/roles.hpp"

namespace onepass::sm90 {

inline constexpr int kSharedBytes = 232448;  // that a CTA may have

// Empty, or a sentence: TMA reads tensors that start at multiples of 16 bytes, rows whose distances are such multiples.
std::string why_no_tma(const Problem& problem, Role role);
// K and V as tensor maps have them: tokens of a batch entry, of all packed sequences, or of a page.
struct MapRows {
  std::int64_t batch, tokens;
  bool any() const { return batch > 0 && tokens > 0; }
};
MapRows rows_of_keys(const Problem& problem);
// True if TMA can read the bias, by its strides and alignment.
bool stages_bias(const Problem& problem);
// The same for stores of `bytes` at once.
std::string why_no_vectors(const Problem& problem, Role role, int bytes);
// The bytes of a contiguous tensor; 0 for any other.
std::size_t dense_bytes(const Problem& problem, Role role);
std::string why_no_hopper(const cuda::DeviceFacts& device);  // that it is of another compute capability than 9.0
const char* operand_of(ScalarType input);                    // as PTX names it

}  // namespace onepass::sm90
