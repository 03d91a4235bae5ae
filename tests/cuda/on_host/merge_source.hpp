// The tests' view of the merge's device source, by config. Structures of the library travel as pointers: the text
// has its own, of the same layout.
#pragma once
#include <string>

namespace warps {

struct MergeSource {
  int dim, at_once;
  const char *input, *output;  // as a problem line has them
  // MergeParams whose first parts, as many as the config holds, are the text's; `blocks` as the host counts them.
  void (*run)(const void* params, unsigned blocks);
  std::string name() const { return std::string(input) + "To" + output + "Dim" + std::to_string(dim); }
};

extern const MergeSource merge_bf16, merge_f32, merge_f16_f32, merge_f32_bf16, merge_wide;

}  // namespace warps
