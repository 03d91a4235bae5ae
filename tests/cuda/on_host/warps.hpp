// Enough of CUDA to run header-free device source on the host: threads of a block as contexts of one thread of the
// machine that take turns, warps in step where they exchange words. What inline PTX does is in the stubs for
// files of src/cuda/device (stubs/, first on the include path), what Hopper adds in hopper.hpp, the language in
// intrinsics.hpp.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

namespace warps {

struct Index {
  unsigned x = 0;
};

[[noreturn]] inline void fail(const char* sentence, const char* detail = "") {
  std::fprintf(stderr, "device source on the host: %s %s\n", sentence, detail);
  std::abort();
}
// Empty PTX only holds the compiler back.
inline void instruction(const char* text) {
  if (std::strncmp(text, "\"\"", 2) != 0) fail("there is no stub for", text);
}

// One thread of the block that runs; the scheduler below switches between them.
struct Thread {
  static constexpr std::size_t kStack = 1 << 17;
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool done = false;
  // Copies begun in the background: those committed, group by group, and those that are not yet.
  std::deque<std::vector<std::function<void()>>> groups;
  std::vector<std::function<void()>> begun;
};
inline ucontext_t scheduler;
inline Thread* running = nullptr;
inline const std::function<void()>* body_of_all = nullptr;
inline unsigned long steps = 0;  // anything that brings a block nearer to its end
inline void yield() { swapcontext(&running->context, &scheduler); }
inline unsigned rank = 0;  // of the block that runs, in a cluster of two

// Nothing may depend on these: copies in the background are over at once, instead of as late as a program allows; the
// last thread takes the first turn; a block of a cluster, by its rank, goes as far ahead of the other as it can (-1:
// they take turns), since what one overwrites too soon is seen only while the other has not read it.
inline bool copies_are_early = false, backwards = false;
inline int ahead = -1;

// Work of the machine beside the threads. Late, it waits until none of them can go on.
class Background {
 public:
  bool empty() const { return work_.empty(); }
  void push_back(std::function<void()> f) { work_.emplace_back(rank, std::move(f)); }
  void run_oldest() {  // of the block that goes ahead, if it has any
    auto at = ahead < 0 ? work_.begin() : std::ranges::find(work_, static_cast<unsigned>(ahead), &Work::first);
    if (at == work_.end()) at = work_.begin();
    const auto [of, work] = std::move(*at);
    work_.erase(at);
    rank = of;
    work();
  }

 private:
  using Work = std::pair<unsigned, std::function<void()>>;  // a block's
  std::deque<Work> work_;
};
inline Background background;

// The values that the lanes of a warp, or the threads of a CTA, exchange.
class Group {
 public:
  explicit Group(unsigned size) : size_(size) {}
  unsigned size() const { return size_; }
  // Every member calls it with its value; all members' values come back.
  template <class T>
  std::vector<T> share(unsigned member, const T& own) {
    if (arrived_ == 0) given_.resize(size_ * sizeof(T));
    if (given_.size() != size_ * sizeof(T)) fail("lanes of a warp are at different instructions");
    std::memcpy(&given_[member * sizeof(T)], &own, sizeof(T));
    const unsigned turn = turns_;
    ++steps;
    if (++arrived_ == size_) {
      all_ = given_;
      arrived_ = 0;
      ++turns_;
    }
    while (turns_ == turn) yield();
    std::vector<T> all(size_);
    std::memcpy(all.data(), all_.data(), all_.size());
    return all;
  }

 private:
  unsigned size_, arrived_ = 0, turns_ = 0;
  std::vector<unsigned char> given_, all_;
};
inline Group *warp = nullptr, *block = nullptr, *cluster = nullptr;

}  // namespace warps

inline warps::Index threadIdx, blockIdx, gridDim;
extern "C" {
// Shared memory of the block that runs, or of the two of a cluster; kernels declare it by this name.
alignas(1024) inline unsigned char smem[2 * 232448];
}

namespace warps {

inline constexpr std::size_t kSharedBytes = sizeof smem / 2;
inline unsigned char* memory() { return smem + rank * kSharedBytes; }  // of the block that runs
// Addresses in shared memory have the block's number in a cluster above these bits, as on a device.
inline constexpr unsigned kRankBit = 24;
inline unsigned own_address(unsigned address) {
  if (address >> kRankBit != rank) fail("an address of the other block's shared memory");
  return address & ((1u << kRankBit) - 1);
}

inline void enter() {
  (*body_of_all)();
  running->done = true;
  ++steps;
  yield();
}

// body() once by each of `threads` threads, 32 to a warp, of each block of a cluster.
inline void run_block(unsigned threads, const std::function<void()>& body, unsigned block_number = 0,
                      unsigned blocks = 1) {
  static std::vector<std::unique_ptr<Thread>> pool;
  const unsigned in_all = threads * blocks;
  while (pool.size() < in_all) pool.push_back(std::make_unique<Thread>());
  Group all[] = {Group(threads), Group(threads)}, both(in_all);
  std::vector<std::unique_ptr<Group>> groups;
  for (unsigned i = 0; i < in_all; i += 32) groups.push_back(std::make_unique<Group>(32u));
  for (unsigned i = 0; i < in_all; ++i) {
    Thread& t = *pool[i];
    t.done = false;
    t.groups.clear();
    t.begun.clear();
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.get();
    t.context.uc_stack.ss_size = Thread::kStack;
    t.context.uc_link = nullptr;
    makecontext(&t.context, enter, 0);
  }
  body_of_all = &body;
  cluster = &both;
  for (bool some = true; some;) {
    some = false;
    const unsigned long before = steps;
    for (unsigned turn = 0; turn < in_all; ++turn) {
      if (ahead >= 0 && turn == threads && steps != before) break;  // the other block's turn comes when this one waits
      unsigned i = backwards ? in_all - 1 - turn : turn;
      if (ahead >= 0 && (static_cast<int>(i / threads) == ahead) != (turn < threads)) i = (i + threads) % in_all;
      if (pool[i]->done) continue;
      some = true;
      running = pool[i].get();
      rank = i / threads;
      block = &all[rank];
      blockIdx.x = block_number + rank;
      threadIdx.x = i % threads;
      warp = groups[i / 32].get();
      swapcontext(&scheduler, &running->context);
    }
    if (!some || steps != before) continue;
    if (background.empty()) fail("its threads wait for each other");
    background.run_oldest();
  }
  rank = 0;
}
template <class T>
std::vector<T> share(const T& own) {
  return warp->share(threadIdx.x % 32, own);
}

}  // namespace warps
