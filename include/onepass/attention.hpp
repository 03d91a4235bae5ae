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

// The options of a call, besides the facts that its tensors give.
// How far, in natural units, a row's largest score may be from a unified_max that serves it: e^40 of fp32's e^88, so
// that sums of 10^9 keys and weights of 2^-24 of the largest stay numbers.
inline constexpr float kUnifiedRange = 40.0f;

struct Attention {
  Band band{};                    // causal alignment and window
  std::optional<double> scale{};  // default 1/sqrt(dim_qk)
  float softcap = 0.0f;           // > 0: s = softcap * tanh(s / softcap)
  float dropout_p = 0.0f;         // in [0, 1]
  std::uint64_t seed = 0;         // Philox key: the same seed drops the same weights on every backend

  // C++ expressions over batch, head, q_index, k_index (in their sequence), mod_buffers: docs/features/score_mod.md.
  std::string score_mod{};  // the new score, from `score`: scaled, capped and biased, in natural units
  std::string mask_mod{};   // true where a query may attend to a key; joins the other masks

  // Packed sequences and sequences in pages: upper bounds of their lengths; 0: unknown. A plan for a device, which
  // alone knows the lengths, is made for them; lengths beyond are refused on the CPU and must not occur on a device.
  std::int64_t max_seqlen_q = 0, max_seqlen_k = 0;

  bool deterministic = false;  // a backward gives the same bits every time; on the CPU it always does
  // The results of a sequence do not depend on what else is in the batch: keys are cut at multiples of a fixed number.
  bool batch_invariant = false;
  Accumulation accumulation = Accumulation::exact;  // of products of fp8_e4m3 q, k and v

  // A forward of few rows: one number phi that all weights e^(s - phi) refer to in place of the rows' maxima, so that
  // splits of the keys join by addition. It changes no result: a row whose largest score is not within
  // kUnifiedRange of phi is computed again with its maximum. ScoreRange (onepass/unified_max.hpp) finds a phi. Hong et
  // al., FlashDecoding++, arXiv:2311.01282, section 3.
  std::optional<float> unified_max{};

  bool log = false;       // of softmax and its backward, which take only this and the scale: y is the logarithm
  bool hadamard = false;  // of quantize, which takes only this and the seed: rows are rotated
};

// An input by the name that score_mod and mask_mod use for it; rank 1 to 4, any strides.
struct NamedTensor {
  std::string name{};
  ConstTensor tensor{};
};

// The tensors of a call by role; those that are not given stay absent. [batch, heads, seq, dim] with any strides but 1
// in the last dimension. Outputs share no memory with an input or each other; views that interleave, such as slices of
// one packed tensor, do not.
struct Tensors {
  ConstTensor q{}, k{}, v{};
  Tensor out{};             // of q's dtype or fp32, of an fp8_e4m3 q bf16, fp16 or fp32; a backward reads it, and lse
  Tensor lse{};             // fp32 [batch, heads_q, seq_q]; packed: [heads_q, total_q]
  Tensor recomputed{};      // int32 of lse's shape: 1 where a row left unified_max's range, else 0
  ConstTensor bias{};       // fp32/fp16/bf16 [batch|1, heads_q|1, seq_q|1, seq_k|1], any strides
  ConstTensor bool_mask{};  // bool, same shapes; true = may attend
  ConstTensor alibi_slopes{};  // fp32 [heads_q] or [batch, heads_q]: s -= slope * |a(i) - j|
  ConstTensor sinks{};         // fp32 [heads_q]: logits that join the denominator only
  // fp32 factors of fp8_e4m3 tensors, [batch|1, heads|1, blocks|1] with blocks of 128 rows of a sequence and the heads
  // of the tensor; dimensions at the end may be left out: [1] is one factor for all. Finite numbers; none: 1.
  ConstTensor q_descale{}, k_descale{}, v_descale{};
  // fp32 [batch|1, heads_kv|1, dim_v|1]: what quantize() took out of an fp8_e4m3 v; it is added to what v stands for.
  ConstTensor v_mean{};
  ConstTensor cu_seqlens_q{},
      cu_seqlens_k{};  // int32 [batch + 1] prefix sums; q, k, v and out are then [total, heads, dim]
  // K and V as a cache, of a forward. cu_seqlens_q packs q and out beside them; there is no cu_seqlens_k then.
  ConstTensor seqused_k{};   // int32 [batch]: how many keys of each sequence count; read where the tensors are
  ConstTensor page_table{};  // int32 [batch, pages of a sequence]: k and v are [pages, page_size, heads_kv, dim], and
                             // key j of a sequence lies in page page_table[b, j / page_size] at j % page_size
  std::vector<NamedTensor> mod_buffers{};

  // For a backward. A gradient that is not given is not computed; one that is given is written whole.
  ConstTensor dout{};        // of out's shape and dtype: the gradient of the loss by out
  ConstTensor dlse{};        // fp32 of lse's shape: by lse, where that was used too
  Tensor dq{}, dk{}, dv{};   // of the shapes of q, k and v, all of their dtype or all fp32
  Tensor dbias{}, dsinks{};  // fp32 of the shapes of bias and sinks: sums over what these were repeated for
  Tensor dalibi_slopes{};    // fp32 of the shape of alibi_slopes

  // For a softmax and its backward (onepass/softmax.hpp), with bool_mask and lse and nothing else.
  ConstTensor x{}, row_lse{};
  Tensor y{};  // a backward reads it
  ConstTensor dy{};
  Tensor dx{};
  // For a flat GEMM (onepass/flat_gemm.hpp), with x and y and nothing else.
  ConstTensor w{}, column_bias{};

  // For a quantize (onepass/quantize.hpp), with x and y and nothing else.
  Tensor descale{}, mean{};

  // For a merge, with out and lse and nothing else: partial results, fp32/fp16/bf16 of out's shape, and their fp32
  // LSEs.
  std::vector<ConstTensor> outs{}, lses{};
};

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
// The problem that tensors and description make: shapes, strides, alignments, dtypes, options and (on the CPU) the
// contents of cu_seqlens, all checked. What memory the tensors share is run's to check.
[[nodiscard]] ONEPASS_API Problem make_problem(const Attention& attention, const Tensors& tensors);

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
