// A stub for src/cuda/device/cluster.cuh.
#pragma once
#include "cuda/device/tma.cuh"

namespace onepass {

constexpr u32 kPair = 2;

DEV u32 pair_rank() { return warps::rank; }
DEV void pair_sync() { warps::cluster->share(warps::rank * warps::block->size() + threadIdx.x, 0); }
DEV u32 of_partner(u32 address) { return warps::own_address(address) | (warps::rank ^ 1) << warps::kRankBit; }
// f(), as if in the other block.
template <class F>
void in_partner(const F& f) {
  warps::rank ^= 1;
  f();
  warps::rank ^= 1;
}
DEV void mbar_arrive_there(u32 bar) {
  in_partner([&] { mbar_arrive(bar); });
}
// Bytes on their way to the other block: read and written at once, or late.
template <class Read>
void send(u32 to, const Read& read, u32 bytes, u32 bar) {
  const auto land = [=] {
    const std::vector<unsigned char> data = read();
    in_partner([&] {
      std::memcpy(shared_at<char>(to, 4), data.data(), bytes);
      warps::MemoryBarrier& b = warps::hopper().memory_barrier(bar);
      b.bytes -= bytes;
      b.settle();
    });
  };
  if (warps::copies_are_early)
    land();
  else
    warps::background.push_back(land);
}
DEV void bulk_copy_there(u32 to, u32 from, u32 bytes, u32 bar) {
  if ((to | from | bytes) % 16 != 0) warps::fail("a bulk copy is not aligned");
  const auto read = [=] {
    const auto* const at = shared_at<unsigned char>(from, 16);
    return std::vector<unsigned char>(at, at + bytes);
  };
  send(to, read, bytes, bar);
}
DEV void store_word_there(u32 to, i32 x, u32 bar) {
  const auto read = [=] {
    std::vector<unsigned char> data(4);
    std::memcpy(data.data(), &x, 4);
    return data;
  };
  send(to, read, 4, bar);
}

}  // namespace onepass
