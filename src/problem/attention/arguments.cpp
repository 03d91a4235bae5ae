#include "problem/attention/arguments.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "algebra/tree.hpp"
#include "base/shown.hpp"
#include "problem/attention/cache.hpp"
#include "problem/attention/options.hpp"
#include "problem/callers_layout.hpp"
#include "problem/checks/problem_checks.hpp"
#include "problem/checks/role_checks.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/operator.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

// The longest of some lengths; a bound that the caller gave stands if it holds them.
std::int64_t longest(const char* name, const std::vector<std::int64_t>& lengths, std::int64_t bound) {
  const std::int64_t most = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  if (bound == 0) return most;
  check_longest(name, most, bound);
  return bound;
}

void read_lengths(const Tensors& t, const Attention& a, Problem& p, RoleChecks& sizes) {
  p.batch = sizes[Axis::batch];
  p.total_q = sizes[Axis::total_q];
  p.total_k = sizes[Axis::total_k];
  const auto read = [&](const char* name, const ConstTensor& cu, std::int64_t total, const char* bound_name,
                        std::int64_t bound, std::vector<std::int64_t>& lengths) {
    if (t.q.device.kind == DeviceKind::cuda) return bound > 0 ? std::min(bound, total) : total;  // only it knows them
    lengths = lengths_from(name, cu, total);
    return longest(bound_name, lengths, bound);
  };
  p.seq_q = read("cu_seqlens_q", t.cu_seqlens_q, p.total_q, "max_seqlen_q", a.max_seqlen_q, p.lengths_q);
  sizes.set(Axis::seq_q, p.seq_q, "cu_seqlens_q");
  if (!p.packed_k()) return;
  p.seq_k = read("cu_seqlens_k", t.cu_seqlens_k, p.total_k, "max_seqlen_k", a.max_seqlen_k, p.lengths_k);
  sizes.set(Axis::seq_k, p.seq_k, "cu_seqlens_k");
}

// The pages of a cache: their number and size are k's, how many a sequence has the page table's.
void read_pages(const Attention& a, Problem& p, RoleChecks& sizes) {
  p.pages = sizes[Axis::pages];
  p.page_size = sizes[Axis::page_size];
  p.max_pages = sizes[Axis::max_pages];
  const std::int64_t most = keys_of_pages(p.max_pages, p.page_size);
  want(a.max_seqlen_k <= most, ErrorCode::bad_value, "max_seqlen_k must be at most ", most, ", since page_table has ",
       p.max_pages, " pages of ", p.page_size, " keys for each sequence (got ", a.max_seqlen_k, ")");
  p.seq_k = a.max_seqlen_k > 0 ? a.max_seqlen_k : most;
  sizes.set(Axis::seq_k, p.seq_k, "page_table");
}

// [batch|1, heads|1, rows|1, keys|1]
BroadcastDims spans_of(const ConstTensor& t, const Dims& full) {
  const auto spans = [&](int i) { return full[i] != 1 && t.shape[i] == full[i]; };
  return {spans(0), spans(1), spans(2), spans(3)};
}

// True if v begins where k does: with k's strides it is then the first columns of k.
bool is_in_k(const ConstTensor& v, const ConstTensor& k) { return v.data == k.data && k.data && k.elements() > 0; }

constexpr std::string_view kForwardWords[] = {"operator",  "b",      "h",      "s",      "d",
                                              "dtype",     "out",    "device", "layout", "align",
                                              "alignment", "window", "buffer", "varlen", "packed",
                                              "kv_dtype",  "v_in_k", "fp8",    "tree"},
                           kBackwardWords[] = {"operator", "b",      "h",      "s",     "d",         "dtype",
                                               "out",      "device", "layout", "align", "alignment", "window",
                                               "buffer",   "varlen", "packed", "grads", "grad"},
                           kBackwardJvpWords[] = {"operator", "b",      "h",      "s",     "d",         "dtype",
                                                  "out",      "device", "layout", "align", "alignment", "window",
                                                  "buffer",   "varlen", "packed", "grads", "grad"},
                           kJvpWords[] = {"operator",  "b",      "h",      "s",      "d",
                                          "dtype",     "out",    "device", "layout", "align",
                                          "alignment", "window", "buffer", "varlen", "packed"};

// A line without grads=.. asks for dq, dk and dv, of q's dtype.
void complete_gradients(Problem& p, Said said) {
  if (!is_said(said, "grad")) p.grad_dtype = p.dtype;
  if (!is_said(said, "grads")) p.gradients = {.dq = true, .dk = true, .dv = true};
}

constexpr Uses attention_uses(Use RoleRow::* column) {
  Uses uses{};
  for (const RoleRow& row : kRoleTable) uses.set(row.role, row.*column);
  return uses;
}

Problem attention_problem_of(Op op, const Tensors& t, const CallOptions& a, Mods* mods) {
  Problem p;
  p.op = op;
  want(!a.log && !a.hadamard, ErrorCode::bad_value, p.op->call, " does not support ", a.log ? "log" : "hadamard", "; ",
       (a.log ? kSoftmax : kQuantize).call, " does");
  want(!is_derivative(op) || t.k.dtype == t.q.dtype || !is_key_dtype(t.k.dtype, t.q.dtype), ErrorCode::bad_dtype,
       p.op->call, " does not support ", name_of(t.k.dtype), " k and v with ", name_of(t.q.dtype), " q");
  p.varlen = t.cu_seqlens_q.given() || t.cu_seqlens_k.given();
  p.seqused = t.seqused_k.given();
  const bool paged = t.page_table.given();
  want(!t.cu_seqlens_k.given() || !(p.seqused || paged), ErrorCode::bad_value, paged ? "page_table" : "seqused_k",
       " does not support cu_seqlens_k: keys must be either packed or a cache");
  p.page_size = paged ? 1 : 0;  // k's, once it is read
  const bool backward = is_backward(op);
  for_each_option([&](const OptionRow& row, auto option) {  // seq_q and seq_k hold the bounds
    if (!row.word) return;
    if (takes_option(row, op)) p.*option = a.*option;
    // `deterministic` alone is for gradients only; a forward is, whatever it says.
    want(!is_derivative(op) || takes_option(row, op) || a.*option == Attention{}.*option, ErrorCode::bad_value,
         p.op->call, " does not support ", row.word);
  });
  for (const auto& [name, bound, used] :
       {std::tuple{"max_seqlen_q", a.max_seqlen_q, p.varlen}, {"max_seqlen_k", a.max_seqlen_k, p.packed_k() || paged}})
    want(bound >= 0 && (bound == 0 || used), ErrorCode::bad_value, name, " must be 0",
         used ? " (unknown) or more (got " : " if the tensors are not packed (got ", bound, ")");

  if (t.block_mask.given()) p.block_mask.emplace();
  validate_mask_tiles(p);  // before they divide sizes
  const Forms forms = forms_of(p);
  RoleChecks sizes(op, t, forms);
  for_each_role(op, t, [&](const RoleRow& row, const auto& tensor) {
    if (row.role == Role::q_descale) {
      sizes.set(Axis::blocks_q, descale_blocks(sizes[Axis::seq_q]), "q");
      sizes.set(Axis::blocks_k, descale_blocks(sizes[Axis::seq_k]), "k");
    }
    if (row.role == Role::block_mask) {
      sizes.set(Axis::mask_rows, mask_tiles(sizes[Axis::seq_q], p.tile_q()), "q");
      sizes.set(Axis::mask_keys, mask_tiles(sizes[Axis::seq_k], p.tile_k()), "k");
    }
    const bool lengths = row.role == Role::cu_seqlens_q ? p.varlen : row.role == Role::cu_seqlens_k && p.packed_k();
    if (must_be_given(row, p.op) || tensor.given() || lengths) sizes.check(row, tensor);
    if (row.role == Role::cu_seqlens_k && p.varlen) read_lengths(t, a, p, sizes);
    if (row.role == Role::page_table && paged) read_pages(a, p, sizes);
  });
  p.batch = sizes[Axis::batch];
  p.heads_q = sizes[Axis::heads_q];
  p.heads_kv = sizes[Axis::heads_kv];
  p.dim_qk = sizes[Axis::dim_qk];
  p.dim_v = sizes[Axis::dim_v];
  p.seq_q = sizes[Axis::seq_q];
  p.seq_k = sizes[Axis::seq_k];
  p.dtype = t.q.dtype;
  if (t.k.dtype != p.dtype) p.kv_dtype = t.k.dtype;
  p.out_dtype = t.out.dtype;
  p.device = t.q.device;
  const Dims scores{p.batch, p.heads_q, p.seq_q, p.seq_k};
  if (t.bias.given()) p.bias = BiasSpec{t.bias.dtype, spans_of(t.bias, scores)};
  if (t.bool_mask.given()) p.bool_mask = spans_of(t.bool_mask, scores);
  if (t.block_mask.given())
    p.block_mask =
        spans_of(t.block_mask, {p.batch, p.heads_q, size_of(Axis::mask_rows, p), size_of(Axis::mask_keys, p)});
  p.alibi = t.alibi_slopes.given();
  p.sinks = t.sinks.given();
  p.dropout_seed = t.dropout_seed.given();
  p.drafts = t.tree.given() ? sizes[Axis::drafts] : 0;
  want(!t.tree.given() || p.drafts > 0, ErrorCode::bad_shape, "tree must have 1 to ", kMostDrafts,
       " drafts of a sequence (got 0)");
  const auto descale = [](const ConstTensor& x) -> std::optional<DescaleSpec> {
    if (!x.given()) return std::nullopt;
    return DescaleSpec{x.shape[0] != 1, x.shape[1] != 1, x.shape[2] != 1};
  };
  p.q_descale = descale(t.q_descale);
  p.k_descale = descale(t.k_descale);
  p.v_descale = descale(t.v_descale);
  p.v_mean = descale(t.v_mean);
  if (backward) {
    const Tensors g = op->tangents ? with_derivatives_as_gradients(t) : t;
    p.gradients = {g.dq.given(),    g.dk.given(),     g.dv.given(),
                   g.dbias.given(), g.dsinks.given(), g.dalibi_slopes.given()};
    const Tensor* const wide[] = {&g.dq, &g.dk, &g.dv};
    const auto* first = std::ranges::find_if(wide, [](const Tensor* x) { return x->given(); });
    p.grad_dtype = first == std::end(wide) ? p.dtype : (*first)->dtype;
    p.dlse = t.dlse.given();
    p.dentropy = t.dentropy.given();
  } else {
    p.want_lse = t.lse.given();
    p.want_recomputed = t.recomputed.given();
    p.want_row_max = t.row_max.given();
    p.want_tlse = t.tlse.given();
  }
  p.entropy = t.entropy.given();
  p.tbias = t.tbias.given();
  p.tsinks = t.tsinks.given();
  p.tdout = t.tdout.given();
  p.tdlse = t.tdlse.given();
  take_layout(p, t);
  p.fp8 = a.fp8;
  if (p.fp8 && !p.fp8->hadamard) p.fp8->seed = 0;
  p.v_in_k = !is_derivative(op) && !p.fp8 && is_in_k(t.v, t.k) && p.layout.v == p.layout.k && p.dim_v <= p.dim_qk;
  for (const auto& [name, tensor] : t.mod_buffers) {
    const std::string called = "mod buffer " + shown(name);
    check_tensor(called, tensor);
    want(tensor.device == t.q.device, ErrorCode::bad_device, called, " must be on ", ShownDevice{t.q.device},
         ", as q (got ", ShownDevice{tensor.device}, ")");
    p.mod_buffers.push_back({name, tensor.dtype, tensor.rank, tensor.shape});
  }
  Mods parsed = checked_mods(p);
  check_cache(p, t);
  if (mods) *mods = std::move(parsed);
  return p;
}

// Where the CPU can look.
void check_contents(const Problem& p, const Tensors& t) {
  check_lengths(p, t);
  check_cache(p, t);
}

}  // namespace

constinit const Operator kForward{.word = "fwd",
                                  .call = "attention",
                                  .base = Role::q,
                                  .uses = attention_uses(&RoleRow::forward),
                                  .words = kForwardWords,
                                  .attention = true,
                                  .problem_of = attention_problem_of,
                                  .validate = validate_attention,
                                  .check_contents = check_contents},
    kBackward{.word = "bwd",
              .call = "attention_backward",
              .base = Role::q,
              .uses = attention_uses(&RoleRow::backward),
              .words = kBackwardWords,
              .attention = true,
              .backward = true,
              .problem_of = attention_problem_of,
              .validate = validate_attention,
              .check_contents = check_contents,
              .complete = complete_gradients},
    kJvp{.word = "jvp",
         .call = "jvp",
         .base = Role::q,
         .uses = attention_uses(&RoleRow::jvp),
         .words = kJvpWords,
         .attention = true,
         .tangents = true,
         .problem_of = attention_problem_of,
         .validate = validate_attention,
         .check_contents = check_contents},
    kBackwardJvp{.word = "bwd_jvp",
                 .call = "backward_jvp",
                 .base = Role::q,
                 .uses = attention_uses(&RoleRow::backward_jvp),
                 .words = kBackwardJvpWords,
                 .attention = true,
                 .backward = true,
                 .tangents = true,
                 .problem_of = attention_problem_of,
                 .validate = validate_attention,
                 .check_contents = check_contents,
                 .complete = complete_gradients};

Problem problem_of(Op op, const Tensors& t, const CallOptions& a, Mods* mods) {
  check_roles(op, t);
  Problem p = op->problem_of(op, t, a, mods);
  check_outputs(op, t);
  return p;
}
Problem problem_of_call(Op op, const Tensors& t, const CallOptions& a, Mods* mods) {
  want(!is_attention(op) || !t.page_table.given() || t.seqused_k.given(), ErrorCode::bad_value,
       "page_table requires seqused_k, the number of valid keys of each sequence");
  return problem_of(op, t, a, mods);
}
Problem problem_of(const Tensors& t, const Attention& a) {
  return problem_of_call(attention_op(t.dout.given(), t.tout.given()), t, CallOptions{a});
}

CallOptions attention_of(const Problem& p) {
  CallOptions a{p, p.log, p.hadamard, p.interleaved, p.fp8};
  bound_lengths(a, p);
  return a;
}

void bound_lengths(Attention& a, const Problem& p) {
  a.max_seqlen_q = p.varlen ? p.seq_q : 0;
  a.max_seqlen_k = p.packed_k() || p.paged() ? p.seq_k : 0;
}

}  // namespace onepass
