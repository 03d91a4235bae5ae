// How a backward call is cut into tasks, by its shape and longest sequences alone: the same bits for any number of
// threads.
#pragma once
#include <cstdint>

#include "cpu/backward/backward.hpp"

namespace onepass::cpu::backward {

struct Plan {
  Cut cut;
  BiasSums bias = BiasSums::none;
  // Heads that add to the same elements of dbias take turns: in each of `phases`, every task is of another head or
  // of other keys and rows.
  std::int64_t phases = 1;
  flash::Source k = flash::Source::block, v = flash::Source::block;
  Longest longest;

  std::int64_t heads_at_once(const Problem& p) const { return p.batch * p.heads_kv / phases; }
  std::int64_t tasks(const Problem& p) const { return heads_at_once(p) * cut.key_splits * cut.row_splits; }  // a phase
};
// With `most`, for which memory is booked, in no more splits and no longer chunks of keys.
Plan plan_of(const Problem& problem, const flash::Geometry& geometry, const Longest& longest,
             const Cut* most = nullptr);
// A cut with memory for all calls within the bounds.
Cut booked_cut(const Problem& problem, const flash::Geometry& geometry, const Cut& most);

// Task t of a phase, without its sequence; keys and rows are cut to a sequence by `fit`.
Task task_of(const Problem& problem, const Plan& plan, std::int64_t phase, std::int64_t t);
void fit(const Problem& problem, const Cut& cut, Task& task);

}  // namespace onepass::cpu::backward
