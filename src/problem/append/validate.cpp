// The fields of an append's problem fit together.
#include <cstdint>
#include <utility>

#include "base/text.hpp"
#include "problem/append/append.hpp"
#include "problem/attention/cache.hpp"
#include "problem/checks/problem_checks.hpp"
#include "problem/roles.hpp"

namespace onepass {

Mods validate_append(const Problem& p) {
  validate_device(p);
  validate_data("k_new", p.dtype);
  want(p.out_dtype == p.dtype, ErrorCode::bad_dtype, "q_out must be ", name_of(p.dtype), ", as k_new (got ",
       name_of(p.out_dtype), ")");
  validate_key_dtype(p, "k_new");
  for (const auto& [name, spec] : {std::pair{"k_descale", p.k_descale}, {"v_descale", p.v_descale}}) {
    want(!spec || p.key_dtype() == DType::f8e4m3, ErrorCode::bad_dtype, name, " requires an fp8_e4m3 cache (got ",
         name_of(p.key_dtype()), ")");
    want(!spec || !p.slots || !(spec->batch || spec->blocks), ErrorCode::bad_shape, name,
         " must be one factor for each head, or one for all, with slot_mapping");
  }
  want(p.dim_qk >= 0 && p.dim_v >= 0, ErrorCode::bad_shape, "dim_qk and dim_v must be 0 or more (got ", p.dim_qk,
       " and ", p.dim_v, ")");
  want(p.seqused != p.slots && (!(p.varlen || p.slots) || p.seq_q == p.total_q), ErrorCode::bad_value,
       "an append must have either cache_seqlens or slots, and seq_q must be total_q if it is packed");
  want(!p.slots || (p.paged() && !p.varlen && p.batch == 1 && p.max_pages == p.pages), ErrorCode::bad_value,
       "slots require pages, all of one sequence, and neither varlen nor a batch");
  for (const auto& [name, dtype] : {std::pair{"slot_mapping", p.slot_dtype}, {"positions", p.position_dtype}})
    want(dtype == DType::i32 || dtype == DType::i64, ErrorCode::bad_dtype, name, " must be int32 or int64 (got ",
         name_of(dtype), ")");
  want(p.rotary || (!p.with_q && !p.interleaved && p.rotary_dim == 0 && p.positions == 0), ErrorCode::bad_value,
       "q requires cos and sin, which rotate it");
  want(p.with_q || p.heads_q == 0, ErrorCode::bad_shape, "heads_q must be 0 without q (got ", p.heads_q, ")");
  want(p.rotary_dim >= 0 && p.rotary_dim % 2 == 0 && p.positions >= 0, ErrorCode::bad_shape,
       "rotary_dim must be even, and positions 0 or more (got ", p.rotary_dim, " and ", p.positions, ")");
  want(p.rotary_dim <= p.dim_qk, ErrorCode::bad_shape, "cos must have at most ", p.dim_qk / 2,
       " columns, half the head dim of k_new (got ", p.rotary_dim / 2, ")");
  want(p.table_dtype == DType::f32 || p.table_dtype == p.dtype, ErrorCode::bad_dtype, "cos must be ",
       p.dtype == DType::f32 ? "" : "fp32 or ", name_of(p.dtype), ", as k_new (got ", name_of(p.table_dtype), ")");
  want(p.page_size >= 0 && p.pages >= 0 && p.max_pages >= 0, ErrorCode::bad_shape,
       "page_size, pages and max_pages must be 0 or more (got ", p.page_size, ", ", p.pages, " and ", p.max_pages, ")");
  want(!p.paged() || p.seq_k == keys_of_pages(p.max_pages, p.page_size), ErrorCode::bad_shape, "seq_k must be ",
       p.paged() ? keys_of_pages(p.max_pages, p.page_size) : 0, ", the keys of ", p.max_pages, " pages of ",
       p.page_size, " (got ", p.seq_k, ")");
  for (const Role role : {Role::k_new, Role::v_new, Role::q, Role::k_cache, Role::v_cache, Role::page_table}) {
    const Dims n = shape_of(p, row_of(role)).size;
    validate_size(row_of(role).name, {n[0], n[1], n[2], n[3]});
  }
  validate_strides(p);
  validate_alignments(p);
  for (std::size_t b = 0; b < p.lengths_k.size(); ++b) {
    const std::int64_t fresh = new_tokens(p, static_cast<std::int64_t>(b));
    want(p.lengths_k[b] >= 0 && p.lengths_k[b] <= p.seq_k - fresh, ErrorCode::bad_value, "cache_seqlens[", b,
         "] must be 0 to ", p.seq_k - fresh, " to append ", fresh, " tokens to a cache of ", p.seq_k, " (got ",
         p.lengths_k[b], ")");
  }
  for (const auto* lengths : {&p.lengths_q, &p.lengths_k})
    want(lengths->empty() || static_cast<std::int64_t>(lengths->size()) == p.batch, ErrorCode::bad_shape,
         "the number of lengths must be ", p.batch, ", as batch (got ", lengths->size(), ")");
  return {};
}

}  // namespace onepass
