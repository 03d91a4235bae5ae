// The parts of a CTA on Hopper besides warps.hpp: barriers in shared memory, named barriers, boxes that TMA
// copies, and warpgroups whose products run in the background. The stubs for barrier.cuh, tma.cuh and wgmma.cuh use
// it.
#pragma once
#include <map>

#include "on_host/warps.hpp"

namespace warps {

struct MemoryBarrier {
  unsigned arrivals = 0, pending = 0, phase = 0;
  long long bytes = 0;
  void arrive() {
    if (pending == 0) fail("more arrivals than the barrier has");
    --pending;
    settle();
  }
  void settle() {
    ++steps;
    if (pending == 0 && bytes == 0) pending = arrivals, phase ^= 1;
  }
};
struct NamedBarrier {
  unsigned threads = 0, arrived = 0, turns = 0;
  bool any[2] = {};                                    // of what a turn's threads bring
  unsigned arrive(unsigned count, bool own = false) {  // the turn that it ends
    if (arrived > 0 && count != threads) fail("a barrier's threads disagree on their number");
    threads = count;
    ++steps;
    const unsigned turn = turns;
    any[turn % 2] = own || (arrived > 0 && any[turn % 2]);
    if (++arrived == count) arrived = 0, ++turns;
    return turn;
  }
};

// A matrix product as one lane has asked for it; run computes it, given those of all 128 lanes.
struct Product {
  void (*run)(const std::array<const Product*, 128>& lanes);
  float* d;
  const unsigned* a_fragment;  // or null: a_descriptor
  std::uint64_t a_descriptor, b_descriptor;
  int accumulate;
};
struct Warpgroup {
  struct Lane {
    std::vector<Product> issued;
    std::deque<std::vector<Product>> groups;
  };
  std::array<Lane, 128> lanes;
  unsigned arrived = 0, turns = 0;

  Lane& own() { return lanes[threadIdx.x % 128]; }
  // All 128 lanes are here; the products of all but the youngest groups are over. Where copies are early, and so write
  // a place as soon as it is given back, these are late; where copies are late, they do not wait for them.
  void finish(std::size_t younger) {
    ++steps;
    const unsigned turn = turns;
    if (++arrived == 128) {
      const auto run = [this, younger] {
        while (lanes[0].groups.size() > younger) run_oldest();
        arrived = 0;
        ++turns;
      };
      if (copies_are_early)
        background.push_back(run);
      else
        run();
    }
    wait_until([&] { return turns != turn; });
  }

 private:
  void run_oldest() {
    const std::size_t count = lanes[0].groups.front().size();
    for (std::size_t i = 0; i < count; ++i) {
      std::array<const Product*, 128> all;
      for (std::size_t l = 0; l < 128; ++l) {
        if (lanes[l].groups.empty() || lanes[l].groups.front().size() != count) fail("lanes issued different products");
        all[l] = &lanes[l].groups.front()[i];
        const Product &x = *all[l], &first = *all[0];
        if (x.run != first.run || x.a_descriptor != first.a_descriptor || x.b_descriptor != first.b_descriptor ||
            x.accumulate != first.accumulate)
          fail("lanes disagree on a product");
      }
      all[0]->run(all);
    }
    for (Lane& lane : lanes) lane.groups.pop_front();
  }
};

struct Hopper {
  std::map<unsigned, MemoryBarrier> memory_barriers;
  std::array<NamedBarrier, 16> named_barriers;
  std::array<Warpgroup, 8> warpgroups;

  MemoryBarrier& memory_barrier(unsigned address) {
    const auto at = memory_barriers.find(address);
    if (at == memory_barriers.end()) fail("a barrier that was not initialised");
    return at->second;
  }
};
inline std::array<Hopper, 2> hoppers;  // of the blocks of a cluster
inline Hopper& hopper() { return hoppers[rank]; }
inline Warpgroup& warpgroup() { return hopper().warpgroups[threadIdx.x / 128]; }

// The tests' own tensor map: a tensor [size[3], ..., size[0]], strides in bytes, read in boxes of 128
// bytes of columns x `rows`.
struct TensorBox {
  unsigned char* data;
  std::uint64_t size[4], stride[3];
  unsigned rows, element_bytes;

  // each(piece, bytes, at): the box's 16-byte pieces and where they lie in shared memory behind `address`; bytes < 16
  // or 0 where the tensor ends.
  template <class Each>
  void walk(unsigned address, const int (&c)[4], const Each& each) const {
    address = own_address(address);
    if (address % 128 != 0) fail("a box in shared memory is not aligned");
    if (address + rows * 128 > kSharedBytes) fail("a box lies beyond shared memory");
    const auto inside = [&](int i, int at) { return at >= 0 && static_cast<std::uint64_t>(at) < size[i]; };
    const auto columns = static_cast<int>(16 / element_bytes);
    for (int r = 0; r < static_cast<int>(rows); ++r) {
      const bool row = inside(1, c[1] + r) && inside(2, c[2]) && inside(3, c[3]);
      for (int i = 0; i < 8; ++i) {
        const int first = c[0] + i * columns;
        if (first < 0) fail("a box begins before a tensor's first column");
        const auto real = row ? std::clamp<long long>(static_cast<long long>(size[0]) - first, 0, columns) : 0;
        unsigned char* const piece = real == 0 ? nullptr
                                               : data + static_cast<std::uint64_t>(first) * element_bytes +
                                                     static_cast<std::uint64_t>(c[1] + r) * stride[0] +
                                                     static_cast<std::uint64_t>(c[2]) * stride[1] +
                                                     static_cast<std::uint64_t>(c[3]) * stride[2];
        const unsigned at = address + static_cast<unsigned>(r * 128 + i * 16);
        each(piece, static_cast<std::size_t>(real) * element_bytes, memory() + (at ^ (at >> 7 & 7) << 4));
      }
    }
  }
};

}  // namespace warps
