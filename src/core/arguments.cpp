#include "core/arguments.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/overlap.hpp"
#include "core/tensor_checks.hpp"

namespace onepass {
namespace {

[[noreturn]] void fail(ErrorCode code, const std::string& sentence) { throw Error(code, sentence); }

bool is_data(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

void want_rank(const char* name, const Tensor& t, int rank, const char* form) {
  if (t.rank != rank) fail(ErrorCode::bad_shape, text(name, " has shape ", shape_text(t), "; ", form, " is expected"));
}

void want_size(const char* name, const Tensor& t, int dim, const char* what, std::int64_t expected,
               const std::string& why) {
  if (t.shape[dim] != expected) {
    fail(ErrorCode::bad_shape, text(name, " has shape ", shape_text(t), ": its ", what, " must be ", expected, why));
  }
}

void want_unit_last(const char* name, const Tensor& t) {
  if (t.shape[t.rank - 1] > 1 && t.stride[t.rank - 1] != 1) {
    fail(ErrorCode::bad_stride,
         text(name, " has stride ", t.stride[t.rank - 1], " in its last dimension; 1 is required"));
  }
}

void want_device(const char* name, const Tensor& t, const Tensor& q) {
  if (t.device != q.device)
    fail(ErrorCode::bad_device, text(name, " is on ", to_string(t.device), " but q is on ", to_string(q.device)));
}

void want_dtype(const char* name, const Tensor& t, DType dtype) {
  if (t.dtype != dtype)
    fail(ErrorCode::bad_dtype, text(name, " is ", name_of(t.dtype), "; ", name_of(dtype), " is expected"));
}

// [batch|1, heads|1, rows|1, keys|1]
BroadcastDims spread_of(const char* name, const Tensor& t, const Dims& full) {
  want_rank(name, t, 4, "[batch|1, heads_q|1, seq_q|1, seq_k|1]");
  for (int i = 0; i < 4; ++i) {
    if (t.shape[i] != full[i] && t.shape[i] != 1) {
      fail(ErrorCode::bad_shape,
           text(name, " has shape ", shape_text(t), ": dimension ", i, " must be ", full[i], " or 1"));
    }
  }
  const auto spans = [&](int i) { return full[i] != 1 && t.shape[i] == full[i]; };
  return {spans(0), spans(1), spans(2), spans(3)};
}

std::vector<std::int64_t> lengths_from(const char* name, const Tensor& cu, std::int64_t total) {
  const auto* p = static_cast<const std::int32_t*>(cu.data);
  std::vector<std::int64_t> lengths;
  if (p[0] != 0) fail(ErrorCode::bad_value, text(name, "[0] is ", p[0], "; prefix sums start at 0"));
  for (std::int64_t i = 1; i < cu.shape[0]; ++i) {
    const std::int64_t from = p[(i - 1) * cu.stride[0]], to = p[i * cu.stride[0]];
    if (to < from) fail(ErrorCode::bad_value, text(name, "[", i, "] is ", to, ", less than the ", from, " before it"));
    if (to > total)
      fail(ErrorCode::bad_value, text(name, "[", i, "] is ", to, ", beyond the ", total, " tokens of the tensor"));
    lengths.push_back(to - from);
  }
  return lengths;
}

std::int64_t longest(const std::vector<std::int64_t>& v) {
  return v.empty() ? 0 : *std::max_element(v.begin(), v.end());
}

// Strides over [batch, heads, seq, dim]; of a size-1 dimension they do not matter and become 0.
Dims layout_of(const Tensor& t) {
  Dims s = t.rank == 4 ? t.stride : Dims{0, t.stride[1], t.stride[0], t.stride[2]};
  const Dims n = t.rank == 4 ? t.shape : Dims{1, t.shape[1], t.shape[0], t.shape[2]};
  for (int i = 0; i < 3; ++i)
    if (n[i] <= 1) s[i] = 0;
  s[3] = 1;
  return s;
}

void read_shapes(const Arguments& a, Problem& p) {
  const bool packed = p.varlen;
  const int rank = packed ? 3 : 4, heads = 1, seq = packed ? 0 : 2, dim = packed ? 2 : 3;
  const char* form = packed ? "[total, heads, dim] (cu_seqlens is given)" : "[batch, heads, seq, dim]";
  want_rank("q", a.q, rank, form);
  want_rank("k", a.k, rank, form);
  want_rank("v", a.v, rank, form);
  want_rank("out", a.out, rank, form);
  p.heads_q = a.q.shape[heads];
  p.heads_kv = a.k.shape[heads];
  p.dim_qk = a.q.shape[dim];
  p.dim_v = a.v.shape[dim];
  want_size("k", a.k, dim, "head dim", p.dim_qk, ", as q's");
  want_size("v", a.v, heads, "number of heads", p.heads_kv, ", as k's");
  want_size("v", a.v, seq, packed ? "number of tokens" : "sequence length", a.k.shape[seq], ", as k's");
  want_size("out", a.out, heads, "number of heads", p.heads_q, ", as q's");
  want_size("out", a.out, seq, packed ? "number of tokens" : "sequence length", a.q.shape[seq], ", as q's");
  want_size("out", a.out, dim, "head dim", p.dim_v, ", as v's");
  if (packed) {
    p.total_q = a.q.shape[0];
    p.total_k = a.k.shape[0];
    return;
  }
  p.batch = a.q.shape[0];
  p.seq_q = a.q.shape[2];
  p.seq_k = a.k.shape[2];
  for (const auto& [name, t] : {std::pair{"k", &a.k}, {"v", &a.v}, {"out", &a.out}})
    want_size(name, *t, 0, "batch", p.batch, ", as q's");
}

void read_lengths(const Arguments& a, Problem& p) {
  for (const auto& [name, t] : {std::pair{"cu_seqlens_q", &a.cu_seqlens_q}, {"cu_seqlens_k", &a.cu_seqlens_k}}) {
    check_tensor(name, *t);
    want_rank(name, *t, 1, "[batch + 1]");
    want_dtype(name, *t, DType::i32);
    want_device(name, *t, a.q);
    if (t->shape[0] < 1)
      fail(ErrorCode::bad_shape, text(name, " is empty; it has batch + 1 entries, the first of them 0"));
  }
  want_size("cu_seqlens_k", a.cu_seqlens_k, 0, "length", a.cu_seqlens_q.shape[0], ", as cu_seqlens_q's");
  p.batch = a.cu_seqlens_q.shape[0] - 1;
  if (a.q.device.kind != DeviceKind::cpu) {  // only the device knows them: bounds instead
    p.seq_q = p.total_q;
    p.seq_k = p.total_k;
    return;
  }
  p.lengths_q = lengths_from("cu_seqlens_q", a.cu_seqlens_q, p.total_q);
  p.lengths_k = lengths_from("cu_seqlens_k", a.cu_seqlens_k, p.total_k);
  p.seq_q = longest(p.lengths_q);
  p.seq_k = longest(p.lengths_k);
}

void read_extras(const Arguments& a, Problem& p) {
  const Dims full{p.batch, p.heads_q, p.seq_q, p.seq_k};
  const auto extra = [&](const char* name, const Tensor& t) {
    if (!t.given()) return false;
    check_tensor(name, t);
    want_device(name, t, a.q);
    return true;
  };
  if (extra("bias", a.bias)) {
    if (!is_data(a.bias.dtype))
      fail(ErrorCode::bad_dtype, text("bias is ", name_of(a.bias.dtype), "; fp32, fp16 and bf16 are accepted"));
    p.bias = BiasSpec{a.bias.dtype, spread_of("bias", a.bias, full)};
  }
  if (extra("bool_mask", a.bool_mask)) {
    want_dtype("bool_mask", a.bool_mask, DType::boolean);
    p.bool_mask = spread_of("bool_mask", a.bool_mask, full);
  }
  if (extra("alibi_slopes", a.alibi_slopes)) {
    const Tensor& t = a.alibi_slopes;
    want_dtype("alibi_slopes", t, DType::f32);
    if (t.rank != 1) want_rank("alibi_slopes", t, 2, "[heads_q] or [batch, heads_q]");
    want_size("alibi_slopes", t, t.rank - 1, "last dimension", p.heads_q, ", the number of query heads");
    if (t.rank == 2) want_size("alibi_slopes", t, 0, "first dimension", p.batch, ", the batch");
    p.alibi = true;
  }
  if (extra("sinks", a.sinks)) {
    want_dtype("sinks", a.sinks, DType::f32);
    want_rank("sinks", a.sinks, 1, "[heads_q]");
    want_size("sinks", a.sinks, 0, "length", p.heads_q, ", the number of query heads");
    p.sinks = true;
  }
  for (const auto& [name, t] : a.mod_buffers) {
    const std::string called = "mod buffer " + name;
    check_tensor(called, t);
    want_device(called.c_str(), t, a.q);
    p.mod_buffers.push_back({name, t.dtype, t.rank, t.shape});
  }
  if (extra("lse", a.lse)) {
    want_dtype("lse", a.lse, DType::f32);
    want_rank("lse", a.lse, p.varlen ? 2 : 3, p.varlen ? "[heads_q, total_q]" : "[batch, heads_q, seq_q]");
    const int h = p.varlen ? 0 : 1;
    if (!p.varlen) want_size("lse", a.lse, 0, "batch", p.batch, ", as q's");
    want_size("lse", a.lse, h, "number of heads", p.heads_q, ", as q's");
    want_size("lse", a.lse, h + 1, "length", p.varlen ? p.total_q : p.seq_q, ", as q's");
    check_output("lse", a.lse);
    p.want_lse = true;
  }
}

}  // namespace

Arguments collect(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Options& o) {
  return {
      q, k, v, out, o.lse, o.bias, o.bool_mask, o.alibi_slopes, o.sinks, o.cu_seqlens_q, o.cu_seqlens_k, o.mod_buffers};
}

Problem problem_of(const Arguments& a, const Options& o) {
  for (const auto& [name, t] : {std::pair{"q", &a.q}, {"k", &a.k}, {"v", &a.v}, {"out", &a.out}}) {
    check_tensor(name, *t);
    want_device(name, *t, a.q);
    want_unit_last(name, *t);
    if (!is_data(t->dtype))
      fail(ErrorCode::bad_dtype, text(name, " is ", name_of(t->dtype), "; fp32, fp16 and bf16 are accepted"));
  }
  want_dtype("k", a.k, a.q.dtype);
  want_dtype("v", a.v, a.q.dtype);
  if (a.out.dtype != a.q.dtype && a.out.dtype != DType::f32) {
    fail(ErrorCode::bad_dtype,
         text("out is ", name_of(a.out.dtype), "; ", name_of(a.q.dtype), ", as q, or fp32 is expected"));
  }

  Problem p;
  p.varlen = a.cu_seqlens_q.given() || a.cu_seqlens_k.given();
  p.dtype = a.q.dtype;
  p.out_dtype = a.out.dtype;
  p.device = a.q.device;
  p.band = o.band;
  p.scale = o.scale;
  p.softcap = o.softcap;
  p.dropout_p = o.dropout_p;
  p.seed = o.seed;
  p.score_mod = o.score_mod;
  p.mask_mod = o.mask_mod;
  read_shapes(a, p);
  check_output("out", a.out);
  if (p.varlen) read_lengths(a, p);
  read_extras(a, p);
  p.layout = {layout_of(a.q), layout_of(a.k), layout_of(a.v), layout_of(a.out)};
  validate(p);
  return p;
}

void check_apart(const Arguments& a) {
  struct Place {
    const char* name;
    const Tensor* tensor;
    Extent extent;
  };
  const auto place = [](const char* name, const Tensor& t) { return Place{name, &t, extent_of(t)}; };
  const Place out = place("out", a.out), lse = place("lse", a.lse);
  const auto want_apart = [](const Place& x, const Place& y) {
    if (share_memory(*x.tensor, x.extent, *y.tensor, y.extent))
      fail(ErrorCode::bad_value, text(x.name, " shares memory with ", y.name, "; separate memory is required"));
  };
  const auto want_both_apart = [&](const char* name, const Tensor& t) {
    if (!t.given()) return;
    const Place from = place(name, t);
    want_apart(out, from);
    want_apart(lse, from);
  };
  want_apart(lse, out);
  for (const auto& [name, t] : {std::pair{"q", &a.q},
                                {"k", &a.k},
                                {"v", &a.v},
                                {"bias", &a.bias},
                                {"bool_mask", &a.bool_mask},
                                {"alibi_slopes", &a.alibi_slopes},
                                {"sinks", &a.sinks},
                                {"cu_seqlens_q", &a.cu_seqlens_q},
                                {"cu_seqlens_k", &a.cu_seqlens_k}}) {
    want_both_apart(name, *t);
  }
  for (const auto& [name, t] : a.mod_buffers) want_both_apart(("mod buffer " + name).c_str(), t);
}

Sequence sequence_of(const Problem& p, const Arguments& a, std::int64_t b) {
  if (!p.varlen) return {b, 0, 0, p.seq_q, p.seq_k};
  const auto at = [](const Tensor& cu, std::int64_t i) {
    return std::int64_t{static_cast<const std::int32_t*>(cu.data)[i * cu.stride[0]]};
  };
  const std::int64_t q = at(a.cu_seqlens_q, b), k = at(a.cu_seqlens_k, b);
  return {0, q, k, at(a.cu_seqlens_q, b + 1) - q, at(a.cu_seqlens_k, b + 1) - k};
}

BandMask band_mask(const Problem& p, std::int64_t seq_q, std::int64_t seq_k) {
  const std::int64_t right = p.band.causal ? 0 : p.band.right;
  const Align align = p.band.align;
  const std::int64_t shift = align == Align::bottom_right ? seq_k - seq_q : align == Align::offset ? p.band.offset : 0;
  return {seq_q, seq_k, shift, p.band.left, right};
}

std::string why_no_alibi(const Problem& p, std::int64_t most) {
  if (!p.alibi || p.band.align != Align::offset || std::abs(p.band.offset) <= most) return {};
  return text("it counts ALiBi's distances in 32 bits: an offset of -", most, " to ", most, " fits them; it is ",
              p.band.offset);
}

std::int64_t row_offset(const Tensor& t, std::int64_t batch, std::int64_t head, std::int64_t token) {
  return t.rank == 4 ? batch * t.stride[0] + head * t.stride[1] + token * t.stride[2]
                     : token * t.stride[0] + head * t.stride[1];
}
std::int64_t row_stride(const Tensor& t) { return t.rank == 4 ? t.stride[2] : t.stride[0]; }
std::int64_t lse_offset(const Tensor& lse, std::int64_t batch, std::int64_t head, std::int64_t token) {
  return lse.rank == 3 ? batch * lse.stride[0] + head * lse.stride[1] + token * lse.stride[2]
                       : head * lse.stride[0] + token * lse.stride[1];
}

Dims broadcast_strides(const Tensor& t) {
  Dims s = t.stride;
  for (int i = 0; i < 4; ++i)
    if (t.shape[i] == 1) s[i] = 0;
  return s;
}

}  // namespace onepass
