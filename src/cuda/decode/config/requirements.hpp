// The problems that cuda.decode and cuda.decode_fp8 compute.
#pragma once
#include <string>

#include "problem/problem.hpp"

namespace onepass::decode {

// Rows of a K/V head that a row of the list of implementations supports: at most kMaxRows (with batch_invariant any
// number), or any number beside fp8_e4m3 k and v.
enum class Rows { few, any_fp8 };

// The sentence that refuses the problem; empty where only a config's team, shared memory or counts
// may refuse it.
std::string why_not(const Problem& problem, Rows rows);
// True if a CTA has blocks of a K/V head's rows, in place of all of them.
bool has_row_blocks(const Problem& problem, Rows rows);

}  // namespace onepass::decode
