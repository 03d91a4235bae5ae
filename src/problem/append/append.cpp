// The problem of an append, from its tensors: its sizes, and what is rotated.
#include "problem/append/append.hpp"

#include <cstdint>
#include <optional>

#include "base/text.hpp"
#include "onepass/error.hpp"
#include "problem/attention/cache.hpp"
#include "problem/checks/role_checks.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/operator.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

// In the order in which they are checked.
constexpr RoleUse kUses[] = {
    {Role::k_new, Use::needs},        {Role::v_new, Use::needs},     {Role::cache_seqlens, Use::takes},
    {Role::slot_mapping, Use::takes}, {Role::k_cache, Use::writes},  {Role::v_cache, Use::writes},
    {Role::page_table, Use::takes},   {Role::k_descale, Use::takes}, {Role::v_descale, Use::takes},
    {Role::cu_seqlens_q, Use::takes}, {Role::positions, Use::takes}, {Role::cos, Use::takes},
    {Role::sin, Use::takes},          {Role::q, Use::takes},         {Role::q_out, Use::may_write}};

void check_together(const Tensors& t) {
  const bool rotary = t.cos.given() || t.sin.given(), slots = t.slot_mapping.given();
  want(slots || t.cache_seqlens.given(), ErrorCode::bad_shape, "cache_seqlens or slot_mapping must be given");
  for (const Role role : {Role::cache_seqlens, Role::page_table, Role::cu_seqlens_q})
    want(!slots || !tensor_of(t, row_of(role)).given(), ErrorCode::bad_value, row_of(role).name,
         " and slot_mapping must not both be given: slot_mapping says where each token goes");
  want(slots || !t.positions.given(), ErrorCode::bad_value,
       "positions requires slot_mapping; with cache_seqlens, positions follow from the lengths");
  want(rotary || !t.positions.given(), ErrorCode::bad_value, "positions requires cos and sin");
  want(!rotary || !slots || t.positions.given(), ErrorCode::bad_shape,
       "positions must be given: with slot_mapping it says which rows of cos and sin rotate the tokens");
  want(t.q.given() || !t.q_out.given(), ErrorCode::bad_value, "q_out requires q");
  want(!t.q.given() || t.q_out.given(), ErrorCode::bad_shape, "q_out must be given");
  want(rotary || !t.q.given(), ErrorCode::bad_value, "q requires cos and sin, which rotate it");
  for (const Role role : {Role::cos, Role::sin})
    want(!rotary || tensor_of(t, row_of(role)).given(), ErrorCode::bad_shape, row_of(role).name,
         " must be given: cos and sin come together");
}

Problem append_problem_of(Op op, const Tensors& t, const CallOptions& options, Mods*) {
  check_together(t);
  Problem p;
  p.op = op;
  p.varlen = t.cu_seqlens_q.given();
  p.slots = t.slot_mapping.given();
  p.seqused = !p.slots;
  p.page_size = t.page_table.given() || p.slots ? 1 : 0;  // k's, once it is read
  const Forms forms = forms_of(p);
  RoleChecks sizes(op, t, forms);
  for (const auto& [role, use] : kUses) {
    const ConstTensor tensor = tensor_of(t, row_of(role));
    if (role == Role::k_descale) {
      if (p.slots) sizes.set(Axis::batch, 1, "slot_mapping"), sizes.set(Axis::max_pages, sizes[Axis::pages], "k");
      if (p.paged())
        sizes.set(Axis::seq_k, keys_of_pages(sizes[Axis::max_pages], sizes[Axis::page_size]), "page_table");
      sizes.set(Axis::blocks_k, p.slots ? 1 : descale_blocks(sizes[Axis::seq_k]), "k");
    }
    if (tensor.given() || use == Use::needs || use == Use::writes) sizes.check(row_of(role), tensor);
  }
  p.batch = sizes[Axis::batch];
  p.heads_q = sizes[Axis::heads_q];
  p.heads_kv = sizes[Axis::heads_kv];
  p.dim_qk = sizes[Axis::dim_qk];
  p.dim_v = sizes[Axis::dim_v];
  p.total_q = sizes[Axis::total_q];
  p.seq_q = p.varlen || p.slots ? p.total_q : sizes[Axis::seq_q];
  p.seq_k = sizes[Axis::seq_k];
  p.page_size = sizes[Axis::page_size];
  p.pages = sizes[Axis::pages];
  p.max_pages = sizes[Axis::max_pages];
  p.dtype = p.out_dtype = t.k_new.dtype;
  if (t.k_cache.dtype != p.dtype) p.kv_dtype = t.k_cache.dtype;
  p.device = t.k_new.device;
  p.rotary = t.cos.given();
  p.with_q = t.q.given();
  p.rotary_dim = 2 * sizes[Axis::pairs];
  p.positions = sizes[Axis::positions];
  if (p.rotary) p.table_dtype = t.cos.dtype;
  if (p.slots) p.slot_dtype = t.slot_mapping.dtype;
  if (t.positions.given()) p.position_dtype = t.positions.dtype;
  p.interleaved = p.rotary && options.interleaved;
  const auto spans = [](const ConstTensor& x) -> std::optional<DescaleSpec> {
    if (!x.given()) return std::nullopt;
    return DescaleSpec{x.shape[0] != 1, x.shape[1] != 1, x.shape[2] != 1};
  };
  p.k_descale = spans(t.k_descale);
  p.v_descale = spans(t.v_descale);
  take_layout(p, t);
  validate(p);
  check_append_contents(p, t);
  return p;
}

void complete_append(Problem& p, Said said) {
  want(p.with_q || p.heads_q == p.heads_kv, ErrorCode::bad_text,
       "append does not support two numbers of heads without q (docs/reference/problem.md)");
  if (!p.with_q) p.heads_q = 0;
  if (p.varlen) p.seq_q = p.total_q;
  if (p.slots) p.total_q = p.seq_q;
  if (p.paged()) p.seq_k = keys_of_pages(p.max_pages, p.page_size);
  if (p.rotary && !is_said(said, "positions")) p.positions = p.seq_k;
}

constexpr std::string_view kWords[] = {"operator",      "b",         "h",      "s",      "d",      "dtype",
                                       "kv_dtype",      "device",    "layout", "varlen", "packed", "align",
                                       "cache_seqlens", "positions", "table"};

}  // namespace

constinit const Operator kAppend{.word = "append",
                                 .call = "append_kv",
                                 .base = Role::k_new,
                                 .uses = uses_of(kUses),
                                 .words = kWords,
                                 .problem_of = append_problem_of,
                                 .validate = validate_append,
                                 .check_contents = check_append_contents,
                                 .complete = complete_append};

void take_cos_sin_cache(Tensors& t, const ConstTensor& both) {
  want(!t.cos.given() && !t.sin.given(), ErrorCode::bad_value,
       "cos_sin_cache and cos or sin must not both be given: the cache has both in its columns");
  check_tensor("cos_sin_cache", both);
  want(both.rank == 2 && both.shape[1] % 2 == 0, ErrorCode::bad_shape,
       "cos_sin_cache must have shape [positions, rotary_dim] with an even rotary_dim (got shape ", ShownShape{both},
       ")");
  t.cos = both;
  t.cos.shape[1] = both.shape[1] / 2;
  t.sin = t.cos;
  if (both.elements() > 0)
    t.sin.data = static_cast<const std::byte*>(both.data) +
                 t.cos.shape[1] * both.stride[1] * static_cast<std::int64_t>(size_of(both.dtype));
}

Tensors as_tensors(const AppendTensors& a) {
  Tensors t;
  t.k_new = a.k_new, t.v_new = a.v_new, t.k_cache = a.k, t.v_cache = a.v;
  t.cache_seqlens = a.cache_seqlens, t.page_table = a.page_table, t.cu_seqlens_q = a.cu_seqlens_q;
  t.slot_mapping = a.slot_mapping, t.positions = a.positions;
  t.cos = a.cos, t.sin = a.sin;
  if (a.cos_sin_cache.given()) take_cos_sin_cache(t, a.cos_sin_cache);
  t.k_descale = a.k_descale, t.v_descale = a.v_descale;
  t.q = a.q, t.q_out = a.q_out;
  return t;
}

std::int64_t new_tokens(const Problem& p, std::int64_t b) {
  if (use_of(row_of(Role::k_new), p.op) == Use::none) return 0;
  const auto at = static_cast<std::size_t>(b);
  return !p.varlen ? p.seq_q : at < p.lengths_q.size() ? p.lengths_q[at] : 0;
}

}  // namespace onepass
