#include "cuda/rows/host.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/host/config_source.hpp"

namespace onepass::cuda {
namespace {

// Every row begins at a multiple of 16 bytes.
bool in_pieces(const ConstTensor& t) {
  const auto bytes = static_cast<std::int64_t>(size_of(t.dtype));
  const bool strides = std::all_of(t.stride.begin(), t.stride.begin() + 3,
                                   [&](std::int64_t stride) { return stride * bytes % 16 == 0; });
  return strides && t.stride[3] == 1 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 &&
         t.shape[3] * bytes % 16 == 0;
}

}  // namespace

KernelProgram rows_program(const RowsConfig& config, const std::string& arch) {
  return {"cuda/rows/rows.cuh", "move_rows",
          config_line("cuda/rows/rows.hpp", "onepass", "RowsConfig rows_config", config), arch};
}

void move_rows(const ConstTensor& from, const Tensor& to, RowsWork work, void* on) {
  const DeviceFacts& device = device_facts(to.device.index);
  const auto stream = static_cast<Stream>(on);
  RowsConfig config{.from = scalar_type_of(from.dtype), .to = scalar_type_of(to.dtype), .work = work, .at_once = 1};
  if (in_pieces(from) && in_pieces(to)) config.at_once = 16 / static_cast<int>(size_of(to.dtype));
  RowsParams p{};
  p.from = from.data, p.to = to.data;
  p.heads = static_cast<unsigned>(to.shape[1]), p.rows = static_cast<unsigned>(to.shape[2]);
  std::copy_n(from.stride.begin(), 4, p.from_stride);
  std::copy_n(to.stride.begin(), 4, p.to_stride);
  const std::int64_t pieces = to.elements() / config.at_once;
  want(pieces <= std::numeric_limits<unsigned>::max(), ErrorCode::unsupported, "rows that travel must have at most ",
       std::numeric_limits<unsigned>::max(), " pieces (got ", pieces, ")");
  p.pieces = static_cast<unsigned>(to.shape[3] / config.at_once), p.all_pieces = static_cast<unsigned>(pieces);
  static KernelTable<RowsConfig> loaded;
  const ContextScope scope(device);
  const Kernel& kernel =
      loaded.find(device.ordinal, config, 0, stream, [&] { return rows_program(config, arch_of(device)); });
  const std::int64_t blocks =
      std::min<std::int64_t>(ceil_div(pieces, kRowsThreads), std::int64_t{32} * device.multiprocessors);
  void* parameters[] = {&p};
  launch(kernel, static_cast<unsigned>(blocks), kRowsThreads, 0, stream, parameters);
}

void upload(const void* from, void* to, std::size_t bytes, int ordinal, void* stream) {
  if (bytes == 0) return;
  const ContextScope scope(device_facts(ordinal));
  check_cuda(driver()->copy_to_device(reinterpret_cast<DevicePtr>(to), from, bytes, static_cast<Stream>(stream)),
             "cuMemcpyHtoDAsync");
}

}  // namespace onepass::cuda
