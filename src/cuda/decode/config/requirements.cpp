#include "cuda/decode/config/requirements.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/decode/split_policy.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/roles.hpp"

namespace onepass::decode {
namespace {

constexpr std::int64_t kKeysOfRow = 4;  // at least, with more than one query: below, Q and O are a large part

bool has_few_rows(const Problem& p) {
  return rows_of(p) <= kMaxRows && (p.seq_q <= 1 || p.batch_invariant || p.seq_k >= kKeysOfRow * rows_of(p));
}

// The sentence that refuses e4m3 k and v. Few rows copy by cp.async, which needs 4-byte alignment.
std::string why_no_fp8_keys(const Problem& p, bool few) {
  if (p.dtype == DType::f32) return "with an FP8 cache, q must be fp16 or bf16 (got fp32)";
  for (const Role role : {Role::q, Role::k, Role::v}) {
    if (few && cuda::row_alignment(p, role) < 4)
      return text("with fp8_e4m3 k and v, rows of ", row_of(role).name, " must be 4-byte aligned (alignment is ",
                  cuda::row_alignment(p, role), ")");
  }
  if (p.v_mean && (few || p.dropout_p > 0)) return text("does not support v_mean", few ? "" : " with dropout");
  if (std::max(p.dim_qk, p.dim_v) > 256)
    return text("with fp8_e4m3 k and v, head dims must be at most 256 (got ", p.dim_qk, "/", p.dim_v, ")");
  return "";
}

}  // namespace

bool has_row_blocks(const Problem& p, Rows rows) {
  if (rows == Rows::any_fp8) return !has_few_rows(p);
  return p.batch_invariant && !p.unified_max && rows_of(p) > kMaxRows;
}

std::string why_not(const Problem& p, Rows rows) {
  const bool fp8 = p.key_dtype() == DType::f8e4m3, few = rows == Rows::few;
  if (!few && !fp8) return text("requires fp8_e4m3 k and v (k is ", name_of(p.key_dtype()), ")");
  if (few && p.dtype == DType::f8e4m3) return why_no_fp8(p);
  if (std::string sentence = why_no_other_keys(p); !sentence.empty()) return sentence;
  if (std::string sentence = fp8 ? why_no_fp8_keys(p, few) : ""; !sentence.empty()) return sentence;
  if (!fp8 && p.v_mean) return "does not support v_mean";
  if (has_row_blocks(p, rows)) return cuda::why_too_many(p);
  if (rows_of(p) > kMaxRows)
    return text("rows per K/V head (seq_q x heads_q / heads_kv) must be at most ", kMaxRows, " (got ", rows_of(p), ")");
  if (!has_few_rows(p))
    return text("with seq_q > 1, seq_k must be at least ", kKeysOfRow, " x rows per K/V head (got ", p.seq_k,
                " keys for ", rows_of(p), " rows)");
  return cuda::why_too_many(p);
}

}  // namespace onepass::decode
