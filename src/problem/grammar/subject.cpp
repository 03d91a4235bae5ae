#include "problem/grammar/subject.hpp"

#include <algorithm>
#include <iterator>

namespace onepass {
namespace {

constexpr std::string_view
    kOfForward[] = {"lse",       "kv",     "seqused",      "batch_invariant", "kv_dtype",    "q_descale", "k_descale",
                    "v_descale", "v_mean", "accumulation", "v_in_k",          "unified_max", "recomputed"},
    kOfBackward[] = {"grads", "grad", "dlse", "deterministic"},
    kOfNoAttention[] = {"log", "row_lse", "descale", "hadamard", "mean", "m", "n", "k", "column_bias"},
    kOfMerge[] = {"operator", "n", "b", "h", "s", "d", "dtype", "out", "layout", "device", "lse", "align"},
    kOfSoftmax[] = {"operator", "b", "h", "s", "dtype", "out", "device", "align", "scale", "log"},
    kOfSoftmaxForward[] = {"mask", "lse", "row_lse"},
    kOfQuantize[] = {"operator", "b", "h", "s", "dtype", "descale", "seed", "device", "align", "hadamard", "mean"},
    kOfGemm[] = {"operator", "m", "n", "k", "dtype", "out", "device", "align", "column_bias"};

}  // namespace

std::optional<Op> op_named(std::string_view word) {
  for (std::size_t i = 0; i < kOps; ++i)
    if (word == word_of(static_cast<Op>(i))) return static_cast<Op>(i);
  return std::nullopt;
}

const RoleRow* role_named(std::string_view name) {
  const auto* row = std::ranges::find(kRoleTable, name, [](const RoleRow& r) { return std::string_view(r.name); });
  return row == kRoleTable.end() ? nullptr : row;
}

const RoleRow* role_of_strides(std::string_view key) {
  const RoleRow* row = key.ends_with("_strides") ? role_named(key.substr(0, key.size() - 8)) : nullptr;
  return row && row->role != Role::q && row->role != Role::k && row->role != Role::v ? row : nullptr;
}

std::string_view subject_of(std::string_view word) {
  if (word.starts_with("causal") || word.starts_with("aligned")) return "alignment";
  if (const std::size_t equals = word.find('='); equals != word.npos) {
    const std::string_view key = word.substr(0, equals);
    return key == "strides" ? "layout" : key;
  }
  if (op_named(word)) return "operator";
  if (word == "lse_only") return "lse";
  if (word == "cpu" || word.starts_with("cuda")) return "device";
  if (word == "fp32" || word == "fp16" || word == "bf16" || word == "fp8_e4m3") return "dtype";
  return word.size() > 1 && word[1] >= '0' && word[1] <= '9' ? word.substr(0, 1) : word;
}

bool speaks_of(Op op, std::string_view subject) {
  if (const RoleRow* row = role_of_strides(subject))
    return use_of(*row, op) != Use::none && (row->role != Role::out || op == Op::merge);
  const auto is_in = [&](const auto& list) { return std::ranges::find(list, subject) != std::end(list); };
  switch (op) {
    case Op::forward: return !is_in(kOfBackward) && !is_in(kOfNoAttention);
    case Op::backward: return !is_in(kOfForward) && !is_in(kOfNoAttention);
    case Op::merge: return is_in(kOfMerge);
    case Op::softmax: return is_in(kOfSoftmax) || is_in(kOfSoftmaxForward);
    case Op::softmax_backward: return is_in(kOfSoftmax);
    case Op::quantize: return is_in(kOfQuantize);
    case Op::flat_gemm:
    case Op::linear: return is_in(kOfGemm);
  }
  return false;
}

}  // namespace onepass
