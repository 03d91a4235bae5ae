#include "cpu/amx/rows.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>

namespace onepass::cpu::amx {
namespace {

template <class T, class Data>
T* at(const BasicTensor<Data>& t, std::int64_t offset) {
  return static_cast<T*>(t.data) + offset;
}
template <class Void>
Void* at(Void* data, DType dtype, std::int64_t offset) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return static_cast<Byte*>(data) + offset * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

RowBlock row_block(const Problem& p, const Tensors& a, const ScoreParams& params, const Sequence& seq,
                   std::int64_t batch, std::int64_t kv_head, std::int64_t first_row) {
  const BandMask band = band_mask(p, seq.seq_q, seq.seq_k);
  const SideTensor &bias = params.bias, &mask = params.mask;
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  RowBlock block{};
  const Descale factors(a.q_descale, seq.batch);
  block.rows = static_cast<int>(std::min<std::int64_t>(kRows, seq.seq_q * p.group() - first_row));
  block.first = kFar;
  block.full_to = kFar;
  for (int r = 0; r < kRows; ++r) {
    block.hi[r] = kFar;
    block.factor[r] = 1.0f;
    if (r >= block.rows) continue;
    const std::int64_t token = (first_row + r) / p.group(), head = kv_head * p.group() + (first_row + r) % p.group();
    const Range keys = band.keys_of(token);
    block.lo[r] = keys.lo;
    block.hi[r] = keys.hi;
    if (keys.lo < keys.hi) {
      block.first = std::min<std::int64_t>(block.first, keys.lo);
      block.last = std::max<std::int64_t>(block.last, keys.hi);
    }
    block.full_from = std::max<std::int64_t>(block.full_from, keys.lo);
    block.full_to = std::min<std::int64_t>(block.full_to, keys.hi);
    block.q[r] = at<const std::uint16_t>(a.q, row_offset(a.q, seq.batch, head, seq.q_begin + token));
    block.out[r] = at(a.out.data, a.out.dtype, row_offset(a.out, seq.batch, head, seq.q_begin + token));
    if (p.want_lse) block.lse[r] = at<float>(a.lse, lse_offset(a.lse, seq.batch, head, seq.q_begin + token));
    if (bias.given()) block.bias[r] = at(bias.data, bias.dtype, bias.row(batch, head, token));
    if (mask.given()) block.mask[r] = static_cast<const std::uint8_t*>(mask.data) + mask.row(batch, head, token);
    if (params.slopes) block.slope[r] = params.slope(batch, head);
    block.position[r] = token + band.shift;
    if (p.sinks) block.sink[r] = *at<const float>(a.sinks, head * a.sinks.stride[0]);
    block.factor[r] = factors.at(head, token);
    block.token[r] = static_cast<std::uint32_t>(token);
    block.head[r] = static_cast<std::uint32_t>(head);
  }
  if (block.last == 0) block.first = 0;  // no key is visible
  return block;
}

}  // namespace onepass::cpu::amx
