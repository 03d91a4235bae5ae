// Non-finite values put into the inputs of a benchmark's problem: "fwd b1 h8 s4096 d64 fp32 with v=one dout=rows".
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "onepass/attention.hpp"
#include "plan/plan.hpp"
#include "problem/roles.hpp"

namespace onepass::bench {

enum class Amount : std::uint8_t {
  one,    // a NaN in the middle of the tensor
  some,   // 1 % of the elements: NaN, infinity and -infinity in turn
  rows,   // one element of each row, in turn
  all,    // every element is NaN
  large,  // finite values so large that their products overflow: 1e38 times the old ones (fp16: 6e4 times)
};
struct Poison {
  Role role;
  Amount amount;
};

// Divides "PROBLEM with NAME=AMOUNT ..." into the problem and its poisons. Throws Error.
std::pair<std::string, std::vector<Poison>> split_poisons(const std::string& line);
std::string to_string(const std::vector<Poison>& poisons);  // " with v=one", or empty

// Writes to the memory of q, k, v or dout, which is the host's.
void poison(const ConstTensor& tensor, Amount amount);
void poison(Tensors& tensors, const std::vector<Poison>& poisons);

}  // namespace onepass::bench
