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
// What the machine does beside the threads. Late, it waits until none of them can go on.
inline std::deque<std::function<void()>> background;

// Nothing may depend on these: copies in the background are over at once, instead of as late as a program allows; the
// last thread takes the first turn.
inline bool copies_are_early = false, backwards = false;

// What the lanes of a warp, or the threads of a block, tell each other.
class Group {
 public:
  explicit Group(unsigned size) : size_(size) {}
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
inline Group *warp = nullptr, *block = nullptr;

}  // namespace warps

inline warps::Index threadIdx, blockIdx, gridDim;
extern "C" {
alignas(1024) inline unsigned char smem[232448];  // the block's shared memory; kernels declare it by this name
}

namespace warps {

inline void enter() {
  (*body_of_all)();
  running->done = true;
  ++steps;
  yield();
}

// body() once by each of `threads` threads, 32 to a warp.
inline void run_block(unsigned threads, const std::function<void()>& body, unsigned block_number = 0) {
  static std::vector<std::unique_ptr<Thread>> pool;
  while (pool.size() < threads) pool.push_back(std::make_unique<Thread>());
  Group all(threads);
  std::vector<std::unique_ptr<Group>> groups;
  for (unsigned i = 0; i < threads; i += 32) groups.push_back(std::make_unique<Group>(32u));
  for (unsigned i = 0; i < threads; ++i) {
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
  block = &all;
  blockIdx.x = block_number;
  for (bool some = true; some;) {
    some = false;
    const unsigned long before = steps;
    for (unsigned turn = 0; turn < threads; ++turn) {
      const unsigned i = backwards ? threads - 1 - turn : turn;
      if (pool[i]->done) continue;
      some = true;
      running = pool[i].get();
      threadIdx.x = i;
      warp = groups[i / 32].get();
      swapcontext(&scheduler, &running->context);
    }
    if (!some || steps != before) continue;
    if (background.empty()) fail("its threads wait for each other");
    background.front()();
    background.pop_front();
  }
}
template <class T>
std::vector<T> share(const T& own) {
  return warp->share(threadIdx.x % 32, own);
}

}  // namespace warps
