// Enough of CUDA to run header-free device text on the host: threads of a block as contexts of one thread of the
// machine that take turns, warps in step where they exchange words. Inline PTX vanishes (what depends on it is replaced
// by the test); arithmetic that is plain C++ runs as it stands. Include before the device texts and after every
// standard header.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace warps {

struct Index {
  unsigned x = 0;
};

// One thread of the block that runs; the scheduler below switches between them.
struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 17);
  bool done = false;
};
inline ucontext_t scheduler;
inline Thread* running = nullptr;
inline const std::function<void()>* body_of_all = nullptr;
inline void yield() { swapcontext(&running->context, &scheduler); }

// What the lanes of a warp, or the threads of a block, tell each other.
struct Group {
  explicit Group(int size) : word(static_cast<std::size_t>(size)) {}
  // Every member calls it with its word; all words come back.
  std::vector<std::uint64_t> share(std::size_t member, std::uint64_t own) {
    word[member] = own;
    const int turn = turns;
    if (++arrived == word.size()) {
      all = word;
      arrived = 0;
      ++turns;
    }
    while (turns == turn) yield();
    return all;
  }
  std::vector<std::uint64_t> word, all;
  std::size_t arrived = 0;
  int turns = 0;
};
inline Group *warp = nullptr, *block = nullptr;

}  // namespace warps

inline warps::Index threadIdx, blockIdx, gridDim;

namespace warps {

inline void enter() {
  (*body_of_all)();
  running->done = true;
  yield();
}

inline void run_block(int threads, const std::function<void()>& body, unsigned block_number = 0) {
  Group all(threads);
  std::vector<std::unique_ptr<Group>> groups;
  for (int i = 0; i < threads; i += 32) groups.push_back(std::make_unique<Group>(32));
  std::vector<std::unique_ptr<Thread>> pool;
  for (int i = 0; i < threads; ++i) {
    pool.push_back(std::make_unique<Thread>());
    Thread& t = *pool.back();
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data();
    t.context.uc_stack.ss_size = t.stack.size();
    t.context.uc_link = nullptr;
    makecontext(&t.context, enter, 0);
  }
  body_of_all = &body;
  block = &all;
  blockIdx.x = block_number;
  for (bool some = true; some;) {
    some = false;
    for (int i = 0; i < threads; ++i) {
      Thread& t = *pool[static_cast<std::size_t>(i)];
      if (t.done) continue;
      some = true;
      running = &t;
      threadIdx.x = static_cast<unsigned>(i);
      warp = groups[static_cast<std::size_t>(i / 32)].get();
      swapcontext(&scheduler, &t.context);
    }
  }
}
inline std::vector<std::uint64_t> share(std::uint64_t own) { return warp->share(threadIdx.x % 32, own); }

}  // namespace warps

// ---- the intrinsics that the texts use; masks are always whole warps
inline unsigned __ballot_sync(unsigned, bool own) {
  unsigned bits = 0;
  const auto all = warps::share(own);
  for (int i = 0; i < 32; ++i) bits |= static_cast<unsigned>(all[static_cast<std::size_t>(i)]) << i;
  return bits;
}
inline bool __any_sync(unsigned mask, bool own) { return __ballot_sync(mask, own) != 0; }
template <class T>
T shuffled(T own, int from) {
  std::uint64_t word = 0;
  std::copy_n(reinterpret_cast<const unsigned char*>(&own), sizeof own, reinterpret_cast<unsigned char*>(&word));
  const auto all = warps::share(word);
  T out;
  std::copy_n(reinterpret_cast<const unsigned char*>(&all[static_cast<std::size_t>(from)]), sizeof out,
              reinterpret_cast<unsigned char*>(&out));
  return out;
}
template <class T>
T __shfl_sync(unsigned, T own, int from) {
  return shuffled(own, from % 32);
}
template <class T>
T __shfl_xor_sync(unsigned, T own, int with) {
  return shuffled(own, static_cast<int>(threadIdx.x % 32) ^ with);
}
template <class T>
T __shfl_up_sync(unsigned, T own, int by) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return shuffled(own, lane >= by ? lane - by : lane);
}
inline int __syncthreads_or(int own) {
  const auto all = warps::block->share(threadIdx.x, own != 0);
  return std::any_of(all.begin(), all.end(), [](std::uint64_t x) { return x != 0; });
}
inline int __syncthreads_and(int own) {
  const auto all = warps::block->share(threadIdx.x, own != 0);
  return std::all_of(all.begin(), all.end(), [](std::uint64_t x) { return x != 0; });
}
inline void __syncwarp() { warps::share(0); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned atomicAdd(unsigned* at, unsigned by) { return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST); }
inline std::size_t __cvta_generic_to_shared(const void*) { return 0; }
using std::max, std::min;

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define asm(...)
#define volatile(...) ("")  // of asm volatile(...)
