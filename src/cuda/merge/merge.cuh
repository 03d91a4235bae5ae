// Finished partial results (O, LSE) over disjoint keys become one: out = sum_i w_i O_i / sum_i w_i with
// w_i = e^(LSE_i - max).
//
// The lanes of a row first share its LSEs out among them, then each makes its own pieces of out, and every O_i is read
// once, several parts at a time. A part whose LSE is -inf is not read. Sums are taken in one order: the bits are the
// same every time.
#pragma once
#include "cuda/device/formats.cuh"
#include "cuda/device/shared.cuh"

#include "cuda/merge/merge_params.hpp"

namespace onepass {

using MergeCall = MergeParams<merge_config.capacity>;
constexpr i32 kRowLanes = merge_config.lanes(), kAtOnce = merge_config.at_once();
constexpr i32 kPartsAtOnce = 4;

struct MergeRow {
  i64 batch, head, token;
  DEV i64 in(const long long (&stride)[3]) const { return batch * stride[0] + head * stride[1] + token * stride[2]; }
};
struct RowWeights {
  float most, inverse;
  DEV float weight(float lse) const { return part_weight(lse, most) * inverse; }
};

// kAtOnce elements of a part, by pieces of `bytes`; unpacked only when all that is read at once is under way.
template <i32 bytes>
struct PartPiece {
  using Format = ElementOf<merge_config.input>::Format;
  float word[4] = {};
  DEV void load(const void* base, i64 at) {
    const auto* const from = reinterpret_cast<const float*>(static_cast<const typename Format::Raw*>(base) + at);
    if constexpr (bytes == 16) {
      load_global(word, from);
    } else {
#pragma unroll
      for (i32 i = 0; i < 4; ++i) word[i] = from[i];
    }
  }
  DEV float operator[](i32 i) const {
    if constexpr (Format::kPacked == 1)
      return word[i];
    else
      return Format::unpack(static_cast<u16>(__float_as_uint(word[i / 2]) >> i % 2 * 16));
  }
};

DEV float part_element(const MergePart& part, i64 at) {
  if (part.type == ScalarType::f32) return element_at<ScalarType::f32>(part.out, at);
  return part.type == ScalarType::f16 ? element_at<ScalarType::f16>(part.out, at)
                                      : element_at<ScalarType::bf16>(part.out, at);
}

// sum += the weighted O of all parts, elements d .. d + kAtOnce.
template <i32 bytes>
DEV void add_parts(const MergeCall& p, const MergeRow& row, const RowWeights& weights, i32 d, float (&sum)[kAtOnce]) {
  const i64 first_out = row.in(p.part[0].out_stride), first_lse = row.in(p.part[0].lse_stride);
  const auto out_at = [&](i32 i) { return d + (p.alike ? first_out : row.in(p.part[i].out_stride)); };
  const auto lse_of = [&](i32 i) {
    return i < p.parts ? p.part[i].lse[p.alike ? first_lse : row.in(p.part[i].lse_stride)] : kNegInf;
  };
  if constexpr (bytes > 0) {
    for (i32 first = 0; first < p.parts; first += kPartsAtOnce) {
      PartPiece<bytes> piece[kPartsAtOnce];
      float lse[kPartsAtOnce];
#pragma unroll
      for (i32 i = 0; i < kPartsAtOnce; ++i) lse[i] = lse_of(first + i);
#pragma unroll
      for (i32 i = 0; i < kPartsAtOnce; ++i)
        if (lse[i] != kNegInf) piece[i].load(p.part[first + i].out, out_at(first + i));
#pragma unroll
      for (i32 i = 0; i < kPartsAtOnce; ++i) {
        const float weight = weights.weight(lse[i]);
#pragma unroll
        for (i32 x = 0; x < kAtOnce; ++x)
          if (lse[i] != kNegInf) sum[x] = fmaf(weight, piece[i][x], sum[x]);
      }
    }
  } else {
    for (i32 i = 0; i < p.parts; ++i) {
      const float lse = lse_of(i), weight = weights.weight(lse);
      if (lse == kNegInf) continue;
#pragma unroll
      for (i32 x = 0; x < kAtOnce; ++x)
        if (d + x < merge_config.dim) sum[x] = fmaf(weight, part_element(p.part[i], out_at(i) + x), sum[x]);
    }
  }
}

template <class Format>
DEV void write_piece(const MergeCall& p, i64 at, i32 d, const float (&x)[kAtOnce]) {
  auto* const to = static_cast<typename Format::Raw*>(p.out) + at + d;
  if (p.write_pieces && d + kAtOnce <= merge_config.dim) {
    constexpr i32 kWords = kAtOnce / Format::kPacked, kStored = kWords < 4 ? kWords : 4;
#pragma unroll
    for (i32 first = 0; first < kWords; first += kStored) {
      u32 word[kStored];
#pragma unroll
      for (i32 i = 0; i < kStored; ++i) {
        if constexpr (Format::kPacked == 1)
          word[i] = __float_as_uint(x[first + i]);
        else
          word[i] = Format::pack(x[2 * i], x[2 * i + 1]);
      }
      store_global(to + first, word);
    }
  } else {
#pragma unroll
    for (i32 i = 0; i < kAtOnce; ++i)
      if (d + i < merge_config.dim) to[i] = Format::round(x[i]);
  }
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kMergeThreads)
    merge_parts(const __grid_constant__ onepass::MergeCall p) {
  using namespace onepass;
  const u32 number = blockIdx.x * merge_config.rows() + threadIdx.x / kRowLanes;
  const i32 lane = static_cast<i32>(threadIdx.x % kRowLanes);
  const u32 index = min(number, p.rows - 1), above = index / p.seq;  // lanes beyond the last row repeat it
  const MergeRow row{above / p.heads, above % p.heads, index % p.seq};

  float most = kNegInf, sum = 0.0f;
  for (i32 i = lane; i < p.parts; i += kRowLanes) most = fmaxf(most, p.part[i].lse[row.in(p.part[i].lse_stride)]);
#pragma unroll
  for (i32 step = kRowLanes / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  for (i32 i = lane; i < p.parts; i += kRowLanes) sum += part_weight(p.part[i].lse[row.in(p.part[i].lse_stride)], most);
#pragma unroll
  for (i32 step = kRowLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const i32 dim = number < p.rows ? merge_config.dim : 0;  // no element of a row beyond the last

  const Final<float> all = finalize_natural(RowState<float>{most, sum});
  const RowWeights weights{most, all.inv_l};
  for (i32 d = lane * kAtOnce; d < dim; d += kRowLanes * kAtOnce) {
    float o[kAtOnce] = {};
    const bool whole = d + kAtOnce <= merge_config.dim;
    if (whole && p.read_bytes == 16)
      add_parts<16>(p, row, weights, d, o);
    else if (whole && p.read_bytes == 4)
      add_parts<4>(p, row, weights, d, o);
    else
      add_parts<0>(p, row, weights, d, o);
    write_piece<ElementOf<merge_config.output>::Format>(p, row.in(p.out_stride), d, o);
  }
  // Last, and when all lanes of the row have read its LSEs: it may be one of them, as out may be one of the parts.
  __syncwarp();
  if (number < p.rows && lane == 0 && p.lse) p.lse[row.in(p.lse_stride)] = all.lse;
}
