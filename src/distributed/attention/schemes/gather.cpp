// The scheme gather. The keys that this rank's rows see come from the ranks that have them, and its parts are calls on
// all of them. In the backward they come again. Their fp32 gradients go back to the ranks that have the keys, which add
// them up.
#include "distributed/attention/schemes/schemes.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "distributed/attention/exchange.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

using Memory = std::unique_ptr<Owned>;

Coming rows_coming(const ConstTensor& like, DType dtype, Range rows) {
  return {dtype, {like.shape[0], like.shape[1], rows.size(), like.shape[3]}};
}
Memory rows_like(const ConstTensor& like, DType dtype, Index rows, const Job& job) {
  return std::make_unique<Owned>(dtype, std::initializer_list<Index>{like.shape[0], like.shape[1], rows, like.shape[3]},
                                 job.device(), job.launch);
}

// Gathered keys of some heads, which are on their way at first.
class Gathered {
 public:
  explicit Gathered(const Job& job) : job_(job) {
    const AttentionTensors& t = job.tensors;
    const std::vector<Piece> pieces = gathered(job.how.layout, job.visibility, job.me());
    count_ = pieces.empty() ? 0 : pieces.back().rows.end;
    k_ = rows_like(t.k, t.k.dtype, count_, job), v_ = rows_like(t.v, t.v.dtype, count_, job);
    begin();
  }
  const Job& job() const { return job_; }
  Index count() const { return count_; }
  Keys keys() const { return {k_->tensor(), v_->tensor()}; }

  void wait() {
    const AttentionTensors& t = job_.tensors;
    const Arrived arrived = under_way_->wait();
    for (Index r = 0; r < job_.ranks(); ++r) {
      std::size_t i = 0;
      for (const Move& m : moved(r, job_.me())) {
        for (const auto& [mine, all] : {std::pair{&t.k, &k_}, {&t.v, &v_}}) {
          const ConstTensor& from = r == job_.me() ? rows_of(*mine, m.from) : arrived.from(r)[i++];
          copy(from, rows_of((*all)->tensor(), m.to), job_.launch);
        }
      }
    }
  }

 private:
  std::vector<Move> moved(Index from, Index to) const { return moves(job_.how.layout, job_.visibility, from, to); }

  void begin() {
    const AttentionTensors& t = job_.tensors;
    Lists out(static_cast<std::size_t>(job_.ranks()));
    ComingLists in(out.size());
    for (Index r = 0; r < job_.ranks(); ++r) {
      if (r == job_.me()) continue;
      for (const Move& m : moved(job_.me(), r)) {
        for (const ConstTensor* x : {&t.k, &t.v}) out[static_cast<std::size_t>(r)].push_back(rows_of(*x, m.from));
      }
      for (const Move& m : moved(r, job_.me())) {
        for (const ConstTensor* x : {&t.k, &t.v})
          in[static_cast<std::size_t>(r)].push_back(rows_coming(*x, x->dtype, m.from));
      }
    }
    under_way_.emplace(job_.transport, out, in, job_.device(), job_.launch);
  }

  const Job& job_;
  Index count_ = 0;
  Memory k_, v_;
  std::optional<UnderWay> under_way_{};
};

// Some heads of a call.
struct Group {
  AttentionTensors tensors;
  Job job;

  Group(const Job& all, const AttentionTensors& of, Index first) : tensors(of), job(all.on(tensors, first)) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
};
std::deque<Group> groups_of(const Job& all) {
  const Index kv = all.tensors.k.shape[1], group = kv > 0 ? all.tensors.q.shape[1] / kv : 0;
  const Index count = std::clamp<Index>(all.how.head_groups, 1, std::max<Index>(kv, 1));
  std::deque<Group> groups;
  if (count == 1) groups.emplace_back(all, all.tensors, all.first_head);
  for (Index g = 0; count > 1 && g < count; ++g) {
    const Range heads_kv{kv * g / count, kv * (g + 1) / count};
    const Range heads{heads_kv.begin * group, heads_kv.end * group};
    groups.emplace_back(all, of_heads(all.tensors, heads, heads_kv), all.first_head + heads.begin);
  }
  return groups;
}

// f(gathered) of each group. The keys of the next one come while one is computed.
template <class F>
void each_group(const std::deque<Group>& groups, const F& f) {
  std::optional<Gathered> ahead(std::in_place, groups.front().job);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Gathered here = std::move(*ahead);
    ahead.reset();
    if (g + 1 < groups.size()) ahead.emplace(groups[g + 1].job);
    here.wait();
    f(std::move(here));
  }
}

// fp32 gradients of some keys: dk and dv, of which one may not be wanted.
struct Totals {
  std::array<Memory, 2> part{};
};
using Slots = std::vector<std::optional<Totals>>;  // an absent one is zero

void join(std::optional<Totals>& to, std::optional<Totals>& from, const Launch& launch) {
  if (!from) return;
  if (!to) {
    to.swap(from);
    return;
  }
  for (std::size_t x = 0; x < 2; ++x) {
    if (to->part[x]) add(from->part[x]->tensor(), to->part[x]->tensor(), launch);
  }
  from.reset();
}

// The gradients of keys, from the ranks that saw them to those that have them.
class Backward {
 public:
  explicit Backward(Gathered gathered) : job_(gathered.job()), gathered_(std::move(gathered)) {
    const AttentionTensors& t = job_.tensors;
    wanted_ = {t.dk.given(), t.dv.given()};
    zeros_.emplace(std::max(t.k.shape[3], t.v.shape[3]), job_.device(), job_.launch);
  }

  // dq, and the gradients of keys until they are on their way home.
  void run() {
    const AttentionTensors& t = job_.tensors;
    Memory memory;  // of dq, where it is not fp32
    if (t.dq.given() && t.dq.dtype != DType::f32) memory = rows_like(t.q, DType::f32, t.q.shape[2], job_);
    dq_ = memory ? memory->tensor() : t.dq;
    sums_ = by_unit() ? sums_of_units() : sum_of_all();
    gathered_.reset();
    if (wanted_[0] || wanted_[1]) begin_home(nodes(job_.me()));
    if (memory) copy(memory->tensor(), t.dq, job_.launch);
  }
  // dk and dv.
  void finish() {
    if (under_way_) add_home(under_way_->wait());
  }

 private:
  bool by_unit() const { return job_.how.reproducible; }
  std::array<const ConstTensor*, 2> heads() const { return {&job_.tensors.k, &job_.tensors.v}; }

  // The sums that a rank sends home: nodes of the tree over units, or one sum of everything.
  std::vector<Node> nodes(Index rank) const {
    return by_unit() ? nodes_of(job_.how.layout, rank) : std::vector<Node>{{0, rank}};
  }
  Index leaves() const { return by_unit() ? static_cast<Index>(job_.how.layout.order().size()) : job_.ranks(); }
  std::vector<Move> moved(Index source, Index rank, const Node& node) const {
    return moves(job_.how.layout, job_.visibility, source, rank, by_unit() ? std::optional(node) : std::nullopt);
  }

  Totals new_sum(Index rows) const {
    Totals sum;
    for (std::size_t x = 0; x < 2; ++x) {
      if (wanted_[x]) sum.part[x] = rows_like(*heads()[x], DType::f32, rows, job_);
    }
    return sum;
  }
  void clear(const Totals& sum) const {
    for (const Memory& x : sum.part) {
      if (x) copy(zeros_->like(x->tensor()), x->tensor(), job_.launch);
    }
  }
  static Tensor tensor_of(const Memory& memory) { return memory ? memory->tensor() : Tensor{}; }

  // The gradients of all gathered keys by the queries of some calls.
  std::optional<Totals> leaf(const std::vector<Part>& parts) {
    if (parts.empty()) return std::nullopt;
    Totals total = new_sum(gathered_->count());
    clear(total);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      KeyGradients mine;
      each_wanted([&](std::size_t x) { mine[x] = rows_of(total.part[x]->tensor(), part.keys); });
      if (i == 0) {
        attend_backward(job_, part, gathered_->keys(), rows_of(dq_, part.rows), mine);
        continue;
      }
      const Totals more = new_sum(part.keys.size());
      attend_backward(job_, part, gathered_->keys(), rows_of(dq_, part.rows),
                      {tensor_of(more.part[0]), tensor_of(more.part[1])});
      each_wanted([&](std::size_t x) { add(more.part[x]->tensor(), mine[x], job_.launch); });
    }
    return total;
  }

  std::vector<Part> parts() const { return gather_parts(job_.how.layout, job_.visibility, job_.me(), job_.needs); }

  Slots sum_of_all() {
    Slots slots;
    slots.push_back(leaf(parts()));
    return slots;
  }
  Slots sums_of_units() {
    const std::vector<Index> at = job_.how.layout.leaves(job_.me());
    const std::vector<Piece> units = job_.how.layout.units(job_.me());
    std::vector<Node> given(at.size());
    std::transform(at.begin(), at.end(), given.begin(), [](Index place) { return Node{0, place}; });
    const auto order = sum(leaves(), given);
    const std::vector<Part> all = parts();
    Slots slots;
    for (const Piece& unit : units) {
      std::vector<Part> mine;
      for (const Part& part : all) {
        if (unit.rows.begin <= part.rows.begin && part.rows.end <= unit.rows.end && part.rows.begin < unit.rows.end)
          mine.push_back(part);
      }
      slots.push_back(leaf(mine));
      add_up(slots, order);
    }
    Slots left;
    for (const Index slot : order.slots) left.push_back(std::move(slots[static_cast<std::size_t>(slot)]));
    return left;
  }
  // The additions that waited for the last slot.
  void add_up(Slots& slots, const Sum& order) const {
    for (const auto& a : order.additions) {
      if (a.after + 1 == static_cast<Index>(slots.size()))
        join(slots[static_cast<std::size_t>(a.to)], slots[static_cast<std::size_t>(a.from)], job_.launch);
    }
  }

  void begin_home(const std::vector<Node>& mine) {
    Lists out(static_cast<std::size_t>(job_.ranks()));
    ComingLists in(out.size());
    for (Index r = 0; r < job_.ranks(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      for (std::size_t n = 0; n < mine.size(); ++n) {
        for (const Move& m : moved(r, job_.me(), mine[n]))
          each_wanted([&](std::size_t x) { out[at].push_back(of(sums_[n], x, m.to)); });
      }
      for (const Node& node : nodes(r)) {
        for (const Move& m : moved(job_.me(), r, node))
          each_wanted([&](std::size_t x) { in[at].push_back(rows_coming(*heads()[x], DType::f32, m.from)); });
      }
    }
    under_way_.emplace(job_.transport, out, in, job_.device(), job_.launch);
    mine_ = std::move(out[static_cast<std::size_t>(job_.me())]);
  }
  void add_home(const Arrived& arrived) {
    std::vector<Node> given;
    for (Index r = 0; r < job_.ranks(); ++r) {
      for (const Node& node : nodes(r)) given.push_back(node);
    }
    const auto order = sum(leaves(), given);
    Slots slots;
    for (Index r = 0; r < job_.ranks(); ++r) {
      const std::vector<ConstTensor>& come = r == job_.me() ? mine_ : arrived.from(r);
      std::size_t next = 0;
      for (const Node& node : nodes(r)) {
        Totals here = new_sum(job_.tensors.k.shape[2]);
        clear(here);
        for (const Move& m : moved(job_.me(), r, node))
          each_wanted([&](std::size_t x) { copy(come[next++], rows_of(here.part[x]->tensor(), m.from), job_.launch); });
        slots.push_back(std::move(here));
        add_up(slots, order);
      }
    }
    finish(slots, order);
  }
  template <class F>
  void each_wanted(const F& f) const {
    for (std::size_t x = 0; x < 2; ++x) {
      if (wanted_[x]) f(x);
    }
  }
  // Rows of a sum; an absent one is zero.
  ConstTensor of(const std::optional<Totals>& sum, std::size_t x, Range rows) const {
    if (sum) return rows_of(ConstTensor(sum->part[x]->tensor()), rows);
    ConstTensor like(nullptr, DType::f32,
                     {heads()[x]->shape[0], heads()[x]->shape[1], rows.size(), heads()[x]->shape[3]}, job_.device());
    return zeros_->like(like);
  }
  void finish(const Slots& slots, const Sum& order) {
    const std::array<Tensor, 2> into{job_.tensors.dk, job_.tensors.dv};
    each_wanted([&](std::size_t x) {
      if (order.slots.empty()) return copy(zeros_->like(into[x]), into[x], job_.launch);
      const Tensor& total = slots[static_cast<std::size_t>(order.slots[0])]->part[x]->tensor();
      // -0 becomes 0, so that absent terms and terms of 0 have the same bits.
      add(zeros_->like(total), total, job_.launch);
      copy(total, into[x], job_.launch);
    });
  }

  const Job& job_;
  std::optional<Gathered> gathered_;  // until the calls are made
  std::array<bool, 2> wanted_{};
  std::optional<Zeros> zeros_;
  Tensor dq_{};
  Slots sums_{};                     // of this rank's calls
  std::vector<ConstTensor> mine_{};  // those of this rank's own keys
  std::optional<UnderWay> under_way_{};
};

}  // namespace

void gather_forward(const Job& all) {
  each_group(groups_of(all), [](const Gathered& gathered) {
    const Job& job = gathered.job();
    for (const Part& part : gather_parts(job.how.layout, job.visibility, job.me(), job.needs))
      attend(job, part, gathered.keys(), {job.tensors.out, job.tensors.lse, job.tensors.row_max});
  });
}

void gather_backward(const Job& all) {
  const std::deque<Group> groups = groups_of(all);
  std::optional<Backward> before;  // its gradients go home while the next group is computed
  each_group(groups, [&](Gathered gathered) {
    Backward group(std::move(gathered));
    group.run();
    if (before) before->finish();
    before.emplace(std::move(group));
  });
  before->finish();
}

}  // namespace onepass::inline v0::context_parallel
