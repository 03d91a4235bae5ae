// The words of problem lines: how each is read and printed (docs/reference/problem.md).
#include "problem/grammar/words.hpp"

#include <algorithm>
#include <tuple>

#include "problem/grammar/subject.hpp"
#include "problem/operator.hpp"

namespace onepass {
namespace {

std::string pair(std::int64_t a, std::int64_t b, char separator) {
  return number(a) + (a == b ? "" : separator + number(b));
}
std::string dtype(DType t) { return std::string(name_of(t)); }

std::string spread_text(const BroadcastDims& s) {
  const bool spans[] = {s.batch, s.heads, s.rows, s.keys};
  std::string out;
  for (int i = 0; i < 4; ++i) out += spans[i] ? kSpreadLetters[i] : '1';
  return out;
}
std::string descale_text(const DescaleSpec& d, char last) {
  return {d.batch ? 'b' : '1', d.heads ? 'h' : '1', d.blocks ? last : '1'};
}

// ------------------------------------------------------------------------------------------------ words of one kind
// b2, m8
template <auto member>
bool read_size(Reading& r, const Word& w, const char* expected) {
  if (!w.is_sized()) return false;
  r.p.*member = w.number<std::int64_t>(w.word.substr(1), expected);
  return true;
}
template <auto first, auto second>
bool read_sizes(Reading& r, const Word& w, char separator, const char* expected) {
  if (!w.is_sized()) return false;
  std::tie(r.p.*first, r.p.*second) = w.pair(w.word.substr(1), separator, false, expected);
  return true;
}
template <auto member, char last>
constexpr WordRow descale_row(std::string_view subject) {
  return {subject,
          [](Reading& r, const Word& w) {
            const auto value = w.value();
            if (value) r.p.*member = w.descale(*value, last);
            return value.has_value();
          },
          [](const Problem& p) { return p.*member ? "=" + descale_text(*(p.*member), last) : std::string(); }};
}

// out=fp32
template <auto member>
bool read_dtype(Reading& r, const Word& w) {
  const auto value = w.value();
  if (value) r.p.*member = dtype_from_name(*value);
  return value.has_value();
}
// positions=64
template <auto member>
bool read_number(Reading& r, const Word& w, const char* expected) {
  const auto value = w.value();
  if (value) r.p.*member = w.number<std::int64_t>(*value, expected);
  return value.has_value();
}
// log
template <auto member>
constexpr WordRow flag_row(std::string_view subject) {
  return {subject, [](Reading& r, const Word& w) { return !w.value() && (r.p.*member = true); },
          [](const Problem& p) { return std::string(p.*member ? kAlone : ""); }};
}

// ------------------------------------------------------------------------------------------------ one by one
bool read_device(Reading& r, const Word& w) {
  const std::string_view s = w.word;
  if (s != "cpu" && s != "cuda" && !s.starts_with("cuda:")) return false;
  r.p.device = s == "cpu" ? Device{} : Device{DeviceKind::cuda, 0};
  if (!s.starts_with("cuda:")) return true;
  r.p.device.index = w.number<int>(s.substr(5), "a device number");
  if (r.p.device.index < 0) w.fail("a device number from 0");
  return true;
}

bool read_gradients(Reading& r, const Word& w) {
  const auto value = w.value();
  if (!value) return false;
  for (const std::string_view name : w.list(*value, ',')) w.ask(name, r.p.gradients);
  return true;
}
std::string gradients_text(const Problem& p) {
  std::string names;
  for (const RoleRow& row : kRoleTable)
    if (is_asked(p.gradients, row.role)) names += (names.empty() ? "" : ",") + std::string(row.name);
  return names == "dq,dk,dv" ? "" : "=" + names;
}

std::string buffers_text(const Problem& p) {
  std::string out;
  for (const ModBuffer& b : p.mod_buffers) {
    want(b.rank >= 0 && b.rank <= kMaxRank, ErrorCode::bad_shape, "mod buffer ", b.name, " must have 1 to ", kMaxRank,
         " dimensions (got ", b.rank, ")");
    out += " buffer=" + b.name + ":" + dtype(b.dtype) + ":";
    for (int i = 0; i < b.rank; ++i) out += (i ? "x" : "") + number(b.shape[i]);
  }
  return out;
}

// ------------------------------------------------------------------------------------------------ the table
using P = Problem;

constexpr WordRow kRows[] = {
    {"operator",
     [](Reading& r, const Word& w) {
       const auto op = op_named(w.word);
       if (op) r.p.op = *op;
       return op.has_value();
     },
     [](const P& p) { return std::string(p.op->word); }},
    // Before the operator is known, n is both the number of partial results and of columns.
    {"n", [](Reading& r, const Word& w) { return read_size<&P::partials>(r, w, "n<partial results, or columns>"); },
     [](const P& p) { return p.op->matrices ? std::string() : " n" + number(p.partials); }},
    {"m", [](Reading& r, const Word& w) { return read_size<&P::m>(r, w, "m<rows>"); },
     [](const P& p) { return " m" + number(p.m) + " n" + number(p.n); }},
    {"k", [](Reading& r, const Word& w) { return read_size<&P::k>(r, w, "k<row length>"); },
     [](const P& p) { return " k" + number(p.k); }},
    {"b", [](Reading& r, const Word& w) { return read_size<&P::batch>(r, w, "b<batch>"); },
     [](const P& p) { return " b" + number(p.batch); }},
    {"h",
     [](Reading& r, const Word& w) {
       return read_sizes<&P::heads_q, &P::heads_kv>(r, w, '/', "h<query heads>[/<K/V heads>]");
     },
     [](const P& p) {
       if (!has_axis(p.op, Axis::heads_kv)) return " h" + number(p.heads_q);
       return " h" + (uses(p, row_of(Role::q)) ? pair(p.heads_q, p.heads_kv, '/') : number(p.heads_kv));
     }},
    {"s", [](Reading& r, const Word& w) { return read_sizes<&P::seq_q, &P::seq_k>(r, w, 'x', "s<queries>[x<keys>]"); },
     [](const P& p) { return " s" + pair(p.seq_q, has_axis(p.op, Axis::seq_k) ? p.seq_k : p.seq_q, 'x'); }},
    {"d",
     [](Reading& r, const Word& w) {
       return read_sizes<&P::dim_qk, &P::dim_v>(r, w, '/', "d<dim of q and k>[/<dim of v>]");
     },
     [](const P& p) { return " d" + pair(has_axis(p.op, Axis::dim_qk) ? p.dim_qk : p.dim_v, p.dim_v, '/'); }},
    {"dtype",
     [](Reading& r, const Word& w) {
       const bool plain = !w.value();
       if (plain) r.p.dtype = dtype_from_name(w.word);
       return plain;
     },
     [](const P& p) { return " " + dtype(p.dtype); }},
    {"out", [](Reading& r, const Word& w) { return r.own_out_dtype = read_dtype<&P::out_dtype>(r, w); },
     [](const P& p) {
       return p.out_dtype != (p.dtype == DType::f8e4m3 ? DType::bf16 : p.dtype) ? "=" + dtype(p.out_dtype)
                                                                                : std::string();
     }},
    {"q"},
    {"rotary", read_rotary, rotary_text},
    {"positions",
     [](Reading& r, const Word& w) { return read_number<&P::positions>(r, w, "positions=<rows of cos and sin>"); },
     [](const P& p) { return p.rotary && p.positions != p.seq_k ? "=" + number(p.positions) : std::string(); }},
    {"table", read_dtype<&P::table_dtype>,
     [](const P& p) { return p.table_dtype != DType::f32 ? "=" + dtype(p.table_dtype) : std::string(); }},
    {"kv_dtype", read_dtype<&P::kv_dtype>,
     [](const P& p) { return p.kv_dtype ? "=" + dtype(*p.kv_dtype) : std::string(); }},
    descale_row<&P::q_descale, 'n'>("q_descale"),
    descale_row<&P::k_descale, 'n'>("k_descale"),
    descale_row<&P::v_descale, 'n'>("v_descale"),
    descale_row<&P::v_mean, 'd'>("v_mean"),
    {"accumulation"},
    {"precision"},
    {"fp8", read_fp8, fp8_text},
    {"descale",
     [](Reading& r, const Word& w) {
       const auto value = w.value();
       if (value) r.p.descale = w.descale(*value);
       return value.has_value();
     },
     [](const P& p) { return "=" + descale_text(p.descale, 'n'); }},
    flag_row<&P::hadamard>("hadamard"),
    {"alignment", read_band, band_text},
    {"window",
     [](Reading& r, const Word& w) {
       const auto value = w.value();
       if (value) std::tie(r.p.band.left, r.p.band.right) = w.pair(*value, ':', true, "window=left:right");
       return value.has_value();
     },
     [](const P& p) {
       const bool bounded = p.band.left != -1 || p.band.right != -1;
       return bounded ? "=" + number(p.band.left) + ":" + number(p.band.right) : std::string();
     }},
    {"scale"},
    flag_row<&P::log>("log"),
    {"unified_max"},
    {"recomputed"},
    {"row_max"},
    {"entropy"},
    {"softcap"},
    {"bias",
     [](Reading& r, const Word& w) {
       const auto value = w.value();
       if (!value) return false;
       const auto [type, spans] = w.halves(*value, ':', true, "bias=dtype:spread, such as bias=fp32:bhqk");
       r.p.bias = BiasSpec{dtype_from_name(type), w.spread(spans)};
       return true;
     },
     [](const P& p) { return p.bias ? "=" + dtype(p.bias->dtype) + ":" + spread_text(p.bias->spans) : std::string(); }},
    {"mask",
     [](Reading& r, const Word& w) {
       const auto value = w.value();
       if (value) r.p.bool_mask = w.spread(*value);
       return value.has_value();
     },
     [](const P& p) { return p.bool_mask ? "=" + spread_text(*p.bool_mask) : std::string(); }},
    {"block_mask",
     [](Reading& r, const Word& w) {
       const auto value = w.value();
       if (value) r.p.block_mask = w.spread(*value);
       return value.has_value();
     },
     [](const P& p) { return p.block_mask ? "=" + spread_text(*p.block_mask) : std::string(); }},
    {"mask_tile_q"},
    {"mask_tile_k"},
    {"row_lse"},
    {"alibi"},
    {"score_mod"},
    {"mask_mod"},
    {"buffer",
     [](Reading& r, const Word& w) {
       const auto value = w.value();
       if (value) r.p.mod_buffers.push_back(w.buffer(*value));
       return value.has_value();
     },
     buffers_text},
    {"sinks"},
    {"dropout"},
    {"seed"},
    {"dropout_start"},
    {"dropout_seed"},
    {"mean"},
    {"lse",
     [](Reading& r, const Word& w) {
       if (w.word != "lse" && w.word != "lse_only") return false;
       r.p.lse_only = w.word == "lse_only";
       return r.p.want_lse = true;
     },
     [](const P& p) {
       return std::string(p.lse_only ? " lse_only" : p.want_lse ? " lse" : "");
     }},
    {"column_bias"},
    {"grads", read_gradients, gradients_text},
    {"grad", read_dtype<&P::grad_dtype>,
     [](const P& p) { return p.grad_dtype != p.dtype ? "=" + dtype(p.grad_dtype) : std::string(); }},
    {"dlse"},
    {"dentropy"},
    {"deterministic"},
    {"varlen", read_varlen, varlen_text},
    {"packed", read_packed, packed_text},
    {"kv", read_pages, pages_text},
    {"seqused", read_used, used_text},
    {"cache_seqlens", read_used, used_text},
    {"tree", [](Reading& r, const Word& w) { return read_number<&P::drafts>(r, w, "tree=<drafts of a sequence>"); },
     [](const P& p) { return p.drafts != 0 ? "=" + number(p.drafts) : std::string(); }},
    {"slots", read_slots, slots_text},
    {"batch_invariant"},
    {"partial"},
    flag_row<&P::v_in_k>("v_in_k"),
    {kOthers},
    {"layout", read_layout, [](const P&) { return std::string(); }},
    {"align", read_align, layout_text},  // behind all strides
    {"device", read_device,
     [](const P& p) { return p.device.kind == DeviceKind::cuda ? " " + to_string(p.device) : std::string(); }},
};

}  // namespace

std::span<const WordRow> word_rows() { return kRows; }

}  // namespace onepass
