// The problem of an append: its sizes, where its tokens may go, and what is rotated.
#include "problem/append/append.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <vector>

#include "base/text.hpp"
#include "onepass/error.hpp"
#include "problem/attention/cache.hpp"
#include "problem/checks/problem_checks.hpp"
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

// Sequences may share pages that they only read. Two must not append to the same place, because threads would meet
// there. None may append to a page that holds live keys of another, which would be overwritten now or at its next
// token.
void check_places(const Problem& p, const Tensors& t) {
  struct Part {  // tokens of a page that sequence b writes
    std::int64_t page, from, to, b;
  };
  if (new_tokens(p) == 0) return;
  std::vector<Part> parts;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, t, b);
    for (std::int64_t key = s.seq_k, end = s.seq_k + s.seq_q; key < end;) {
      const std::int64_t entry = key / p.page_size, from = key % p.page_size,
                         to = std::min(p.page_size, from + end - key);
      parts.push_back({checked_page(s.pages, b, entry, p.pages), from, to, b});
      key += to - from;
    }
  }
  std::ranges::sort(parts, {}, [](const Part& x) { return std::tuple(x.page, x.from, x.b); });
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const Part &x = parts[i - 1], &y = parts[i];
    want(x.page != y.page || x.to <= y.from, ErrorCode::bad_value, "only one new token may be written to token ",
         y.from, " of page ", y.page, " (page_table gives it to sequences ", x.b, " and ", y.b, ")");
  }
  std::vector<bool> written(static_cast<std::size_t>(p.pages));
  for (const Part& part : parts) written[static_cast<std::size_t>(part.page)] = true;
  for (std::int64_t b = 0; b < p.batch && !parts.empty(); ++b) {
    const Sequence s = sequence_of(p, t, b);
    for (std::int64_t entry = 0; entry * p.page_size < s.seq_k; ++entry) {
      const std::int64_t page = s.pages.entry[entry * s.pages.stride];  // one that is not read may be anything
      if (page < 0 || page >= p.pages || !written[static_cast<std::size_t>(page)]) continue;
      const auto other =
          std::ranges::find_if(parts, [&](const Part& part) { return part.page == page && part.b != b; });
      want(other == parts.end(), ErrorCode::bad_value, "sequence ", other == parts.end() ? 0 : other->b,
           " must not append to page ", page, ", which holds live keys of sequence ", b, " (page_table[", b, ", ",
           entry, "]); copy the page first");
    }
  }
}

// Slots and positions in range, and one token for each slot.
void check_slots(const Problem& p, const Tensors& t) {
  const auto repeated = [](const ConstTensor& x) { return !x.given() || x.stride[0] == 0; };
  // Repeated entries say all about the others.
  const std::int64_t tokens =
      repeated(t.slot_mapping) && repeated(t.positions) ? std::min<std::int64_t>(p.seq_q, 2) : p.seq_q;
  std::vector<std::pair<std::int64_t, std::int64_t>> places;  // slot, token
  for (std::int64_t i = 0; i < tokens; ++i) {
    const NewToken token = new_token(t, {}, i);
    want(token.key < p.seq_k, ErrorCode::bad_value, "slot_mapping[", i, "] must be below ", p.seq_k, ", the slots of ",
         p.pages, " pages of ", p.page_size, " (got ", token.key, ")");
    want(!p.rotary || (token.skipped() && !p.with_q) || (token.position >= 0 && token.position < p.positions),
         ErrorCode::bad_value, "positions[", i, "] must be a row of cos and sin, from 0 to ", p.positions - 1, " (got ",
         token.position, ")");
    if (!token.skipped()) places.emplace_back(token.key, i);
  }
  std::ranges::sort(places);
  const auto twice = std::ranges::adjacent_find(places, {}, [](const auto& place) { return place.first; });
  if (twice == places.end()) return;
  throw Error(ErrorCode::bad_value,
              text("only one token may be written to slot ", twice->first, " (slot_mapping gives it to tokens ",
                   twice->second, " and ", std::next(twice)->second, ")"));
}

// Where the CPU can look.
void check_contents(const Problem& p, const Tensors& t) {
  if (p.device.kind != DeviceKind::cpu) return;
  if (p.slots) return check_slots(p, t);
  if (p.varlen) (void)lengths_from("cu_seqlens_q", t.cu_seqlens_q, p.total_q, "k_new");
  // One entry that is repeated says all about the others.
  const bool one = !p.varlen && t.cache_seqlens.stride[0] == 0;
  for (std::int64_t b = 0; b < (one ? std::min<std::int64_t>(p.batch, 1) : p.batch); ++b) {
    const Sequence s = sequence_of(p, t, b);
    want(s.seq_k >= 0 && s.seq_k <= p.seq_k - s.seq_q, ErrorCode::bad_value, "cache_seqlens[", b, "] must be 0 to ",
         p.seq_k - s.seq_q, " to append ", s.seq_q, " tokens to a cache of ", p.seq_k, " (got ", s.seq_k, ")");
    want(!p.rotary || s.seq_q == 0 || s.seq_k <= p.positions - s.seq_q, ErrorCode::bad_value, "cache_seqlens[", b,
         "] must be at most ", p.positions - s.seq_q, " to append ", s.seq_q, " tokens with ", p.positions,
         " positions of cos and sin (got ", s.seq_k, ")");
  }
  if (p.paged()) check_places(p, t);
}

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
  check_roles(op, t);
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
  for (const auto& [role, use] : kUses) {
    const ConstTensor tensor = tensor_of(t, row_of(role));
    if (!tensor.given()) continue;
    p.layout.*row_of(role).layout = layout_of(row_of(role), forms.of(row_of(role)), tensor);
    p.alignment[static_cast<std::size_t>(role)] = alignment_of(tensor);
  }
  validate(p);
  check_contents(p, t);
  return p;
}

Mods validate_append(const Problem& p) {
  validate_device(p);
  validate_data("k_new", p.dtype);
  want(p.out_dtype == p.dtype, ErrorCode::bad_dtype, "q_out must be ", name_of(p.dtype), ", as k_new (got ",
       name_of(p.out_dtype), ")");
  want(!p.kv_dtype || *p.kv_dtype == DType::f8e4m3, ErrorCode::bad_dtype, "k and v must be ", name_of(p.dtype),
       ", as k_new, or fp8_e4m3 (got ", name_of(p.key_dtype()), ")");
  for (const auto& [name, spec] : {std::pair{"k_descale", p.k_descale}, {"v_descale", p.v_descale}}) {
    want(!spec || p.kv_dtype, ErrorCode::bad_dtype, name, " requires an fp8_e4m3 cache (got ", name_of(p.key_dtype()),
         ")");
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
                                 .check_contents = check_contents,
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
