// A problem's sequences and what their rows see.
#include <algorithm>
#include <cstdlib>

#include "base/text.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/attention/zero_gradients.hpp"

namespace onepass {

namespace {

// f(length) for the lengths between prefix sums, each one checked.
template <class F>
void each_length(std::string_view name, const ConstTensor& cu, std::int64_t total, std::string_view of, F&& f) {
  if (of.empty()) of = name.substr(name.size() - 1);
  want(cu.stride[0] != 0 || cu.shape[0] <= 1, ErrorCode::bad_stride, name, " must have a stride other than 0 (got ",
       cu.shape[0], " entries with stride 0)");
  if (int32_at(cu, 0) != 0) throw Error(ErrorCode::bad_value, text(name, "[0] must be 0 (got ", int32_at(cu, 0), ")"));
  for (std::int64_t i = 1; i < cu.shape[0]; ++i) {
    const std::int64_t from = int32_at(cu, i - 1), to = int32_at(cu, i);
    want(to >= from, ErrorCode::bad_value, name, "[", i, "] must be at least ", from, ", the entry before it (got ", to,
         ")");
    want(to <= total, ErrorCode::bad_value, name, "[", i, "] must be at most ", total, ", the tokens of ", of, " (got ",
         to, ")");
    f(to - from);
  }
}

}  // namespace

std::vector<std::int64_t> lengths_from(std::string_view name, const ConstTensor& cu, std::int64_t total,
                                       std::string_view of) {
  std::vector<std::int64_t> lengths;
  each_length(name, cu, total, of, [&](std::int64_t length) { lengths.push_back(length); });
  return lengths;
}

void check_longest(std::string_view bound_name, std::int64_t longest, std::int64_t bound) {
  want(longest <= bound, ErrorCode::bad_value, bound_name, " must be at least ", longest,
       ", the length of the longest sequence (got ", bound, ")");
}

void check_lengths(const Problem& p, const Tensors& t) {
  const auto check = [](std::string_view name, const ConstTensor& cu, std::int64_t total, std::string_view bound_name,
                        std::int64_t bound) {
    std::int64_t longest = 0;
    each_length(name, cu, total, {}, [&](std::int64_t length) { longest = std::max(longest, length); });
    check_longest(bound_name, longest, bound);
  };
  if (p.device.kind != DeviceKind::cpu || !p.varlen) return;
  check("cu_seqlens_q", t.cu_seqlens_q, p.total_q, "max_seqlen_q", p.seq_q);
  if (p.packed_k()) check("cu_seqlens_k", t.cu_seqlens_k, p.total_k, "max_seqlen_k", p.seq_k);
}

Sequence sequence_of(const Problem& p, const Tensors& a, std::int64_t b) {
  Sequence s{b, 0, 0, p.seq_q, p.seq_k};
  if (p.varlen) {
    s.q_begin = int32_at(a.cu_seqlens_q, b);
    s.seq_q = int32_at(a.cu_seqlens_q, b + 1) - s.q_begin;
  }
  if (p.packed_k()) {
    s.k_begin = int32_at(a.cu_seqlens_k, b);
    s.seq_k = int32_at(a.cu_seqlens_k, b + 1) - s.k_begin;
  }
  if (p.seqused) s.seq_k = int32_at(p.op == kAppend ? a.cache_seqlens : a.seqused_k, b);
  if (p.paged()) s.pages = pages_of(a.page_table, b, p.page_size);
  return s;
}

Longest longest_of(const Problem& p, const Tensors& a) {
  if (!has_lengths(p)) return {p.seq_q, p.seq_k};
  Longest n;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, a, b);
    n.seq_q = std::max(n.seq_q, s.seq_q);
    n.seq_k = std::max(n.seq_k, s.seq_k);
  }
  return n;
}

BandMask band_mask(const Problem& p, std::int64_t seq_q, std::int64_t seq_k) {
  const Align align = p.band.align;
  // The last row sees the last key: where sequences have one row at most, nothing is right of it. Kernels of single
  // tokens then have no mask. Those of drafts read the band.
  const bool all = align == Align::bottom_right && p.seq_q <= 1 && p.drafts == 0;
  const std::int64_t right = all ? -1 : p.band.causal ? 0 : p.band.right;
  const std::int64_t shift = align == Align::bottom_right ? seq_k - seq_q : align == Align::offset ? p.band.offset : 0;
  return {seq_q, seq_k, shift, p.band.left, right};
}

bool has_zero_gradients(const Problem& p) {
  if (p.gradients == Gradients{} || p.varlen) return false;
  return std::min({p.batch, p.heads_q, p.seq_q}) == 0 || (p.seq_k == 0 && !p.gradients.dsinks);
}

std::string why_no_alibi(const Problem& p, std::int64_t most) {
  if (!p.alibi || p.band.align != Align::offset || std::abs(p.band.offset) <= most) return {};
  return text("with ALiBi, align_offset must be -", most, " to ", most, " (got ", p.band.offset, ")");
}

std::string why_no_other_keys(const Problem& p) {
  if (!p.kv_dtype || p.dtype == DType::f8e4m3 || *p.kv_dtype == DType::f8e4m3) return {};
  return text("does not support ", name_of(*p.kv_dtype), " k and v with ", name_of(p.dtype), " q");
}

std::string why_no_fp8(const Problem& p) {
  if (p.key_dtype() != DType::f8e4m3) return why_no_other_keys(p);
  return text("does not support fp8_e4m3 ", p.kv_dtype ? "k and v" : "q, k and v");
}

Dims broadcast_strides(const ConstTensor& t) {
  Dims s = t.stride;
  for (int i = 0; i < 4; ++i)
    if (t.shape[i] == 1) s[i] = 0;
  return s;
}

}  // namespace onepass
