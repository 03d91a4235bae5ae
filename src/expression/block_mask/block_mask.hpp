// The mask_mod of a block mask, checked and read, for the builders of every device.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "expression/expression.hpp"
#include "onepass/block_mask.hpp"

namespace onepass {

struct BlockMaskText {
  std::string text;
  std::vector<ModBuffer> buffers;
  Expression mask;
};
void check_block_mask(const BlockMaskShape& shape);  // throws Error for sizes that do not fit
// Throws Error for sizes, buffers and texts that do not fit. device: where the buffers must be.
BlockMaskText read_block_mask(std::string_view mask_mod, const std::vector<NamedTensor>& mod_buffers,
                              const BlockMaskShape& shape, Device device = {});

}  // namespace onepass
