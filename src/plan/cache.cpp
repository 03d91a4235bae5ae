#include "plan/cache.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "base/make_once.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/attention/options.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/implementation.hpp"
#include "problem/roles.hpp"

namespace onepass::plan {

void CallKey::add(std::uint64_t word) {
  if (size_ == kMaxWords) {
    kept_ = false;
    return;
  }
  words_[size_++] = word;
  hash_ = std::rotl(hash_ ^ word, 29) * 0x9e3779b97f4a7c15u;  // the golden ratio's bits, as Fibonacci hashing has them
}

void CallKey::add(std::string_view text) {
  add(text.size());
  for (std::size_t at = 0; at < text.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, text.size() - at));
    add(word);
  }
}

void CallKey::add(std::uint64_t role, const ConstTensor& t) {
  if (t.rank < 0 || t.rank > kMaxRank) {  // the problem's checks refuse it
    kept_ = false;
    return;
  }
  add(role | static_cast<std::uint64_t>(t.rank) << 8 | static_cast<std::uint64_t>(t.dtype) << 16 |
      static_cast<std::uint64_t>(t.device.kind) << 24 | static_cast<std::uint64_t>(alignment_of(t)) << 32 |
      static_cast<std::uint64_t>(t.data != nullptr) << 40 | static_cast<std::uint64_t>(t.device.index) << 48);
  for (std::size_t i = 0; i < static_cast<std::size_t>(t.rank); ++i) {
    add(static_cast<std::uint64_t>(t.shape[i]));
    add(static_cast<std::uint64_t>(t.stride[i]));
  }
}

// The contents are not checked yet. A device alone knows its own.
void CallKey::add_longest(const ConstTensor& cu) {
  if (!cu.given() || cu.device.kind != DeviceKind::cpu) return;
  if (cu.rank != 1 || cu.dtype != DType::i32 || !cu.data || cu.stride[0] == 0) {
    kept_ = false;
    return;
  }
  std::int64_t longest = 0;
  for (std::int64_t i = 1; i < cu.shape[0]; ++i) longest = std::max(longest, int32_at(cu, i) - int32_at(cu, i - 1));
  add(static_cast<std::uint64_t>(longest));
}

template <class T>
void CallKey::add_option(const T& x) {
  if constexpr (std::is_same_v<T, std::string>) {
    add(std::string_view(x));
  } else if constexpr (std::is_same_v<T, Band>) {
    add(static_cast<std::uint64_t>(x.align) | static_cast<std::uint64_t>(x.causal) << 8);
    for (const std::int64_t n : {x.left, x.right, x.offset}) add(static_cast<std::uint64_t>(n));
  } else if constexpr (std::is_same_v<T, std::array<std::uint32_t, 4>>) {
    for (const std::uint32_t n : x) add(std::uint64_t{n});
  } else if constexpr (std::is_floating_point_v<T>) {
    add(std::bit_cast<std::uint64_t>(double{x}));
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    add(static_cast<std::uint64_t>(x));
  } else {  // std::optional
    add(std::uint64_t{x.has_value()});
    add_option(x.value_or(0));
  }
}

CallKey::CallKey(Op op, const Tensors& t, const CallOptions& a, int workers, std::string_view implementation) {
  kept_ = a.dropout_p == 0 || t.dropout_seed.given();
  if (!kept_) return;
  const auto bit = [](bool is, int at) { return static_cast<std::uint64_t>(is) << at; };
  add(reinterpret_cast<std::uintptr_t>(op.row));
  add(bit(a.fp8.has_value(), 27) | bit(a.interleaved, 28) | bit(a.log, 29) | bit(a.hadamard, 30) |
      bit(t.v.data == t.k.data, 31) | static_cast<std::uint64_t>(workers) << 32);
  add(implementation);
  for_each_option([&](const OptionRow&, auto option) { add_option(a.*option); });
  if (a.fp8) {
    add(bit(a.fp8->by_block, 0) | bit(a.fp8->hadamard, 1) | bit(a.fp8->center, 2));
    add(a.fp8->seed);
  }
  for_each_role(t, [&](const RoleRow& row, const auto& tensor) {
    if (tensor.given()) add(static_cast<std::uint64_t>(row.role), tensor);
  });
  if (is_attention(op) && a.max_seqlen_q == 0) add_longest(t.cu_seqlens_q);
  if (is_attention(op) && a.max_seqlen_k == 0) add_longest(t.cu_seqlens_k);
  for (const auto& [name, tensor] : t.mod_buffers) {
    add(name);
    add(kRoles, tensor);
  }
  for (const ConstTensor& part : t.outs) add(kRoles + 1, part);
  for (const ConstTensor& part : t.lses) add(kRoles + 2, part);
}

class PlanCache::Lock {
 public:
  explicit Lock(Set& set) : set_(set) {
    for (int i = 0; i < kTries && !held_; ++i) held_ = !set_.locked.exchange(true, std::memory_order_acquire);
  }
  ~Lock() {
    if (held_) set_.locked.store(false, std::memory_order_release);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  explicit operator bool() const { return held_; }

 private:
  Set& set_;
  bool held_ = false;
};

bool PlanCache::Entry::is(const CallKey& key) const {
  return plan.state() && hash == key.hash() && std::ranges::equal(words, key.words());
}

Plan PlanCache::find(const CallKey& key) {
  if (!key.is_kept()) return {};
  Set& set = set_of(key);
  const Lock lock(set);
  if (!lock) return {};
  const auto found = std::ranges::find_if(set.entries, [&](const Entry& entry) { return entry.is(key); });
  if (found == set.entries.end()) return {};
  found->used = ++set.count;
  return found->plan;
}

void PlanCache::keep(const CallKey& key, Plan plan) {
  if (!key.is_kept()) return;
  Entry entry{
      key.hash(), 0, {key.words().begin(), key.words().end()}, std::move(plan)};  // its end is behind the lock's
  Set& set = set_of(key);
  const Lock lock(set);
  if (!lock || std::ranges::any_of(set.entries, [&](const Entry& other) { return other.is(key); })) return;
  entry.used = ++set.count;
  std::swap(entry, *std::ranges::min_element(set.entries, {}, &Entry::used));
}

std::size_t PlanCache::size() {
  std::size_t plans = 0;
  for (Set& set : sets_) {
    const Lock lock(set);
    if (lock)
      plans +=
          static_cast<std::size_t>(std::ranges::count_if(set.entries, [](const Entry& e) { return e.plan.state(); }));
  }
  return plans;
}

// It is never destroyed: other threads may call while the process ends.
PlanCache& plan_cache() {
  static constinit MakeOnce<const std::unique_ptr<PlanCache>> once;
  return *once.get([] { return std::make_unique<PlanCache>(); });
}

}  // namespace onepass::plan
