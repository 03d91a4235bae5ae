// The interface of a backend to the plan layer: rows of an ordered list, and what a row decides for a problem.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "onepass/executor.hpp"
#include "onepass/plan.hpp"
#include "problem/checked_problem.hpp"
#include "problem/gemm/dataflow.hpp"
#include "problem/operator.hpp"
#include "problem/tensors.hpp"

namespace onepass::inline v0 {

// Everything an implementation decided about a problem. run() derives nothing again and refuses nothing on grounds of
// shapes, strides or alignments: its tensors have been compared with the problem.
struct PlanState {
  explicit PlanState(std::shared_ptr<const Problem> p) : problem(std::move(p)) {}
  PlanState(const PlanState&) = delete;
  PlanState& operator=(const PlanState&) = delete;
  virtual ~PlanState() = default;

  virtual std::string describe() const = 0;  // tiles, splits, threads: what runs, in a line
  virtual void run(const Tensors& tensors, void* workspace, Executor& executor, void* stream) const = 0;
  virtual void prepare() const {}  // loads what the first run() would load

  const std::shared_ptr<const Problem> problem;
  std::size_t workspace_bytes = 0;
  const char* implementation = "";
  int workers = 1;
};

}  // namespace onepass::inline v0

namespace onepass {

// A refusal, one sentence, or a decided state.
struct Decision {
  std::string refusal;
  std::shared_ptr<PlanState> state;

  static Decision no(std::string sentence) { return {std::move(sentence), nullptr}; }
  explicit operator bool() const { return state != nullptr; }
};

struct Request {
  std::shared_ptr<const Problem> problem;  // valid
  std::shared_ptr<const Mods> mods;        // its expressions, parsed once
  int workers = 1;                         // of the executor
};

inline Request request_for(const Problem& problem, int workers = 1) {
  return {std::make_shared<const Problem>(problem), std::make_shared<const Mods>(checked_mods(problem)), workers};
}

struct Implementation {
  const char* name;                  // "cpu.flash.avx512"
  Decision (*plan)(const Request&);  // of a problem of its operator
  Op op = kForward;
  Dataflow dataflow = Dataflow::flat_gemm;  // what it is to a linear
  bool unified_max = false;                 // whether it takes one
  // FP8 attention: a row of attention that reads what is quantized for it, and the decision about both; then no `plan`.
  const Implementation* attention = nullptr;
  Decision (*quantized)(const Request&, const Implementation& attention) = nullptr;
};

inline bool computes(const Implementation& row, Op op) {
  return row.op == op || (op->kernels_of && row.op == *op->kernels_of);
}

// The decision about the problem without its block mask, as one about the problem with it. decided: of a row. Its text
// is in problem/block_mask.cpp.
Decision decide_without_block_mask(const Request&, Decision (*decided)(const Implementation&, const Request&),
                                   const Implementation&);

// The row's decision, with what every state knows of its plan.
inline Decision decide(const Implementation& row, const Request& request) {
  if (!computes(row, request.problem->op)) return Decision::no("computes another operator");
  if (request.problem->block_mask) {
    Decision d = decide_without_block_mask(request, decide, row);
    if (d) d.state->implementation = row.name, d.state->workers = request.workers;
    return d;
  }
  if (request.problem->unified_max && !row.unified_max) return Decision::no("does not support unified_max");
  if (!row.attention != !request.problem->fp8)
    return Decision::no(row.attention ? "requires the option fp8" : "does not quantize q, k and v");
  Decision d = row.attention ? row.quantized(request, *row.attention) : row.plan(request);
  if (d) d.state->implementation = row.name, d.state->workers = request.workers;
  return d;
}
inline Decision decide(const Implementation& row, const Problem& problem, int workers = 1) {
  return decide(row, request_for(problem, workers));
}
// Why a row does not take a problem, or "".
inline std::string why_not(const Implementation& row, const Problem& problem) { return decide(row, problem).refusal; }

}  // namespace onepass
