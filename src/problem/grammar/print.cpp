// A problem as its line: docs/reference/problem.md.
#include <charconv>
#include <tuple>

#include "base/text.hpp"
#include "onepass/error.hpp"
#include "onepass/problem.hpp"
#include "problem/grammar/text.hpp"
#include "problem/roles.hpp"
#include "problem/softmax/softmax_problem.hpp"

namespace onepass::inline v0 {
namespace {

template <class T>
std::string number(T x) {  // the shortest text that reads back as x
  char buffer[40];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, x).ptr};
}

std::string spread_text(const BroadcastDims& s) {
  const bool spans[] = {s.batch, s.heads, s.rows, s.keys};
  std::string out;
  for (int i = 0; i < 4; ++i) out += spans[i] ? kSpreadLetters[i] : '1';
  return out;
}

std::string lengths_text(const Lengths& v) {  // 3,7,128x4
  std::string out;
  for (std::size_t i = 0, n; i < v.size(); i += n) {
    for (n = 1; i + n < v.size() && v[i + n] == v[i];) ++n;
    out += (i ? "," : "") + number(v[i]) + (n > 1 ? "x" + number(n) : "");
  }
  return out;
}

std::string strides_of(const Dims& s) { return number(s[0]) + "," + number(s[1]) + "," + number(s[2]); }

std::string strides_text(const Problem& p) {
  std::string out;
  for (const auto& [name, s] :
       {std::pair{'q', &p.layout.q}, {'k', &p.layout.k}, {'v', &p.layout.v}, {'o', &p.layout.out}}) {
    out += (out.empty() ? "" : ";") + std::string(1, name) + ":" + strides_of(*s);
  }
  return out;
}

std::string sizes_text(const ModBuffer& b) {  // 8x127
  if (b.rank < 0 || b.rank > kMaxRank)
    throw Error(ErrorCode::bad_shape,
                text("mod buffer ", b.name, " must have 1 to ", kMaxRank, " dimensions (got ", b.rank, ")"));
  std::string out;
  for (int i = 0; i < b.rank; ++i) out += (i ? "x" : "") + number(b.shape[i]);
  return out;
}

bool in_strides_word(const RoleRow& row) { return row.unit_last && row.role <= Role::out; }  // q, k, v, out

// Tensors whose strides are not those that a line has without a word about them, as in `plain`, and addresses that are
// not multiples of 16.
std::string side_text(const Problem& p, const Problem& plain) {
  std::string out, align;
  for (const RoleRow& row : kRoleTable) {
    const Dims& s = p.layout.*row.layout;
    if (!in_strides_word(row) && s != plain.layout.*row.layout) {
      out += std::string(" ") + row.name + "_strides=";
      const int rank = rank_of(axes_of(row, is_gemm(p.op) ? Form::matrix : Form::batched)) - (row.unit_last ? 1 : 0);
      for (int i = 0; i < rank; ++i) out += (i ? "," : "") + number(s[i]);
    }
    const std::uint8_t bytes = p.alignment[static_cast<std::size_t>(row.role)];
    if (bytes != 16) align += (align.empty() ? " align=" : ",") + std::string(row.name) + ":" + number(int{bytes});
  }
  return out + align;
}

// grads=dq,dk,dv,dbias grad=fp32 dlse deterministic
std::string gradients_text(const Problem& p) {
  if (p.op != Op::backward) return {};
  std::string names;
  for (const RoleRow& row : kRoleTable)
    if (is_asked(p.gradients, row.role)) names += (names.empty() ? "" : ",") + std::string(row.name);
  std::string s = names == "dq,dk,dv" ? "" : " grads=" + names;
  if (p.grad_dtype != p.dtype) s += " grad=" + std::string(name_of(p.grad_dtype));
  return s + (p.dlse ? " dlse" : "") + (p.deterministic ? " deterministic" : "");
}

// kv=paged:16:pages:max_pages seqused=3,7 batch_invariant v_in_k
std::string cache_text(const Problem& p) {
  std::string s;
  if (p.paged()) {
    s = " kv=paged:" + number(p.page_size);
    const std::int64_t needed = pages_for(p.seq_k, p.page_size);
    if (p.max_pages != needed || p.pages != p.batch * needed) s += ":" + number(p.pages) + ":" + number(p.max_pages);
  }
  if (p.seqused) s += p.lengths_k.empty() ? " seqused" : " seqused=" + lengths_text(p.lengths_k);
  return s + (p.batch_invariant ? " batch_invariant" : "") + (p.v_in_k ? " v_in_k" : "");
}

std::string descale_text(const DescaleSpec& d, char last) {
  return {d.batch ? 'b' : '1', d.heads ? 'h' : '1', d.blocks ? last : '1'};
}

// kv_dtype=fp8_e4m3 q_descale=bh1 v_mean=bhd accumulation=fast
std::string fp8_text(const Problem& p) {
  std::string s;
  if (p.kv_dtype) s += " kv_dtype=" + std::string(name_of(*p.kv_dtype));
  for (const Role role : {Role::q_descale, Role::k_descale, Role::v_descale}) {
    if (const auto d = descale_of(p, role)) s += std::string(" ") + row_of(role).name + "=" + descale_text(*d, 'n');
  }
  if (p.v_mean) s += " v_mean=" + descale_text(*p.v_mean, 'd');
  return s + (p.accumulation == Accumulation::fast ? " accumulation=fast" : "");
}

std::string layout_text(const Problem& p) {
  const auto same = [&](const Problem& other) {
    const Layout &a = other.layout, &b = p.layout;
    return a.q == b.q && a.k == b.k && a.v == b.v && a.out == b.out;
  };
  Problem other = p;
  set_contiguous(other);
  if (same(other)) return side_text(p, other);
  Problem bshd = p;
  set_bshd(bshd);
  return same(bshd) ? " layout=bshd" + side_text(p, bshd) : " strides=" + strides_text(p) + side_text(p, other);
}

std::string softmax_text(const Problem& p) {
  std::string s = std::string(word_of(p.op)) + " b" + number(p.batch) + " h" + number(p.heads_q) + " s" +
                  number(p.seq_q) + (p.seq_q == p.seq_k ? "" : "x" + number(p.seq_k)) + " " +
                  std::string(name_of(p.dtype));
  if (p.out_dtype != p.dtype) s += " out=" + std::string(name_of(p.out_dtype));
  if (p.scale) s += " scale=" + number(*p.scale);
  if (p.log) s += " log";
  if (p.bool_mask) s += " mask=" + spread_text(*p.bool_mask);
  if (p.row_lse) s += " row_lse";
  if (p.want_lse) s += p.lse_only ? " lse_only" : " lse";
  Problem plain = p;
  set_contiguous(plain);
  s += side_text(p, plain);
  return p.device.kind == DeviceKind::cuda ? s + " " + to_string(p.device) : s;
}

std::string quantize_text(const Problem& p) {
  std::string s = "quantize b" + number(p.batch) + " h" + number(p.heads_q) + " s" + number(p.seq_q) +
                  (p.seq_q == p.seq_k ? "" : "x" + number(p.seq_k)) + " " + std::string(name_of(p.dtype)) +
                  " descale=" + descale_text(p.descale, 'n');
  if (p.hadamard) s += " hadamard";
  if (p.seed) s += " seed=" + number(p.seed);
  if (p.centered) s += " mean";
  Problem plain = p;
  set_contiguous(plain);
  s += side_text(p, plain);
  return p.device.kind == DeviceKind::cuda ? s + " " + to_string(p.device) : s;
}

std::string gemm_text(const Problem& p) {
  std::string s = std::string(word_of(p.op)) + " m" + number(p.m) + " n" + number(p.n) + " k" + number(p.k) + " " +
                  std::string(name_of(p.dtype));
  if (p.out_dtype != p.dtype) s += " out=" + std::string(name_of(p.out_dtype));
  if (p.column_bias) s += " column_bias";
  Problem plain = p;
  set_contiguous(plain);
  s += side_text(p, plain);
  return p.device.kind == DeviceKind::cuda ? s + " " + to_string(p.device) : s;
}

std::string merge_text(const Problem& p) {
  std::string s = "merge n" + number(p.partials) + " b" + number(p.batch) + " h" + number(p.heads_q) + " s" +
                  number(p.seq_q) + " d" + number(p.dim_v) + " " + std::string(name_of(p.dtype));
  if (p.out_dtype != p.dtype) s += " out=" + std::string(name_of(p.out_dtype));
  if (p.want_lse) s += " lse";
  if (p.layout.out != row_major(p, row_of(Role::out))) {
    Problem other = p;
    set_bshd(other);
    s += p.layout.out == other.layout.out ? " layout=bshd" : " out_strides=" + strides_of(p.layout.out);
  }
  Problem plain = p;
  set_contiguous(plain);
  s += side_text(p, plain);
  return p.device.kind == DeviceKind::cuda ? s + " " + to_string(p.device) : s;
}

}  // namespace

std::string to_string(const Problem& p) {
  const auto pair = [](std::int64_t a, std::int64_t b, char separator) {
    return number(a) + (a == b ? "" : separator + number(b));
  };
  if (p.op == Op::merge) return merge_text(p);
  if (is_softmax(p.op)) return softmax_text(p);
  if (p.op == Op::quantize) return quantize_text(p);
  if (is_gemm(p.op)) return gemm_text(p);
  std::string s = std::string(word_of(p.op)) + " b" + number(p.batch) + " h" + pair(p.heads_q, p.heads_kv, '/') + " s" +
                  pair(p.seq_q, p.seq_k, 'x') + " d" + pair(p.dim_qk, p.dim_v, '/') + " " +
                  std::string(name_of(p.dtype));
  if (p.out_dtype != (p.dtype == DType::f8e4m3 ? DType::bf16 : p.dtype))
    s += " out=" + std::string(name_of(p.out_dtype));
  s += fp8_text(p);
  if (p.band.align == Align::offset)
    s += (p.band.causal ? " causal_offset=" : " aligned_offset=") + number(p.band.offset);
  else if (p.band.causal)
    s += p.band.align == Align::top_left ? " causal_top_left" : " causal_bottom_right";
  else if (p.band.align == Align::top_left)
    s += " aligned_top_left";
  if (p.band.left != -1 || p.band.right != -1) s += " window=" + number(p.band.left) + ":" + number(p.band.right);
  if (p.scale) s += " scale=" + number(*p.scale);
  if (p.unified_max) s += " unified_max=" + number(*p.unified_max) + (p.want_recomputed ? " recomputed" : "");
  if (p.softcap > 0) s += " softcap=" + number(p.softcap);
  if (p.bias) s += " bias=" + std::string(name_of(p.bias->dtype)) + ":" + spread_text(p.bias->spans);
  if (p.bool_mask) s += " mask=" + spread_text(*p.bool_mask);
  if (p.alibi) s += " alibi";
  if (!p.score_mod.empty()) s += " score_mod={" + p.score_mod + "}";
  if (!p.mask_mod.empty()) s += " mask_mod={" + p.mask_mod + "}";
  for (const ModBuffer& b : p.mod_buffers)
    s += " buffer=" + b.name + ":" + std::string(name_of(b.dtype)) + ":" + sizes_text(b);
  if (p.sinks) s += " sinks";
  if (p.dropout_p > 0) s += " dropout=" + number(p.dropout_p);
  if (p.seed) s += " seed=" + number(p.seed);
  if (p.want_lse) s += " lse";
  s += gradients_text(p);
  if (p.varlen && !p.lengths_q.empty()) {
    s += " varlen=" + lengths_text(p.lengths_q);
    if (p.packed_k() && p.lengths_k != p.lengths_q) s += "/" + lengths_text(p.lengths_k);
  }
  if (p.varlen &&
      (p.lengths_q.empty() || sum(p.lengths_q) != p.total_q || (p.packed_k() ? sum(p.lengths_k) : 0) != p.total_k)) {
    s += " packed=" + number(p.total_q) + ":" + number(p.total_k);
  }
  s += cache_text(p);
  s += layout_text(p);
  if (p.device.kind == DeviceKind::cuda) s += " " + to_string(p.device);
  return s;
}

}  // namespace onepass::inline v0
