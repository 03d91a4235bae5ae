// An operator: everything that code which walks problems, tensors and words asks of it. Each stands in its own folder.
#pragma once
#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "problem/checked_problem.hpp"
#include "problem/role_row.hpp"

namespace onepass {

// The options of a call of any operator: attention's, and beside them those of softmax and quantize.
struct CallOptions : Attention {
  bool log = false;                 // of softmax and its backward, which take this and the scale
  bool hadamard = false;            // of quantize, which takes this and the seed
  bool interleaved = false;         // of append
  std::optional<Fp8Options> fp8{};  // of attention
};

// The uses that an operator has for tensors, by role.
class Uses {
 public:
  constexpr Use operator[](Role role) const { return of_[static_cast<std::size_t>(role)]; }
  // The roles that it has a use for, in the order of the table.
  constexpr std::span<const Role> roles() const { return {roles_.data(), count_}; }
  constexpr void set(Role role, Use use) {
    of_[static_cast<std::size_t>(role)] = use;
    if (use == Use::none) return;
    std::size_t at = count_++;
    for (; at > 0 && roles_[at - 1] > role; --at) roles_[at] = roles_[at - 1];
    roles_[at] = role;
  }

 private:
  std::array<Use, kRoles> of_{};
  std::array<Role, kRoles> roles_{};
  std::size_t count_ = 0;
};

// The subjects that a line speaks of.
using Said = std::span<const std::string_view>;
inline bool is_said(Said said, std::string_view subject) { return std::ranges::find(said, subject) != said.end(); }

struct Operator {
  std::string_view word, call;  // "fwd", as problem lines have it; "attention", as the functions are called
  Role base;                    // the tensor whose device, and mostly dtype, the others have
  Uses uses;                    // what it does with each tensor
  // The words of problem lines that it takes beside those of its tensors and of attention's options.
  std::span<const std::string_view> words;
  bool parts = false;                    // it takes outs and lses
  bool matrices = false;                 // its tensors are matrices
  bool unit_scale = false;               // scores have a scale of 1 where none is given, not 1 / sqrt(dim_qk)
  bool any_rank = false;                 // its tensors have any number of dimensions before the rows
  bool attention = false;                // it is attention or its backward, and takes attention's options
  bool backward = false;                 // it computes gradients
  bool tangents = false;                 // it computes derivatives along tangents of its inputs
  bool described = false;                // a line says the strides of all of them: those of others may be padded
  const Operator* kernels_of = nullptr;  // its kernels are those of this operator and its own; the dataflow chooses
  // From the options of a call and its tensors, between check_roles and check_outputs. Checks the rest and throws Error
  // with one sentence. Parsed expressions go into *mods, if it is given.
  Problem (*problem_of)(Op op, const Tensors& tensors, const CallOptions& options, Mods* mods);
  Mods (*validate)(const Problem& problem);
  // Throws Error if numbers in tensors on the CPU do not fit: lengths, pages. nullptr: it reads none.
  void (*check_contents)(const Problem& problem, const Tensors& tensors) = nullptr;
  // Fills what the words of a line have left open, before the line's problem is validated.
  void (*complete)(Problem& problem, Said said) = nullptr;
};

struct RoleUse {
  Role role;
  Use use;
};
constexpr Uses uses_of(std::span<const RoleUse> list) {
  Uses uses{};
  for (const RoleUse& x : list) uses.set(x.role, x.use);
  return uses;
}
constexpr Uses uses_of(std::initializer_list<RoleUse> list) {
  return uses_of(std::span<const RoleUse>(list.begin(), list.size()));
}

extern const std::array<const Operator*, 11> kOperators;

inline Use use_of(const RoleRow& row, Op op) { return op->uses[row.role]; }
inline bool is_backward(Op op) { return op->backward; }
// Gradients or derivatives along tangents: neither supports a cache.
inline bool is_derivative(Op op) { return op->backward || op->tangents; }
inline bool is_attention(Op op) { return op->attention; }
// Attention or one of its derivatives, by the tensors that a call has.
inline Op attention_op(bool dout, bool tout) {
  if (dout) return tout ? kBackwardJvp : kBackward;
  return tout ? kJvp : kForward;
}

// The row of an operator in a table of another layer.
template <class Rows>
const auto& row_of(const Rows& rows, Op op) {
  return *std::ranges::find_if(rows, [&](const auto& row) { return row.op == op; });
}

}  // namespace onepass
