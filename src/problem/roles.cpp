#include "problem/roles.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "problem/callers_layout.hpp"

namespace onepass {
namespace {

struct AxisRow {
  std::string_view name, what;
};
constexpr AxisRow kAxisRows[kAxes] = {{"", ""},
                                      {"batch", "batch"},
                                      {"heads_q", "number of heads"},
                                      {"heads_kv", "number of heads"},
                                      {"seq_q", "sequence length"},
                                      {"seq_k", "sequence length"},
                                      {"dim_qk", "head dim"},
                                      {"dim_v", "head dim"},
                                      {"total_q", "number of tokens"},
                                      {"total_k", "number of tokens"},
                                      {"batch + 1", "length"},
                                      {"pages", "number of pages"},
                                      {"page_size", "page size"},
                                      {"max_pages", "number of pages of a sequence"},
                                      {"ceil(seq_q / 128)", "number of blocks of 128 rows"},
                                      {"ceil(seq_k / 128)", "number of blocks of 128 keys"},
                                      {"m", "number of rows"},
                                      {"n", "number of columns"},
                                      {"k", "row length"},
                                      {"positions", "number of positions"},
                                      {"rotary_dim / 2", "number of columns"},
                                      {"drafts", "number of drafts"},
                                      {"ceil(seq_q / mask_tile_q)", "number of tiles of rows"},
                                      {"ceil(seq_k / mask_tile_k)", "number of tiles of keys"},
                                      {"1", "length"}};

bool spans(const BroadcastDims& dims, int i) {
  const bool of[] = {dims.batch, dims.heads, dims.rows, dims.keys};
  return of[i];
}

// [tokens, heads, dim]
bool tokens_first(const RoleRow& row, Form form) {
  return row.unit_last && form == Form::packed && (row.packed[0] == Axis::total_q || row.packed[0] == Axis::total_k);
}

}  // namespace

int rank_of(const Axes& axes) {
  return static_cast<int>(std::find(axes.begin(), axes.end(), Axis::none) - axes.begin());
}

bool has_axis(Op op, Axis axis) {
  return std::ranges::any_of(kRoleTable, [&](const RoleRow& row) {
    return use_of(row, op) != Use::none && (std::ranges::find(row.axes, axis) != row.axes.end() ||
                                            std::ranges::find(row.packed, axis) != row.packed.end());
  });
}

std::string_view what_of(Axis axis) { return kAxisRows[static_cast<std::size_t>(axis)].what; }

Forms forms_of(const Problem& p) {
  if (p.op->matrices) return {Form::matrix, Form::matrix};
  const Form queries = p.varlen || p.slots ? Form::packed : Form::batched;
  return {queries, p.paged() ? Form::paged : p.packed_k() ? Form::packed : Form::batched};
}

std::string form_text(const RoleRow& row, Form form, bool slots) {
  Axes axes = axes_of(row, form);
  if (form == Form::batched && is_turned(row.name, rank_of(axes))) std::swap(axes[1], axes[2]);
  std::string whole, rest;
  for (int i = 0; i < rank_of(axes); ++i) {
    const std::string name(kAxisRows[static_cast<std::size_t>(axes[i])].name);
    whole += (i ? ", " : "") + name + (may_be_one(row) ? "|1" : "");
    if (i > 0) rest += (i > 1 ? ", " : "") + name;
  }
  return (row.fit == Fit::leading_optional ? "[" + rest + "] or [" : "[") + whole + "]" +
         (row.fit == Fit::trailing_optional ? " or a prefix of it" : "") +
         (form != Form::paged && (form != Form::packed || row.packed == row.axes) ? ""
          : slots                                                                 ? " with slot_mapping"
          : form == Form::paged                                                   ? " with page_table"
                                                                                  : " with cu_seqlens");
}

std::int64_t size_of(Axis axis, const Problem& p) {
  switch (axis) {
    case Axis::none: return 1;
    case Axis::batch: return p.batch;
    case Axis::heads_q: return p.heads_q;
    case Axis::heads_kv: return p.heads_kv;
    case Axis::seq_q: return p.seq_q;
    case Axis::seq_k: return p.seq_k;
    case Axis::dim_qk: return p.dim_qk;
    case Axis::dim_v: return p.dim_v;
    case Axis::total_q: return p.total_q;
    case Axis::total_k: return p.total_k;
    case Axis::boundaries: return p.batch + 1;
    case Axis::pages: return p.pages;
    case Axis::page_size: return p.page_size;
    case Axis::max_pages: return p.max_pages;
    case Axis::blocks_q: return descale_blocks(p.seq_q);
    case Axis::blocks_k: return descale_blocks(p.seq_k);
    case Axis::m: return p.m;
    case Axis::n: return p.n;
    case Axis::k: return p.k;
    case Axis::positions: return p.positions;
    case Axis::pairs: return p.rotary_dim / 2;
    case Axis::drafts: return p.drafts;
    case Axis::mask_rows: return mask_tiles(p.seq_q, p.tile_q());
    case Axis::mask_keys: return mask_tiles(p.seq_k, p.tile_k());
    case Axis::one: return 1;
  }
  return 1;
}

std::optional<DescaleSpec> descale_of(const Problem& p, Role role) {
  switch (role) {
    case Role::q_descale: return p.q_descale;
    case Role::k_descale: return p.k_descale;
    case Role::v_descale: return p.v_descale;
    case Role::v_mean: return p.v_mean;
    default: return p.descale;
  }
}

bool is_asked(const Gradients& g, Role role) {
  switch (role) {
    case Role::dq: return g.dq;
    case Role::dk: return g.dk;
    case Role::dv: return g.dv;
    case Role::dbias: return g.dbias;
    case Role::dsinks: return g.dsinks;
    case Role::dalibi_slopes: return g.dalibi_slopes;
    default: return false;
  }
}

bool uses(const Problem& p, const RoleRow& row) {
  if (use_of(row, p.op) == Use::none) return false;
  if (must_be_given(row, p.op)) return true;
  return row.flag ? p.*row.flag : row.given && row.given(p);
}

RoleShape shape_of(const Problem& p, const RoleRow& row) {
  RoleShape s;
  if (!uses(p, row)) return s;
  const Axes axes = axes_of(row, forms_of(p).of(row));
  s.rank = rank_of(axes);
  for (int i = 0; i < s.rank; ++i) s.size[i] = size_of(axes[i], p);
  if (row.fit == Fit::broadcast) {
    const BroadcastDims& dims = row.gradient_of == Role::bias  ? p.bias->spans
                                : row.role == Role::block_mask ? *p.block_mask
                                                               : *p.bool_mask;
    for (int i = 0; i < s.rank; ++i)
      if (!spans(dims, i)) s.size[i] = 1;
  }
  if (row.fit == Fit::trailing_optional) {
    const DescaleSpec spec = *descale_of(p, row.role);
    const bool spanned[kMaxRank] = {spec.batch, spec.heads, spec.blocks};
    for (int i = 0; i < s.rank; ++i)
      if (!spanned[i]) s.size[i] = 1;
  }
  switch (row.types) {
    case Types::data: s.dtype = row.gradient_of == Role::bias ? p.bias->dtype : p.dtype; break;
    case Types::query:
    case Types::as_q: s.dtype = p.dtype; break;
    case Types::key_value: s.dtype = p.key_dtype(); break;
    case Types::result:
    case Types::as_q_or_f32:
    case Types::as_out: s.dtype = p.out_dtype; break;
    case Types::gradient: s.dtype = p.grad_dtype; break;
    case Types::table: s.dtype = p.table_dtype; break;
    case Types::f32: s.dtype = DType::f32; break;
    case Types::boolean: s.dtype = DType::boolean; break;
    case Types::i32: s.dtype = DType::i32; break;
    case Types::i64: s.dtype = DType::i64; break;
    case Types::index: s.dtype = row.role == Role::slot_mapping ? p.slot_dtype : p.position_dtype; break;
  }
  return s;
}

Dims layout_of(const RoleRow& row, Form form, const ConstTensor& t) {
  Dims s{};
  const bool rows = form == Form::packed && row.gradient_of == Role::lse;
  const auto put = [&](int to, int from) { s[to] = t.shape[from] > 1 ? t.stride[from] : 0; };
  if (tokens_first(row, form)) {
    put(1, 1);
    put(2, 0);
    s[3] = 1;
  } else if (form == Form::paged) {
    put(0, 0);
    put(1, 2);
    put(2, 1);
    s[3] = 1;
  } else if (rows) {
    put(1, 0);
    put(2, 1);
  } else {
    const int missing = row.fit == Fit::leading_optional ? rank_of(row.axes) - t.rank : 0;
    for (int i = 0; i < t.rank; ++i) put(i + missing, i);
    if (row.unit_last) s[3] = 1;
  }
  return s;
}

ConstTensor described(const Problem& p, const RoleRow& row) {
  const RoleShape shape = shape_of(p, row);
  const Dims& s = p.layout.*row.layout;
  ConstTensor t;
  t.rank = shape.rank;
  t.shape = shape.size;
  t.dtype = shape.dtype;
  t.device = p.device;
  if (shape.rank == 0) return t;
  const Form form = forms_of(p).of(row);
  if (tokens_first(row, form))
    t.stride = {s[2], s[1], 1, 0};
  else if (form == Form::paged)
    t.stride = {s[0], s[2], s[1], 1};
  else if (form == Form::packed && row.gradient_of == Role::lse)
    t.stride = {s[1], s[2], 0, 0};
  else
    t.stride = s;
  if (row.fit == Fit::leading_optional && s[0] == 0) {
    t.rank -= 1;
    std::copy_n(shape.size.begin() + 1, t.rank, t.shape.begin());
    std::copy_n(s.begin() + 1, t.rank, t.stride.begin());
    t.shape[t.rank] = 1;
  }
  return t;
}

Dims row_major(const Problem& p, const RoleRow& row) {
  const RoleShape shape = shape_of(p, row);
  const int left_out = row.fit == Fit::leading_optional ? 1 : 0;
  ConstTensor t;
  t.rank = shape.rank - left_out;
  if (shape.rank == 0) return {};
  std::copy_n(shape.size.begin() + left_out, t.rank, t.shape.begin());
  std::int64_t step = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.stride[i] = step;
    step *= std::max<std::int64_t>(t.shape[i], 1);
  }
  return layout_of(row, forms_of(p).of(row), t);
}

}  // namespace onepass
