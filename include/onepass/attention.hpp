// Attention in one call, or as problem -> plan -> run.
//
//   out[b,h,i,:] = sum_j softmax_j( scale * q[b,h,i,:] . k[b,h/group,j,:] + ... ) * v[b,h/group,j,:]
//
// A call has three parts: what is computed (Attention), the tensors by role (Tensors), and how it is launched (Launch).
// The order in which softcap, bias, masks, sinks and dropout apply, and what a row without a visible key gives (0, and
// an LSE of -inf), stand in docs/reference/conventions.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onepass/error.hpp"
#include "onepass/executor.hpp"
#include "onepass/export.h"
#include "onepass/problem.hpp"
#include "onepass/tensor.hpp"

namespace onepass::inline v0 {

// How a call is run.
struct Launch {
  void* stream = nullptr;            // CUDA stream of the device's primary context
  Executor* executor = nullptr;      // CPU threads; nullptr: default_executor()
  std::span<std::byte> workspace{};  // where the tensors are, aligned to 64 bytes; of one stream or thread at a time
};

// ---------------------------------------------------------------------------------------------------------- one call
// Computes attention by the named implementation, or the first that accepts. Without a workspace it takes the memory it
// needs itself. Throws Error, with out and lse untouched, if anything does not fit.
ONEPASS_API void attention(const Tensors& tensors, const Attention& attention = {}, const Launch& launch = {},
                           std::string_view implementation = {});

// The gradients of attention() with the same tensors and description: of those of dq, dk, dv, dbias, dsinks and
// dalibi_slopes that are given. Reads out and lse as the forward wrote them; where these are the merged results of
// several forwards over disjoint keys, each forward's gradients come from the merged ones. Rows that see no key and
// keys that no row sees have gradients of 0. Throws Error, with all outputs untouched, if anything does not fit. Dao et
// al., FlashAttention, algorithm 4; docs/reference/conventions.md.
ONEPASS_API void attention_backward(const Tensors& tensors, const Attention& attention = {}, const Launch& launch = {},
                                    std::string_view implementation = {});

// Joins partial results over disjoint key sets: outs [.., rows, dim] fp32/fp16/bf16 with fp32 LSEs [.., rows] of the
// same shape without dim. (0, -inf) is the identity; associative and commutative up to rounding. What a part holds in a
// row of -inf is not read. out and lse share no memory with an input or each other. On a CUDA device up to 256 parts.
ONEPASS_API void merge(std::span<const ConstTensor> outs, std::span<const ConstTensor> lses, const Tensor& out,
                       const Tensor& lse = {}, const Launch& launch = {});

// ------------------------------------------------------------------------------------------ problem -> plan -> run
// The problem that tensors and options make, of attention or, if dout is given, of its backward: shapes, strides,
// alignments, dtypes, options and (on the CPU) the contents of cu_seqlens, all checked. What memory the tensors share
// is run's to check.
[[nodiscard]] ONEPASS_API Problem make_problem(const Attention& attention, const Tensors& tensors);
// The same of any operator, with default options. Those of softmax and quantize are in their headers.
[[nodiscard]] ONEPASS_API Problem make_problem(const Tensors& tensors, Op op);

struct PlanState;  // what an implementation decided; the library's own
// An implementation that accepted a problem, with everything it decided. Holds no pointers to data; copies share what
// is decided, and all may be used from several threads at once.
class ONEPASS_API Plan {
 public:
  Plan() = default;
  explicit Plan(std::shared_ptr<const PlanState> state) : state_(std::move(state)) {}

  std::string_view name() const;        // of the implementation; "none" of an empty plan
  std::string describe() const;         // what will run, in a line: tiles, splits, threads, memory
  const Problem& problem() const;       // throws Error (bad_value) if the plan is empty
  int workers() const;                  // the most that an executor of run() may have
  std::size_t workspace_bytes() const;  // what run() needs
  const PlanState* state() const { return state_.get(); }

 private:
  std::shared_ptr<const PlanState> state_;
};

// The first implementation of the ordered list that accepts the problem (or the named one); throws `unsupported` with
// every refusal if there is none.
[[nodiscard]] ONEPASS_API Plan make_plan(const Problem& problem, std::string_view implementation = {},
                                         const Executor* executor = nullptr);

// Loads what run() would load on its first call: kernels of a device and their counters. After it, run() can be
// captured into a CUDA graph.
ONEPASS_API void prepare(const Plan& plan);

// Computes what was planned, on tensors of the planned shapes, strides, dtypes and devices that are at least as
// aligned. Allocates nothing large; the workspace has at least plan.workspace_bytes() bytes, and the first that many
// of them share no memory with a tensor of the call.
ONEPASS_API void run(const Plan& plan, const Tensors& tensors, const Launch& launch = {});

// The ordered list with each one's decision, a line each. `line` is a problem line: explain("linear m8 n4096 k4096
// bf16").
ONEPASS_API std::string explain(const Problem& problem);
ONEPASS_API std::string explain(std::string_view line);

}  // namespace onepass::inline v0
