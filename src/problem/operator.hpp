// An operator: everything that code which walks problems, tensors and words asks of it. Each stands in its own folder.
#pragma once
#include <array>
#include <initializer_list>
#include <span>
#include <string_view>

#include "problem/checked_problem.hpp"
#include "problem/role_row.hpp"

namespace onepass {

// The options of a call of any operator: attention's, and beside them those of softmax and quantize.
struct CallOptions : Attention {
  bool log = false;       // of softmax and its backward, which take this and the scale
  bool hadamard = false;  // of quantize, which takes this and the seed
};

using Uses = std::array<Use, kRoles>;  // by role

struct Operator {
  std::string_view word, call;  // "fwd", as problem lines have it; "attention", as the functions are called
  Uses uses;                    // what it does with each tensor
  // The words of problem lines that it takes beside those of its tensors and of attention's options.
  std::span<const std::string_view> words;
  // From the tensors and options of a call. Checks everything and throws Error with one sentence. Parsed expressions
  // go into *mods, if it is given.
  Problem (*problem_of)(Op op, const Tensors& tensors, const CallOptions& options, Mods* mods);
  Mods (*validate)(const Problem& problem);
};

struct RoleUse {
  Role role;
  Use use;
};
constexpr Uses uses_of(std::initializer_list<RoleUse> list) {
  Uses uses{};
  for (const RoleUse& x : list) uses[static_cast<std::size_t>(x.role)] = x.use;
  return uses;
}

// Each is defined in its folder.
extern const Operator kForward, kBackward, kMerge, kSoftmax, kSoftmaxBackward, kQuantize, kFlatGemm, kLinear;
extern const std::array<const Operator*, kOps> kOperators;  // by Op
const Operator& operator_of(Op op);                         // throws Error if the value is none of these

inline std::string_view word_of(Op op) { return operator_of(op).word; }
inline std::string_view call_of(Op op) { return operator_of(op).call; }
inline Use use_of(const RoleRow& row, Op op) {
  return kOperators[static_cast<std::size_t>(op)]->uses[static_cast<std::size_t>(row.role)];
}

// The kinds of operators: of scores of queries and keys, of rows of numbers, of matrices.
inline bool is_softmax(Op op) { return op == Op::softmax || op == Op::softmax_backward; }
inline bool of_rows(Op op) { return is_softmax(op) || op == Op::quantize; }
inline bool is_gemm(Op op) { return op == Op::flat_gemm || op == Op::linear; }  // of one set of tensors
inline bool is_backward(Op op) { return op == Op::backward || op == Op::softmax_backward; }
inline bool is_attention(Op op) { return op == Op::forward || op == Op::backward; }

}  // namespace onepass
