// Attention of this rank's queries to the keys of all ranks: checks, agreement, and the scheme.
#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "distributed/attention/agree.hpp"
#include "distributed/attention/schemes/schemes.hpp"
#include "distributed/layout.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/roles.hpp"

namespace onepass::inline v0 {
namespace {

using namespace context_parallel;

enum class Pass { forward, backward };

// A call as the caller wants it: by a scheme, or on a mesh.
struct How {
  const ContextParallel& given;
  bool mesh;

  bool deals_heads() const { return mesh || given.scheme == Scheme::ulysses; }
  bool shares_heads() const { return deals_heads() || given.head_groups > 1; }  // a call has some of the heads
  std::string name() const { return mesh ? "a mesh" : text("the scheme ", name_of(given.scheme)); }
};

// ------------------------------------------------------------------------------------------------------------- checks
void refuse_unsupported(const AttentionTensors& t, const Attention& a, Pass pass) {
  want(pass == Pass::forward || !t.row_max.given(), ErrorCode::unsupported,
       "context_parallel_attention_backward does not support row_max");
  for (const auto& [name, given] : {std::pair{"recomputed", t.recomputed.given()},
                                    {"entropy", t.entropy.given()},
                                    {"dentropy", t.dentropy.given()},
                                    {"cu_seqlens_q", t.cu_seqlens_q.given()},
                                    {"cu_seqlens_k", t.cu_seqlens_k.given()},
                                    {"seqused_k", t.seqused_k.given()},
                                    {"page_table", t.page_table.given()},
                                    {"tree", t.tree.given()},
                                    {"block_mask", t.block_mask.given()},
                                    {"dropout_seed", t.dropout_seed.given()},
                                    {"dropout_start", a.dropout_start != decltype(a.dropout_start){}},
                                    {"unified_max", a.unified_max.has_value()},
                                    {"band.align = offset", a.band.align == Align::offset}})
    want(!given, ErrorCode::unsupported, "context_parallel_attention does not support ", name);
  // Blocks of rows count from the beginning of a call.
  for (const auto& [name, x] :
       {std::pair{"q_descale", &t.q_descale}, {"k_descale", &t.k_descale}, {"v_descale", &t.v_descale}})
    want(x->rank < 3 || x->shape[2] == 1, ErrorCode::unsupported, "context_parallel_attention does not support ", name,
         " with blocks; give [batch|1, heads|1] (got ", shape_text(*x), ")");
}

void check_rows(const char* name, const ConstTensor& t, int rank, Index rows) {
  if (!t.given()) return;
  want(t.rank == rank, ErrorCode::bad_shape, name, " must have ", rank, " dimensions (got ", shape_text(t), ")");
  want(t.shape[2] == rows, ErrorCode::bad_shape, name, " must have ", rows, " rows, as layout gives this rank (got ",
       t.shape[2], ")");
}
void check_side(const char* name, const ConstTensor& t, Index rows, Index length) {
  if (!t.given()) return;
  const bool fits = t.rank == 4 && (t.shape[2] == 1 || t.shape[2] == rows) && (t.shape[3] == 1 || t.shape[3] == length);
  want(fits, ErrorCode::bad_shape, name, " must have shape [batch|1, heads_q|1, ", rows, "|1, ", length, "|1] (got ",
       shape_text(t), ")");
}

void check_layout(const Transport& transport, const ContextParallel& how, const Attention& a) {
  want(how.layout.ranks() == transport.ranks(), ErrorCode::bad_value, "layout must be for ", transport.ranks(),
       " ranks, as the transport has (got ", how.layout.ranks(), ")");
  check_documents(how.documents, how.layout.length());
  want(a.band.left >= -1 && a.band.right >= -1, ErrorCode::bad_value,
       "the band's sides must be at least -1, which is unbounded (got ", a.band.left, " and ", a.band.right, ")");
  want(!a.band.causal || a.band.right <= 0, ErrorCode::bad_value, "band.right must be -1 or 0 with causal (got ",
       a.band.right, ")");
}

void check_scheme(const How& asked, const AttentionTensors& t, const Attention& a) {
  const ContextParallel& how = asked.given;
  const bool gather = how.scheme == Scheme::gather && !asked.mesh;
  want(!asked.mesh || how.scheme != Scheme::ring, ErrorCode::unsupported, "a mesh does not support the scheme ring");
  want(gather || !how.reproducible, ErrorCode::unsupported, asked.name(), " does not support reproducible");
  want(how.head_groups >= 1, ErrorCode::bad_value, "head_groups must be 1 or more (got ", how.head_groups, ")");
  want(gather || how.head_groups == 1, ErrorCode::unsupported, asked.name(), " does not support head_groups (got ",
       how.head_groups, ")");
  if (asked.deals_heads()) {
    for (const auto& [name, x] : {std::pair{"bias", t.bias}, {"bool_mask", t.bool_mask}})
      want(!x.given() || x.shape[2] == 1, ErrorCode::unsupported, asked.name(), " does not support a ", name,
           " with rows; give [batch|1, heads|1, 1, length] (got ", shape_text(x), ")");
  }
  // Rings need a plan that others do not.
  if (how.scheme != Scheme::ring) return;
  const Visibility visibility{.documents = how.documents};
  for (const Index cut : how.layout.cuts()) {
    if (a.dropout_p == 0 || cut >= how.layout.length()) continue;
    want((cut - visibility.document(cut, how.layout.length()).begin) % 4 == 0, ErrorCode::unsupported,
         "dropout in the scheme ring needs cuts at multiples of 4 in their document (got ", cut, ")");
  }
}

// A part would refuse such outputs in mid-call, where the other ranks wait.
void check_outputs(const AttentionTensors& t, Pass pass) {
  const Op op = pass == Pass::forward ? kForward : kBackward;
  check_outputs(op, Tensors(t));
  check_apart(op, Tensors(t));
}

// The call without rows and keys, which throws what the parts would throw.
void try_without_rows(AttentionTensors t, Attention a, Pass pass) {
  constexpr Range kNone{};
  for (ConstTensor* x : {&t.q, &t.k, &t.v, &t.dout, &t.dlse}) *x = rows_of(*x, kNone);
  for (Tensor* x : {&t.out, &t.lse, &t.row_max, &t.dq, &t.dk, &t.dv}) *x = rows_of(*x, kNone);
  for (ConstTensor* x : {&t.bias, &t.bool_mask}) {
    if (x->given()) *x = slice_repeated(slice_repeated(*x, 2, kNone), 3, kNone);
  }
  if (t.dbias.given()) t.dbias = slice_repeated(slice_repeated(t.dbias, 2, kNone), 3, kNone);
  // Gradients of what has no rows are written, as 0; nothing may be written yet.
  t.dsinks = t.dalibi_slopes = {};
  if (t.dbias.elements() > 0) t.dbias = {};
  a.band = {.align = Align::offset, .left = a.band.left, .right = a.band.causal ? 0 : a.band.right};
  if (pass == Pass::forward) t.dout = {};
  static_cast<void>(make_plan(t, a));
}

void check(const Transport& transport, const How& asked, const AttentionTensors& t, const Attention& a, Pass pass) {
  const ContextParallel& how = asked.given;
  refuse_unsupported(t, a, pass);
  check_layout(transport, how, a);
  const Index rows = how.layout.count(transport.rank()), length = how.layout.length();
  const std::array<std::pair<const char*, ConstTensor>, 8> of_rows{
      {{"q", t.q}, {"k", t.k}, {"v", t.v}, {"out", t.out}, {"dout", t.dout}, {"dq", t.dq}, {"dk", t.dk}, {"dv", t.dv}}};
  for (const auto& [name, x] : of_rows) check_rows(name, x, 4, rows);
  check_rows("lse", t.lse, 3, rows);
  check_rows("row_max", t.row_max, 3, rows);
  check_rows("dlse", t.dlse, 3, rows);
  for (const auto& [name, given] :
       {std::pair{"q", t.q.given()}, {"k", t.k.given()}, {"v", t.v.given()}, {"out", t.out.given()}})
    want(given, ErrorCode::bad_shape, name, " must be given");
  want(pass == Pass::forward || (t.dout.given() && t.lse.given()), ErrorCode::bad_shape, t.lse.given() ? "dout" : "lse",
       " must be given");
  check_side("bias", t.bias, rows, length);
  check_side("dbias", t.dbias, rows, length);
  check_side("bool_mask", t.bool_mask, rows, length);
  check_scheme(asked, t, a);
  want(how.documents.size() < 2 || !names_batch(a), ErrorCode::unsupported,
       "score_mod and mask_mod do not support 'batch' with documents");
  const std::size_t own = position_buffers(a, asked.shares_heads());
  want(t.mod_buffers.size() + own <= kMaxModBuffers, ErrorCode::bad_value, "expressions that count rows",
       asked.shares_heads() ? ", keys and heads" : " and keys", " must have at most ", kMaxModBuffers - own,
       " mod_buffers (got ", t.mod_buffers.size(), ")");
  try_without_rows(t, a, pass);
  check_outputs(t, pass);
}

// --------------------------------------------------------------------------------------------------------------- facts
std::string shape_of_heads(const ConstTensor& t) {
  return text("[", t.shape[0], ", ", t.shape[1], ", rows, ", t.shape[3], "]");
}
std::string numbers(const std::vector<Index>& values) {
  std::string all;
  for (const Index x : values) all += text(all.empty() ? "" : ", ", x);
  return "[" + all + "]";
}

// Facts that must be the same on all ranks, or they would wait for each other.
std::vector<Fact> facts_of(const How& asked, const AttentionTensors& t, const Attention& a, Pass pass) {
  const ContextParallel& how = asked.given;
  const auto given = [](auto... tensors) {
    std::string all;
    for (const auto& [name, is] : {tensors...}) all += is ? text(all.empty() ? "" : ", ", name) : "";
    return all.empty() ? std::string("none") : all;
  };
  using Named = std::pair<const char*, bool>;
  const auto dtype_of = [](const ConstTensor& x) { return x.given() ? name_of(x.dtype) : std::string_view("none"); };
  const Layout& l = how.layout;
  return {
      {"shapes of q, k and v", text(shape_of_heads(t.q), ", ", shape_of_heads(t.k), ", ", shape_of_heads(t.v))},
      {"dtypes and devices of q, k and v", text(name_of(t.q.dtype), ", ", name_of(t.k.dtype), ", ", name_of(t.v.dtype),
                                                " on ", t.q.device.kind == DeviceKind::cpu ? "cpu" : "cuda")},
      {"layout", text("cuts ", numbers(l.cuts()), ", order ", numbers(l.order()), ", shares ", numbers(l.shares()))},
      {"scheme", text(asked.mesh ? "mesh" : name_of(how.scheme),
                      how.head_groups > 1 ? text(" of ", how.head_groups, " head_groups") : "")},
      {"documents", numbers(how.documents)},
      {"band", text(a.band.left, ":", a.band.causal ? 0 : a.band.right)},
      {"options",
       text("scale ", a.scale ? text(*a.scale) : "default", ", softcap ", a.softcap, ", dropout_p ", a.dropout_p,
            ", seed ", a.seed, a.precision == Precision::tf32 ? ", precision tf32" : "",
            a.accumulation == Accumulation::fast ? ", accumulation fast" : "", a.deterministic ? ", deterministic" : "",
            ", score_mod '", a.score_mod, "', mask_mod '", a.mask_mod, "', reproducible ", how.reproducible)},
      {"side inputs", given(Named{"bias", t.bias.given()}, Named{"bool_mask", t.bool_mask.given()},
                            Named{"alibi_slopes", t.alibi_slopes.given()}, Named{"sinks", t.sinks.given()},
                            Named{"q_descale", t.q_descale.given()}, Named{"k_descale", t.k_descale.given()},
                            Named{"v_descale", t.v_descale.given()}, Named{"v_mean", t.v_mean.given()})},
      {"pass", pass == Pass::forward
                   ? std::string("forward")
                   : text("gradients of ", given(Named{"k", t.dk.given()}, Named{"v", t.dv.given()}))},
      // A rank computes these for the others.
      {"dtypes of out, lse, row_max, dout, dlse, dq, dk and dv",
       !asked.deals_heads()
           ? ""
           : text(dtype_of(t.out), ", ", dtype_of(t.lse), ", ", dtype_of(t.row_max), ", ", dtype_of(t.dout), ", ",
                  dtype_of(t.dlse), ", ", dtype_of(t.dq), ", ", dtype_of(t.dk), ", ", dtype_of(t.dv))},
  };
}

// ----------------------------------------------------------------------------------------------------------------- job
Needs needs_of(const ContextParallel& how, const AttentionTensors& t, const Attention& a) {
  const bool expressions = !a.score_mod.empty() || !a.mask_mod.empty();
  const bool one_document = a.dropout_p > 0 || t.bias.given() || t.bool_mask.given() || expressions;
  const bool slopes = t.alibi_slopes.given();
  return {.by_unit = how.reproducible,
          .packed = t.q.shape[0] == 1 && !one_document && (!slopes || t.alibi_slopes.rank == 1),
          .distances = one_document || slopes};
}

void compute_scheme(const Job& job, Pass pass) {
  switch (job.how.scheme) {
    case Scheme::gather: return pass == Pass::forward ? gather_forward(job) : gather_backward(job);
    case Scheme::ring: return pass == Pass::forward ? ring_forward(job) : ring_backward(job);
    case Scheme::ulysses: return pass == Pass::forward ? ulysses_forward(job) : ulysses_backward(job);
  }
}

// Checks a call, agrees on it with all ranks, and f(job) computes it.
template <class F>
void compute(Transport& transport, const How& asked, const AttentionTensors& t, const Attention& a,
             const Launch& launch, Pass pass, const F& f) {
  const ContextParallel& how = asked.given;
  std::optional<Error> complaint;
  try {
    check(transport, asked, t, a, pass);
  } catch (const Error& error) {
    complaint = error;
  }
  agree(transport, complaint, complaint ? std::vector<Fact>{} : facts_of(asked, t, a, pass),
        t.q.device.kind == DeviceKind::cuda);
  const Job job{.transport = transport,
                .how = how,
                .tensors = t,
                .options = a,
                .launch = {.stream = launch.stream, .executor = launch.executor},
                .visibility = {.left = a.band.left,
                               .right = a.band.causal ? 0 : a.band.right,
                               .documents = how.documents,
                               .key_multiple = a.dropout_p > 0 ? 4 : 1},
                .needs = needs_of(how, t, a)};
  try {
    if (pass == Pass::backward) clear_side_gradients(job);
    f(job);
  } catch (const std::exception& error) {  // the other ranks wait for this one
    transport.fail(error.what());
    throw;
  }
}

void compute(Transport& transport, const ContextParallel& how, const AttentionTensors& t, const Attention& a,
             const Launch& launch, Pass pass) {
  compute(transport, How{how, false}, t, a, launch, pass, [&](const Job& job) { compute_scheme(job, pass); });
}

void compute(const MeshTransport& mesh, const ContextParallel& how, const AttentionTensors& t, const Attention& a,
             const Launch& launch, Pass pass) {
  MeshRanks all(mesh);
  compute(all, How{how, true}, t, a, launch, pass, [&](const Job& whole) {
    NodeLayouts layouts = node_layouts(how.layout, mesh.within.ranks(), mesh.between.rank());
    const ContextParallel nodes{.layout = std::move(layouts.nodes), .documents = how.documents};
    const ContextParallel ranks{.layout = std::move(layouts.ranks)};
    const Job job{mesh.within, ranks, whole.tensors, whole.options, whole.launch, whole.visibility, whole.needs};
    pass == Pass::forward ? mesh_forward(job, mesh.between, nodes) : mesh_backward(job, mesh.between, nodes);
  });
}

}  // namespace

Transport::~Transport() = default;

std::unique_ptr<Transport::Exchange> Transport::begin_all_to_all(std::span<const ConstBlock> send,
                                                                 std::span<const Block> receive, void* stream) {
  struct Over final : Exchange {
    void wait() override {}
  };
  all_to_all(send, receive, stream);
  return std::make_unique<Over>();
}

void context_parallel_attention(Transport& transport, const ContextParallel& how, const AttentionTensors& tensors,
                                const Attention& attention, const Launch& launch) {
  compute(transport, how, tensors, attention, launch, Pass::forward);
}

void context_parallel_attention_backward(Transport& transport, const ContextParallel& how,
                                         const AttentionTensors& tensors, const Attention& attention,
                                         const Launch& launch) {
  compute(transport, how, tensors, attention, launch, Pass::backward);
}

void context_parallel_attention(const MeshTransport& mesh, const ContextParallel& how, const AttentionTensors& tensors,
                                const Attention& attention, const Launch& launch) {
  compute(mesh, how, tensors, attention, launch, Pass::forward);
}

void context_parallel_attention_backward(const MeshTransport& mesh, const ContextParallel& how,
                                         const AttentionTensors& tensors, const Attention& attention,
                                         const Launch& launch) {
  compute(mesh, how, tensors, attention, launch, Pass::backward);
}

}  // namespace onepass::inline v0
