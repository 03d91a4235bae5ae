// The states of a block mask's tiles, on the device where they are wanted.
#include "onepass/block_mask.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/overlap.hpp"
#include "base/text.hpp"
#include "cuda/block_mask/host.hpp"
#include "expression/block_mask/block_mask.hpp"
#include "onepass/error.hpp"
#include "plan/scratch.hpp"
#include "problem/checks/tensor_checks.hpp"

namespace onepass::inline v0 {

void block_mask_states(std::string_view mask_mod, const std::vector<NamedTensor>& mod_buffers, const BlockMaskShape& s,
                       const Tensor& states, bool exact, const Launch& launch) {
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
  if (states.device.kind == DeviceKind::cuda) {
    const std::size_t bytes = states.elements() == 0 ? 0 : cuda::level_bytes(mod_buffers, s);
    const bool given = !launch.workspace.empty();
    want(!given || launch.workspace.size() >= bytes, ErrorCode::bad_value, "the workspace must have at least ", bytes,
         " bytes (got ", launch.workspace.size(), ")");
    want(reinterpret_cast<std::uintptr_t>(launch.workspace.data()) % 64 == 0, ErrorCode::bad_value,
         "the workspace must be aligned to 64 bytes (got address ", static_cast<void*>(launch.workspace.data()), ")");
    const Scratch memory(states.device, given ? 0 : bytes, launch.stream);
    return cuda::block_mask_states(mask, {mod_buffers, s, states, exact},
                                   given ? launch.workspace.data() : memory.data(), launch.stream);
  }
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

std::size_t block_mask_workspace_bytes(const std::vector<NamedTensor>& mod_buffers, const BlockMaskShape& shape) {
  check_block_mask(shape);
  for (const auto& [name, t] : mod_buffers) check_tensor("mod buffer " + name, t);
  const bool on_device = std::ranges::all_of(mod_buffers, [](const NamedTensor& b) {
    return b.tensor.device.kind == DeviceKind::cuda && b.tensor.elements() > 0;
  });
  return on_device ? cuda::level_bytes(mod_buffers, shape) : 0;
}

}  // namespace onepass::inline v0
