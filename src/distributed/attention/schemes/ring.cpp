// The scheme ring. K and V of a shard go from rank to rank. Each rank computes with the shard that it has, and merges
// the partial results of its rows at the end.
#include "distributed/attention/schemes/schemes.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "distributed/attention/exchange.hpp"
#include "onepass/merge.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

// Partial results of this rank's rows in fp32, merged a few at a time. Rows that a result lacks have an LSE of -inf.
class States {
 public:
  explicit States(const Job& job) : job_(job) {}

  // Where a call writes (out, lse) of these rows.
  std::array<Tensor, 2> place(Range rows) {
    for (State& state : states_) {
      const bool free = std::all_of(state.taken.begin(), state.taken.end(),
                                    [&](Range taken) { return rows.end <= taken.begin || taken.end <= rows.begin; });
      if (!free) continue;
      state.taken.push_back(rows);
      return {state.out.tensor(), state.lse.tensor()};
    }
    if (states_.size() == kMost) join();
    states_.push_back(new_state());
    return place(rows);
  }

  void merge_into(const Tensor& out, const Tensor& lse) {
    if (states_.empty()) states_.push_back(new_state());  // there is nothing to see
    std::vector<ConstTensor> outs, lses;
    for (const State& state : states_) outs.emplace_back(state.out.tensor()), lses.emplace_back(state.lse.tensor());
    onepass::merge(outs, lses, out, lse, job_.launch);
  }

 private:
  static constexpr std::size_t kMost = 4;
  struct State {
    Owned out, lse;
    std::vector<Range> taken{};
  };

  State new_state() const {
    const Dims& q = job_.tensors.q.shape;
    State state{Owned(DType::f32, {q[0], q[1], q[2], job_.tensors.v.shape[3]}, job_.device(), job_.launch),
                Owned(DType::f32, {q[0], q[1], q[2]}, job_.device(), job_.launch)};
    fill_empty(state.lse.tensor(), job_.launch);
    return state;
  }
  void join() {
    State all = new_state();
    merge_into(all.out.tensor(), all.lse.tensor());
    all.taken.push_back({0, job_.tensors.q.shape[2]});
    states_.clear();
    states_.push_back(std::move(all));
  }

  const Job& job_;
  std::vector<State> states_;
};

// The row maxima over all parts, if they are asked for.
class Maxima {
 public:
  explicit Maxima(const Job& job) : job_(job) {
    if (!job.tensors.row_max.given()) return;
    all_.emplace(new_maxima()), of_part_.emplace(new_maxima());
    fill_empty(all_->tensor(), job.launch);
  }

  // Where a call writes those of its rows, before they are taken.
  Tensor place() const { return of_part_ ? of_part_->tensor() : Tensor{}; }
  void take(Range rows) const {
    if (!all_) return;
    take_larger(rows_of(as_column(place()), rows), rows_of(as_column(all_->tensor()), rows), job_.launch);
  }
  void copy_into(const Tensor& row_max) const {
    if (all_) copy(as_column(all_->tensor()), as_column(row_max), job_.launch);
  }

 private:
  Owned new_maxima() const {
    const Dims& q = job_.tensors.q.shape;
    return Owned(DType::f32, {q[0], q[1], q[2]}, job_.device(), job_.launch);
  }

  const Job& job_;
  std::optional<Owned> all_, of_part_;
};

// The shards in the order in which they come to a rank, its own first.
class Circle {
 public:
  explicit Circle(const Job& job) : job_(job), keys_(Keys{job.tensors.k, job.tensors.v}) {}

  Index source() const { return (job_.me() - step_ + job_.ranks()) % job_.ranks(); }
  const std::optional<Keys>& keys() const { return keys_; }  // none if no call here, or further on, needs them
  std::vector<Part> parts() const { return parts_of(job_.me(), source()); }
  std::vector<Part> parts_of(Index rank, Index source) const {
    return ring_parts(job_.how.layout, job_.visibility, rank, source, job_.needs);
  }

  // Begins to pass the shard on, and to take the one of the rank before.
  void begin() {
    if (step_ + 1 == job_.ranks()) return;
    const Index after = (job_.me() + 1) % job_.ranks(), coming = before(source());
    Lists out(static_cast<std::size_t>(job_.ranks()));
    ComingLists in(out.size());
    if (travels(source())) out[static_cast<std::size_t>(after)] = {keys_->k, keys_->v};
    if (travels(coming)) {
      for (const ConstTensor* x : {&job_.tensors.k, &job_.tensors.v})
        in[static_cast<std::size_t>(before(job_.me()))].push_back(
            {x->dtype, {x->shape[0], x->shape[1], job_.how.layout.count(coming), x->shape[3]}});
    }
    under_way_.emplace(job_.transport, out, in, job_.device(), job_.launch);
  }

  // Waits for it. False if all have come.
  bool next() {
    if (!under_way_) return false;
    arrived_ = under_way_->wait();
    under_way_.reset();
    const std::vector<ConstTensor>& come = arrived_.from(before(job_.me()));
    keys_.reset();
    if (travels(before(source()))) keys_ = Keys{come[0], come[1]};
    ++step_;
    return true;
  }

 private:
  Index before(Index rank) const { return (rank - 1 + job_.ranks()) % job_.ranks(); }
  bool travels(Index source) const { return step_ < ring_steps(job_.how.layout, job_.visibility, source); }

  const Job& job_;
  Index step_ = 0;
  std::optional<Keys> keys_;
  Arrived arrived_;
  std::optional<UnderWay> under_way_{};
};

// dK and dV do not follow the ring: they go straight to the rank that has the keys.
class Backward {
 public:
  explicit Backward(const Job& job)
      : job_(job), zeros_(std::max(job.tensors.k.shape[3], job.tensors.v.shape[3]), job.device(), job.launch) {}

  void run() {
    const AttentionTensors& t = job_.tensors;
    std::optional<Owned> dq;
    if (t.dq.given()) dq = zeros(t.q, t.q.shape[2]);
    Pair total = pair(job_.me());
    Circle circle(job_);
    for (bool first = true, more = true; more; more = circle.next(), first = false) {
      circle.begin();
      const std::vector<Part> parts = circle.parts();
      Pair mine;
      if (!first && !parts.empty()) mine = pair(circle.source());
      for (const Part& part : parts) compute(part, *circle.keys(), dq, first ? total : mine);
      if (first) continue;
      arrive(total);
      home(circle, parts.empty(), mine, total);  // while the next shard is computed
    }
    arrive(total);
    if (dq) copy(dq->tensor(), t.dq, job_.launch);
    if (total[0]) copy(total[0]->tensor(), t.dk, job_.launch);
    if (total[1]) copy(total[1]->tensor(), t.dv, job_.launch);
  }

 private:
  using Pair = std::array<std::optional<Owned>, 2>;  // dk and dv, if they are wanted

  Owned zeros(const ConstTensor& like, Index rows) const {
    Owned made = memory(like, rows);
    copy(zeros_.like(made.tensor()), made.tensor(), job_.launch);
    return made;
  }
  Owned memory(const ConstTensor& like, Index rows) const {
    return {DType::f32, {like.shape[0], like.shape[1], rows, like.shape[3]}, job_.device(), job_.launch};
  }
  // Zero gradients of the shard of a rank.
  Pair pair(Index rank) const {
    const Index rows = job_.how.layout.count(rank);
    Pair made;
    if (job_.tensors.dk.given()) made[0] = zeros(job_.tensors.k, rows);
    if (job_.tensors.dv.given()) made[1] = zeros(job_.tensors.v, rows);
    return made;
  }

  void compute(const Part& part, const Keys& keys, const std::optional<Owned>& dq, const Pair& into) const {
    const AttentionTensors& t = job_.tensors;
    std::optional<Owned> rows;
    if (dq) rows = memory(t.q, part.rows.size());
    Pair more;
    KeyGradients given;
    for (std::size_t x = 0; x < 2; ++x) {
      if (into[x]) given[x] = more[x].emplace(memory(x == 0 ? t.k : t.v, part.keys.size())).tensor();
    }
    attend_backward(job_, part, keys, rows ? rows->tensor() : Tensor{}, given);
    if (dq) add(rows->tensor(), rows_of(dq->tensor(), part.rows), job_.launch);
    for (std::size_t x = 0; x < 2; ++x) {
      if (into[x]) add(more[x]->tensor(), rows_of(into[x]->tensor(), part.keys), job_.launch);
    }
  }

  // Gradients of the shard of circle.source() on their way, and those of this rank's shard.
  void home(const Circle& circle, bool none, const Pair& mine, const Pair& total) {
    if (!total[0] && !total[1]) return;
    const Index source = circle.source();
    reader_ = (2 * job_.me() - source + 2 * job_.ranks()) % job_.ranks();
    Lists out(static_cast<std::size_t>(job_.ranks()));
    ComingLists in(out.size());
    comes_ = !circle.parts_of(reader_, job_.me()).empty();
    for (std::size_t x = 0; x < 2; ++x) {
      if (!none && mine[x]) out[static_cast<std::size_t>(source)].push_back(mine[x]->tensor());
      if (comes_ && total[x]) in[static_cast<std::size_t>(reader_)].push_back({DType::f32, total[x]->tensor().shape});
    }
    under_way_.emplace(job_.transport, out, in, job_.device(), job_.launch);
  }
  // Adds the gradients that the last home() brings.
  void arrive(const Pair& total) {
    if (!under_way_) return;
    const Arrived arrived = under_way_->wait();
    under_way_.reset();
    std::size_t next = 0;
    for (std::size_t x = 0; x < 2; ++x) {
      if (comes_ && total[x]) add(arrived.from(reader_)[next++], total[x]->tensor(), job_.launch);
    }
  }

  const Job& job_;
  const Zeros zeros_;
  std::optional<UnderWay> under_way_{};
  Index reader_ = 0;  // gradients of this rank's shard come from it
  bool comes_ = false;
};

}  // namespace

void ring_forward(const Job& job) {
  States states(job);
  const Maxima maxima(job);
  Circle circle(job);
  do {
    circle.begin();  // the next shard comes while this one is computed
    for (const Part& part : circle.parts()) {
      const auto [out, lse] = states.place(part.rows);
      attend(job, part, *circle.keys(), {out, lse, maxima.place(), true});
      maxima.take(part.rows);
    }
  } while (circle.next());
  states.merge_into(job.tensors.out, job.tensors.lse);
  maxima.copy_into(job.tensors.row_max);
}

void ring_backward(const Job& job) { Backward(job).run(); }

}  // namespace onepass::inline v0::context_parallel
