// Rules for every kernel's machine code from any compiler: the gates of src/cuda/README.md.
#pragma once
#include <string>
#include <vector>

#include "cuda/compile/program.hpp"

namespace onepass::cuda {

struct CodeGate {
  int threads;                            // of a block, one block to a multiprocessor: sets the registers' ceiling
  std::vector<std::string> instructions;  // that must be there, such as "HGMMA"
  bool calls = false;  // a function for rare rows is called, which may spill: only what is ahead counts
  int spilled = 0;  // bytes of a lane that may be in local memory: addresses, where that was measured to cost nothing
};

// Empty, or what is wrong: a spill, a stack, local memory, a serialised wgmma (each cost 30 to 40 %), too many
// registers, an instruction that is missing. Without nvdisasm (requirements.txt) instructions are not looked at, and
// the test is skipped.
std::string wrong_code(const Cubin& cubin, const CodeGate& gate);

bool can_disassemble();

}  // namespace onepass::cuda
