// The states of a block mask's tiles, on the device where they are wanted.
#include "onepass/block_mask.hpp"

#include <array>

#include "base/overlap.hpp"
#include "base/text.hpp"
#include "cuda/block_mask/host.hpp"
#include "expression/block_mask/block_mask.hpp"
#include "onepass/error.hpp"
#include "problem/checks/tensor_checks.hpp"

namespace onepass::inline v0 {

void block_mask_states(std::string_view mask_mod, const std::vector<NamedTensor>& mod_buffers, const BlockMaskShape& s,
                       const Tensor& states, bool exact, void* stream) {
  check_tensor("states", states);
  for (const auto& [name, t] : mod_buffers) check_tensor("mod buffer " + name, t);
  const BlockMaskText mask = read_block_mask(mask_mod, mod_buffers, s, states.device);
  const Dims shape{s.batch, s.heads, s.row_tiles(), s.key_tiles()};
  want(states.dtype == DType::i32, ErrorCode::bad_dtype, "states must be int32 (got ", name_of(states.dtype), ")");
  want(states.rank == 4 && states.shape == shape, ErrorCode::bad_shape, "states must be [", shape[0], ", ", shape[1],
       ", ", shape[2], ", ", shape[3], "] (got ", shape_text(states), ")");
  check_output("states", states);
  for (const auto& [name, t] : mod_buffers)
    want(!share_memory(states, t), ErrorCode::bad_value, "states must not share memory with mod buffer ", name);
  if (states.device.kind == DeviceKind::cuda)
    return cuda::block_mask_states(mask, {mod_buffers, s, states, exact}, stream);
  const std::vector<std::int32_t> all = block_mask(mask_mod, mod_buffers, s, exact).states();
  auto next = all.begin();
  std::array<std::int64_t, 4> i{};
  for (i[0] = 0; i[0] < shape[0]; ++i[0])
    for (i[1] = 0; i[1] < shape[1]; ++i[1])
      for (i[2] = 0; i[2] < shape[2]; ++i[2])
        for (i[3] = 0; i[3] < shape[3]; ++i[3])
          static_cast<std::int32_t*>(states.data)[i[0] * states.stride[0] + i[1] * states.stride[1] +
                                                  i[2] * states.stride[2] + i[3] * states.stride[3]] = *next++;
}

}  // namespace onepass::inline v0
