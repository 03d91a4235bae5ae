// Rows of 16-bit elements to fp8_e4m3, by tiles of 128 rows. Three algorithms, each amax -> scale -> store:
//
//   blocks      a scale for each tile: its own amax. x is read once.
//   estimated   a scale for whole heads: estimated from a sample of their rows. x is read once and stored at once; the
//               amax that was met goes to the workspace.
//   requantize  the launch behind it, for heads whose amax exceeds the estimated scale: the exact scale, and all of
//               their rows once more.
//
// A CTA has some tiles of a head, one after the other: what they share is made once, and the next tile's loads are
// under way while results are stored. tile.cuh has the steps on a tile, hadamard.cuh its rotation, scale_group.cuh the
// estimate. A launch has up to three jobs, such as q, k and v of one attention.
#pragma once
#include "cuda/device/order.cuh"

#include "cuda/quantize/tile.cuh"

namespace onepass {

template <i32 job>
DEV void quantize_blocks(const QuantizeParams& p, i32 block, u32 shared) {
  using Tile = QuantizeTile<job>;
  Tile tile = Tile::first(p, block);
  typename Tile::Rotated rotated;
  tile.begin(rotated, shared);
  u32 place = 0;
  do {
    tile.arrive(shared);
    float amax = cta_max(tile.amax(rotated, false, 0.0f, true), shared, place++ % 2);
    const bool finite = is_finite(amax);
    if (!finite) amax = cta_max(tile.amax(rotated, true, 0.0f, false), shared, place++ % 2);
    if constexpr (Tile::kRotated) {
      amax *= p.root;
      rotated.rotation.b[0][0] = opaque(rotated.rotation.b[0][0]);  // else the products of the amax would be kept
    }
    const float scale = descale_for(amax);
    if (threadIdx.x == 0) p.descale[tile.at(p.descale_stride, tile.tile)] = scale;
    tile.store(rotated, true, scale, finite);
  } while (tile.next());
}

// The workspace gets the scale in `sums`, and the CTA's amax: negative if there are infinities, which do not count.
template <i32 job>
DEV void quantize_estimated(const QuantizeParams& p, i32 block, u32 shared) {
  using Tile = QuantizeTile<job>;
  constexpr bool kAmaxFirst = !Tile::kRotated || Tile::kHoldsAll;  // else the store meets it
  Tile tile = Tile::first(p, block);
  const ScaleGroup<job> group = ScaleGroup<job>::of(p, tile.head);
  typename ScaleGroup<job>::Sample sample;
  group.load(sample, tile.head);
  typename Tile::Rotated rotated;
  tile.begin(rotated, shared);
  const float scale = descale_for(fminf(group.estimated_amax(sample, shared), 0x1p120f));
  if (threadIdx.x == 0 && tile.tile == 0) p.descale[tile.at(p.descale_stride, 0)] = p.sums[tile.head] = scale;
  float amax = 0.0f;
  do {
    tile.arrive(shared);
    if constexpr (kAmaxFirst) amax = tile.amax(rotated, false, amax, true);
    tile.store(rotated, Tile::kHoldsAll, scale, true, Tile::kHoldsAll ? nullptr : &amax);
  } while (tile.next());
  amax = cta_max(amax, shared, 1);
  const bool finite = is_finite(amax);
  if (!finite) {  // all tiles once more: infinities become NaN
    amax = 0.0f, tile.tile = Tile::first_tile(p, block), tile.load(tile.tile);
    do {
      tile.arrive(shared);
      amax = tile.amax(rotated, false, amax, false);
      tile.store(rotated, false, scale, false);
    } while (tile.next());
    amax = cta_max(amax, shared, 0);
  }
  if constexpr (Tile::kRotated) amax *= p.root;
  if (threadIdx.x == 0) p.amax[block] = finite ? amax : -amax;
}

template <i32 job>
DEV void requantize(const QuantizeParams& p, i32 block, u32 shared) {
  using Tile = QuantizeTile<job>;
  const i32 own = block % p.requant_blocks;
  const auto group = ScaleGroup<job>::at(p, block / p.requant_blocks);
  Tile tile{p, group.first, 0, p.blocks};
  bool finite;
  const float amax = group.found_amax(finite, shared);
  if (amax <= 448.0f * p.sums[group.first]) return;  // e4m3's largest: the estimate suffices
  const float scale = descale_for(amax);
  if (threadIdx.x == 0 && own == 0) p.descale[tile.at(p.descale_stride, 0)] = scale;
  typename Tile::Rotated rotated;
  tile.begin_rotation(rotated, shared);
  for (i32 i = own; i < group.heads() * p.blocks; i += p.requant_blocks) {
    tile.head = group.head(i / p.blocks), tile.tile = i % p.blocks;
    tile.load(tile.tile), tile.arrive(shared);
    tile.store(rotated, false, scale, finite);
  }
}

template <i32 job = 0>
DEV void run_job(const QuantizeJobs& jobs, i32 block, u32 shared) {
  if constexpr (job + 1 < quantize_jobs.count)
    if (block >= jobs.blocks[job]) return run_job<job + 1>(jobs, block - jobs.blocks[job], shared);
  const QuantizeParams& p = jobs.job[job];
  if constexpr (quantize_jobs.follows())
    wait_for_kernel_before();
  else
    let_next_kernel_start();
  constexpr QuantizePart kPart = quantize_jobs.job[job].part;
  if constexpr (kPart == QuantizePart::estimate)
    quantize_estimated<job>(p, block, shared);
  else if constexpr (kPart == QuantizePart::requantize)
    requantize<job>(p, block, shared);
  else
    quantize_blocks<job>(p, block, shared);
}

}  // namespace onepass

extern "C" __global__ void __launch_bounds__(onepass::kThreads, onepass::quantize_jobs.blocks_at_once())
    quantize_tiles(const __grid_constant__ onepass::QuantizeJobs jobs) {
  extern __shared__ __align__(128) unsigned char smem[];
  onepass::run_job(jobs, static_cast<onepass::i32>(blockIdx.x), onepass::shared_address(smem));
}
