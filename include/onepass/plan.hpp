// Plans: what a call of any operator needs decided, once for all calls like it.
//
//   const onepass::Plan plan = onepass::make_plan(tensors, options);
//   onepass::run(plan, tensors);
//
// Each operator's header has make_plan(), run() and explain() of its tensors and options. A problem line describes a
// call of any operator without its tensors (docs/reference/problem.md):
//
//   fwd b2 h16/4 s1024x2048 d128 bf16 causal_bottom_right window=128:0 layout=bshd lse
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "onepass/executor.hpp"
#include "onepass/export.h"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

struct PlanState;  // what an implementation decided; the library's own

// An implementation that accepted a problem, with everything it decided. Holds no pointers to data; copies share what
// is decided, and all may be used from several threads at once.
class ONEPASS_API Plan {
 public:
  Plan() = default;
  explicit Plan(std::shared_ptr<const PlanState> state) : state_(std::move(state)) {}

  std::string_view name() const;        // of the implementation; "none" of an empty plan
  std::string describe() const;         // what will run, in a line: tiles, splits, threads, memory
  std::string problem() const;          // the line of what it was made for; throws Error (bad_value) if it is empty
  Device device() const;                // where its tensors and its workspace are; throws as problem()
  int workers() const;                  // the most that an executor of run() may have
  std::size_t workspace_bytes() const;  // what run() needs
  const PlanState* state() const { return state_.get(); }

 private:
  std::shared_ptr<const PlanState> state_;
};

// The first implementation of the ordered list that accepts the problem (or the named one); throws `unsupported` with
// every refusal if there is none, and bad_text naming the word if the line cannot be read.
[[nodiscard]] ONEPASS_API Plan make_plan(std::string_view line, std::string_view implementation = {},
                                         const Executor* executor = nullptr);

// Loads what run() would load on its first call: kernels of a device and their counters. After it, run() can be
// captured into a CUDA graph.
ONEPASS_API void prepare(const Plan& plan);

// The ordered list with each one's decision, a line each: explain("linear m8 n4096 k4096 bf16"). Throws bad_text as
// make_plan().
ONEPASS_API std::string explain(std::string_view line);

// The text that explain() would print on a machine with a GPU of this architecture ("sm_80", "sm_90", ..), with the
// problem on that GPU. Needs neither a GPU nor a driver. Sizes that depend on the card are those of a common card of
// the architecture, which the second line names. Throws bad_value for an architecture that is not known.
ONEPASS_API std::string explain_for(std::string_view target, std::string_view line);

}  // namespace onepass::inline v0
