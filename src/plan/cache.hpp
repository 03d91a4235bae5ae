// Plans of earlier calls. A call of the one-call interfaces whose tensors and options look like those of a call before
// it takes that call's plan, and checks only what its addresses and contents can make wrong.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "onepass/plan.hpp"
#include "problem/operator.hpp"
#include "problem/tensors.hpp"

namespace onepass::plan {

// Everything of a call that its plan depends on: operator, options, worker count, and of each tensor all but its
// address, of which the alignment and whether v starts where k does count. Packed lengths count by their bounds: the
// caller's, else the longest.
class CallKey {
 public:
  CallKey(Op op, const Tensors& tensors, const CallOptions& options, int workers, std::string_view implementation);

  // False of a call whose plan is not kept: its dropout has a number for a seed, a new one in each step, its cu_seqlens
  // cannot be read, or its key is longer than kMaxWords (25 parts of a merge, 3 KB of expressions).
  bool is_kept() const { return kept_; }
  std::uint64_t hash() const { return hash_; }
  std::span<const std::uint64_t> words() const { return {words_.data(), size_}; }

 private:
  static constexpr std::size_t kMaxWords = 512;
  void add(std::uint64_t word);
  void add(std::string_view text);
  void add(std::uint64_t role, const ConstTensor& tensor);
  void add_longest(const ConstTensor& cu_seqlens);
  template <class T>
  void add_option(const T& value);

  bool kept_ = true;
  std::size_t size_ = 0;
  std::uint64_t hash_ = 0;
  std::array<std::uint64_t, kMaxWords> words_;  // uninitialised behind size_
};

// At most kSets x kWays plans; the least recently used of a set makes room. Threads share it. A set is locked for some
// 50 ns, and a caller that does not get it in kTries tries plans anew: after fork() a child may find sets that a thread
// which it does not have has locked.
class PlanCache {
 public:
  static constexpr std::size_t kSets = 256, kWays = 4;

  Plan find(const CallKey& key);  // empty if there is none
  void keep(const CallKey& key, Plan plan);
  std::size_t size();  // how many plans it holds

 private:
  static constexpr int kTries = 100;
  struct Entry {
    std::uint64_t hash = 0, used = 0;  // used: the set's count when it was last found
    std::vector<std::uint64_t> words;
    Plan plan;
    bool is(const CallKey& key) const;
  };
  struct Set {
    std::atomic<bool> locked{false};
    std::uint64_t count = 0;
    std::array<Entry, kWays> entries;
  };
  class Lock;  // of a set, if it was free
  Set& set_of(const CallKey& key) { return sets_[key.hash() % kSets]; }

  std::array<Set, kSets> sets_;
};

PlanCache& plan_cache();  // the process's

}  // namespace onepass::plan
