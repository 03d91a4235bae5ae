// What the host halves of both directions share.
#pragma once
#include <cstdint>
#include <string>

#include "core/roles.hpp"
#include "cuda/attention/attention.hpp"
#include "onepass/problem.hpp"

namespace onepass::sm90 {

inline constexpr int kSharedBytes = 232448;  // that a block of threads may have

int alignment_of(const Problem& problem, Role role);
// The largest power of two, up to 16, that a tensor's address and the distances of its rows in bytes are multiples of.
int row_alignment(const Problem& problem, Role role);
// Empty, or a sentence: TMA reads tensors that start at multiples of 16 bytes, rows whose distances are such multiples.
std::string why_no_tma(const Problem& problem, Role role);
// Whether TMA reads the bias: by its strides and alignment.
bool stages_bias(const Problem& problem);
// The same for stores of `bytes` at once.
std::string why_no_vectors(const Problem& problem, Role role, int bytes);
// Of a tensor without gaps; else 0.
std::size_t dense_bytes(const Problem& problem, Role role);
// Empty, or a sentence on a count that 32 bits do not hold.
std::string why_too_many(const Problem& problem, std::int64_t tiles);
const char* operand_of(ScalarType input);  // as PTX names it

}  // namespace onepass::sm90
