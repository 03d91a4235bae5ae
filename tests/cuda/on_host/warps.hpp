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
#include <utility>
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

// Where a thread stopped. makecontext begins it; from then on the compiler's setjmp and longjmp switch: swapcontext
// asks the system for the mask of signals at each switch, which took half of the time of long tests.
struct Context {
  ucontext_t first;
  void* stopped[5];
  bool begun = true;  // as the scheduler has, whose stack is the program's
  void begin(char* stack, std::size_t bytes, void (*function)()) {
    begun = false;
    getcontext(&first);
    first.uc_stack.ss_sp = stack;
    first.uc_stack.ss_size = bytes;
    first.uc_link = nullptr;
    makecontext(&first, function, 0);
  }
};
// __builtin_longjmp may not be called by the function that called __builtin_setjmp.
[[noreturn, gnu::noinline, gnu::no_sanitize_address]] inline void resume(Context& to) {
  __builtin_longjmp(to.stopped, 1);
}
[[gnu::noinline, gnu::no_sanitize_address]] inline void switch_context(Context& from, Context& to) {
  if (__builtin_setjmp(from.stopped) != 0) return;
  if (std::exchange(to.begun, true)) resume(to);
  setcontext(&to.first);
}

// One thread of the block that runs; the scheduler below switches between them.
struct Thread {
  static constexpr std::size_t kStack = 1 << 17;
  Context context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool done = false;
  // Tells if what a waiting thread waits for has come. The scheduler asks before it gives the thread a turn. A turn for
  // each look took four fifths of the time of long tests.
  bool (*has_come)(const void* wait) = nullptr;
  const void* wait = nullptr;
  // Copies begun in the background: those committed, group by group, and those that are not yet.
  std::deque<std::vector<std::function<void()>>> groups;
  std::vector<std::function<void()>> begun;
};
inline Context scheduler;
inline Thread* running = nullptr;
inline const std::function<void()>* body_of_all = nullptr;
inline unsigned long steps = 0;  // anything that brings a block nearer to its end
inline void yield() { switch_context(running->context, scheduler); }
template <class HasCome>
void wait_until(const HasCome& has_come) {
  if (has_come()) return;
  running->wait = &has_come;
  running->has_come = [](const void* wait) { return (*static_cast<const HasCome*>(wait))(); };
  yield();
  running->has_come = nullptr;
}
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
    wait_until([&] { return turns_ != turn; });
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
    t.has_come = nullptr;
    t.groups.clear();
    t.begun.clear();
    t.context.begin(t.stack.get(), Thread::kStack, enter);
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
      if (pool[i]->has_come && !pool[i]->has_come(pool[i]->wait)) continue;
      running = pool[i].get();
      rank = i / threads;
      block = &all[rank];
      blockIdx.x = block_number + rank;
      threadIdx.x = i % threads;
      warp = groups[i / 32].get();
      switch_context(scheduler, running->context);
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
