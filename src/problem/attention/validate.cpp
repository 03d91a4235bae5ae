// The checks of problems of attention and of its backward.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "algebra/tree.hpp"
#include "base/text.hpp"
#include "expression/check_mods.hpp"
#include "expression/tokens.hpp"
#include "onepass/error.hpp"
#include "problem/checks/problem_checks.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

constexpr std::int64_t kMaxModIndex = 2147483647;
// Between them fp32 holds the ratio of a score to the softcap: below it is infinite, and above it is flushed to 0.
constexpr float kLeastSoftcap = 1e-20f, kMostSoftcap = 1e20f;
constexpr double kMostRatio = 1e25;  // of the scale to the softcap: its products with q and k are finite

void validate_gradients(const Problem& p) {
  if (!is_backward(p.op)) return;
  want(!p.want_lse && !p.want_tlse, ErrorCode::bad_value, p.op->call, " does not support ",
       p.want_lse ? "want_lse; it reads lse" : "want_tlse; it reads tlse");
  const char* const t = p.op->tangents ? "t" : "";  // of the names of derivatives
  want(p.entropy == p.dentropy, ErrorCode::bad_value, p.entropy ? "entropy" : "dentropy", " requires ",
       p.entropy ? "dentropy" : "entropy");
  want(p.gradients != Gradients{}, ErrorCode::bad_value, "at least one of ", t, "dq, ", t, "dk, ", t, "dv, ", t,
       "dbias, ", t, "dsinks and ", t, "dalibi_slopes must be given");
  for (const auto& [gradient, of, asked, given] :
       {std::tuple{"dbias", "bias", p.gradients.dbias, p.bias.has_value()},
        {"dsinks", "sinks", p.gradients.dsinks, p.sinks},
        {"dalibi_slopes", "alibi_slopes", p.gradients.dalibi_slopes, p.alibi}})
    want(!asked || given, ErrorCode::bad_value, t, gradient, " requires ", of);
  want(p.grad_dtype == p.dtype || p.grad_dtype == DType::f32, ErrorCode::bad_dtype, t, "dq, ", t, "dk and ", t,
       "dv must be ", name_of(p.dtype), ", as q", or_fp32(p.dtype), " (got ", name_of(p.grad_dtype), ")");
  const Dims& slopes = p.op->tangents ? p.layout.tdalibi_slopes : p.layout.dalibi_slopes;
  want(!p.gradients.dalibi_slopes || p.batch <= 1 || p.layout.alibi_slopes[0] == 0 || slopes[0] != 0,
       ErrorCode::bad_stride, t, "dalibi_slopes must have a batch dimension, as alibi_slopes has");
}

void validate_tangents(const Problem& p) {
  for (const auto& [tangent, of, asked, given] : {std::tuple{"tbias", "bias", p.tbias, p.bias.has_value()},
                                                  {"tsinks", "sinks", p.tsinks, p.sinks},
                                                  {"tlse", "lse", p.want_tlse, p.want_lse}})
    want(!asked || given, ErrorCode::bad_value, tangent, " requires ", of);
}

void validate_v_in_k(const Problem& p) {
  if (!p.v_in_k) return;
  want(!is_derivative(p.op), ErrorCode::bad_value, p.op->call, " does not support v_in_k");
  want(p.dim_v <= p.dim_qk, ErrorCode::bad_shape, "with v_in_k, dim_v must be at most ", p.dim_qk, ", as dim_qk (got ",
       p.dim_v, ")");
  want(p.layout.v == p.layout.k, ErrorCode::bad_stride, "with v_in_k, v must have the strides of k");
}

// K and V as a cache.
void validate_cache(const Problem& p) {
  want(!is_derivative(p.op) || !(p.seqused || p.paged() || p.batch_invariant), ErrorCode::bad_value, p.op->call,
       " does not support ",
       p.paged()   ? "page_table"
       : p.seqused ? "seqused_k"
                   : "batch_invariant");
  want(p.page_size >= 0 && p.pages >= 0 && p.max_pages >= 0, ErrorCode::bad_shape,
       "page_size, pages and max_pages must be 0 or more (got ", p.page_size, ", ", p.pages, " and ", p.max_pages, ")");
  if (!p.paged()) {
    want(p.pages == 0 && p.max_pages == 0, ErrorCode::bad_shape,
         "page_size must be 1 or more if there are pages (got 0)");
    return;
  }
  validate_size("page_table", {p.batch, p.max_pages, p.page_size});
  want(p.seq_k <= p.max_pages * p.page_size, ErrorCode::bad_shape, "seq_k must be at most ", p.max_pages * p.page_size,
       ", the keys of ", p.max_pages, " pages of ", p.page_size, " (got ", p.seq_k, ")");
  want(p.seq_k > 0 || p.max_pages == 0, ErrorCode::bad_shape,
       "seq_k must be 1 or more if a sequence has pages (got 0)");
}

}  // namespace

void validate_mask_tiles(const Problem& p) {
  for (const auto& [name, tile] : {std::pair{"mask_tile_q", p.mask_tile_q}, {"mask_tile_k", p.mask_tile_k}}) {
    want(p.block_mask || tile == 0, ErrorCode::bad_value, name, " requires block_mask");
    want(tile >= 0 && tile <= kMaxModIndex, ErrorCode::bad_value, name, " must be 0 (", kMaskTile, ") to ",
         kMaxModIndex, " (got ", tile, ")");
  }
}

namespace {

void validate_block_mask(const Problem& p) {
  validate_mask_tiles(p);
  if (!p.block_mask) return;
  want(p.mod_buffers.size() < kMaxModBuffers, ErrorCode::bad_value, "with block_mask, mod_buffers must have at most ",
       kMaxModBuffers - 1, " buffers (got ", p.mod_buffers.size(), ")");
  want(std::max(p.seq_q, p.seq_k) <= kMaxModIndex, ErrorCode::bad_shape,
       "with block_mask, seq_q and seq_k must be at most ", kMaxModIndex, " (got ", p.seq_q, " and ", p.seq_k, ")");
}

// The last tokens of each sequence as a tree.
void validate_tree(const Problem& p) {
  if (p.drafts == 0) return;
  want(!is_derivative(p.op), ErrorCode::bad_value, p.op->call, " does not support tree");
  want(p.drafts > 0 && p.drafts <= kMostDrafts, ErrorCode::bad_shape, "tree must have 1 to ", kMostDrafts,
       " drafts of a sequence (got ", p.drafts, ")");
  want(p.band.causal && p.band.align == Align::bottom_right, ErrorCode::bad_value,
       "tree requires the mask causal_bottom_right, because a draft sees nothing behind itself");
}

// q, k and v are quantized first, which finds the scales.
void validate_quantized(const Problem& p) {
  if (!p.fp8) return;
  for (const RoleRow& row : kRoleTable) {
    const bool cache = row.role == Role::seqused_k || row.role == Role::page_table || row.role == Role::tree;
    const bool scale = row.types == Types::f32 && row.fit == Fit::trailing_optional;
    want(!(cache || scale) || !uses(p, row), ErrorCode::bad_value, "attention_fp8 does not support ", row.name,
         cache ? "" : "; it computes the scales and means");
  }
  want(is_data(p.dtype), ErrorCode::bad_dtype, "q must be fp32, fp16 or bf16 (got ", name_of(p.dtype), ")");
  want(!p.kv_dtype, ErrorCode::bad_dtype, "k and v must be ", name_of(p.dtype), ", as q, to be quantized (got ",
       name_of(p.key_dtype()), ")");
  want(std::max(p.dim_qk, p.dim_v) <= 256, ErrorCode::bad_shape, "attention_fp8 requires head dims of 1 to 256 (got ",
       p.dim_qk, "/", p.dim_v, ")");
  want(!p.v_in_k, ErrorCode::bad_value, "attention_fp8 does not support v_in_k");
  want(p.fp8->hadamard || p.fp8->seed == 0, ErrorCode::bad_value, "the seed of fp8 must be 0 without hadamard (got ",
       p.fp8->seed, ")");
}

// fp8_e4m3 is for forwards; descales are of what is.
void validate_fp8(const Problem& p) {
  validate_quantized(p);
  const bool fp8 = p.dtype == DType::f8e4m3;
  validate_key_dtype(p, "q");
  want(!is_derivative(p.op) || !fp8, ErrorCode::bad_dtype, p.op->call, " does not support fp8_e4m3 q, k and v");
  for (const auto& [role, of] : {std::pair{Role::q_descale, p.dtype},
                                 {Role::k_descale, p.key_dtype()},
                                 {Role::v_descale, p.key_dtype()},
                                 {Role::v_mean, p.key_dtype()}}) {
    const char* const name = row_of(role).name;
    want(!descale_of(p, role) || of == DType::f8e4m3, ErrorCode::bad_dtype, name, " requires an fp8_e4m3 ",
         std::string_view(name).substr(0, 1), " (got ", name_of(of), ")");
  }
  want(p.accumulation <= Accumulation::fast, ErrorCode::bad_value, "accumulation must be a value of Accumulation (got ",
       static_cast<int>(p.accumulation), ")");
  want(fp8 || p.fp8 || p.accumulation == Accumulation::exact, ErrorCode::bad_value,
       "accumulation=fast requires an fp8_e4m3 q (got ", name_of(p.dtype), ")");
}

void validate_precision(const Problem& p) {
  want(p.precision <= Precision::tf32, ErrorCode::bad_value, "precision must be a value of Precision (got ",
       static_cast<int>(p.precision), ")");
  if (p.precision == Precision::fp32) return;
  want(p.dtype == DType::f32, ErrorCode::bad_value, "precision=tf32 requires an fp32 q (got ", name_of(p.dtype), ")");
  want(!p.fp8, ErrorCode::bad_value, "attention_fp8 does not support precision=tf32");
}

void validate_lengths(const Problem& p) {
  for (const auto& [name, lengths, total, most] :
       {std::tuple{"q", &p.lengths_q, p.total_q, p.seq_q},
        std::tuple{"k", &p.lengths_k, p.packed_k() ? p.total_k : std::numeric_limits<std::int64_t>::max(), p.seq_k}}) {
    if (lengths->empty()) continue;
    want(static_cast<std::int64_t>(lengths->size()) == p.batch, ErrorCode::bad_shape, "the number of lengths of ", name,
         " must be ", p.batch, ", as batch (got ", lengths->size(), ")");
    std::int64_t rest = total;
    for (std::int64_t n : *lengths) {
      want(n >= 0 && n <= most, ErrorCode::bad_value, "lengths of ", name, " must be 0 to ", most, " (got ", n, ")");
      want(n <= rest, ErrorCode::bad_value, "the sum of the lengths of ", name, " must be at most ", total,
           ", its number of tokens (got ", static_cast<std::uint64_t>(total - rest) + static_cast<std::uint64_t>(n),
           ")");
      rest -= n;
    }
  }
}

// Texts are read here where the CPU will run them, so that a wrong one is shown with its line before anything starts.
// On a CUDA device the compiler does that.
Mods validate_mods(const Problem& p) {
  if (p.score_mod.empty() && p.mask_mod.empty()) {
    want(p.mod_buffers.empty(), ErrorCode::bad_value, "mod_buffers requires a score_mod or a mask_mod");
    return {};
  }
  check_mod_text("score_mod", p.score_mod);
  check_mod_text("mask_mod", p.mask_mod);
  want(p.mod_buffers.size() <= kMaxModBuffers, ErrorCode::bad_value, "mod_buffers must have at most ", kMaxModBuffers,
       " buffers (got ", p.mod_buffers.size(), ")");
  const bool any_scores = std::min({p.batch, p.heads_q, p.seq_q, p.seq_k}) > 0;
  for (std::size_t i = 0; i < p.mod_buffers.size(); ++i) {
    const ModBuffer& b = p.mod_buffers[i];
    check_mod_name(b.name);
    for (std::size_t j = 0; j < i; ++j)
      want(p.mod_buffers[j].name != b.name, ErrorCode::bad_value, "the names of mod buffers must differ (got ", b.name,
           " twice)");
    want(b.dtype != DType::f8e4m3 && b.dtype != DType::i64, ErrorCode::bad_dtype, "mod buffer ", b.name,
         " must be fp32, fp16, bf16, int32 or bool (got ", name_of(b.dtype), ")");
    want(b.rank >= 1 && b.rank <= kMaxRank, ErrorCode::bad_shape, "mod buffer ", b.name, " must have 1 to ", kMaxRank,
         " dimensions (got ", b.rank, ")");
    for (int d = 0; d < b.rank; ++d) {
      // An empty one has no element to read; where there is no score, none is read.
      want(b.shape[d] >= (any_scores ? 1 : 0) && b.shape[d] <= kMaxModIndex, ErrorCode::bad_shape, "dimension ", d,
           " of mod buffer ", b.name, " must be 1 to ", kMaxModIndex, " (got ", b.shape[d], ")");
    }
  }
  want(std::max(p.seq_q, p.seq_k) <= kMaxModIndex, ErrorCode::bad_shape,
       "with a score_mod or mask_mod, seq_q and seq_k must be at most ", kMaxModIndex, " (got ", p.seq_q, " and ",
       p.seq_k, ")");
  if (p.device.kind == DeviceKind::cpu) return mods_of(p, p.mod_buffers);
  check_mods(p, p.mod_buffers);
  return {};
}

}  // namespace

Mods validate_attention(const Problem& p) {
  want(p.heads_q == 0 || (p.heads_kv > 0 && p.heads_q % p.heads_kv == 0), ErrorCode::bad_shape, "heads_q (", p.heads_q,
       ") must be a multiple of heads_kv (", p.heads_kv, ")");
  want(p.device.kind <= DeviceKind::cuda, ErrorCode::bad_device, "the device kind must be a value of DeviceKind (got ",
       static_cast<int>(p.device.kind), ")");
  want(p.device.kind == DeviceKind::cpu || p.device.index >= 0, ErrorCode::bad_device,
       "the CUDA device's number must be 0 or more (got ", p.device.index, ")");
  const auto is_dim = [](std::int64_t d) { return d >= 1 && d <= 512; };
  want(is_dim(p.dim_qk) || p.dim_qk == 576, ErrorCode::bad_shape, "dim_qk must be 1 to 512, or 576 (got ", p.dim_qk,
       ")");
  want(is_dim(p.dim_v), ErrorCode::bad_shape, "dim_v must be 1 to 512 (got ", p.dim_v, ")");
  const bool fp8 = p.dtype == DType::f8e4m3;
  for (const auto& [name, t, or_fp8] : {std::tuple{"q, k and v", p.dtype, true},
                                        {"out", p.out_dtype, false},
                                        {"bias", p.bias ? p.bias->dtype : DType::f32, false}}) {
    want(is_data(t) || (or_fp8 && t == DType::f8e4m3), ErrorCode::bad_dtype, name, " must be fp32, fp16",
         or_fp8 ? ", bf16 or fp8_e4m3" : " or bf16", " (got ", name_of(t), ")");
  }
  want(fp8 || p.out_dtype == p.dtype || p.out_dtype == DType::f32, ErrorCode::bad_dtype, "out must be ",
       name_of(p.dtype), ", as q", or_fp32(p.dtype), " (got ", name_of(p.out_dtype), ")");
  validate_fp8(p);
  validate_precision(p);
  for (const auto& [name, n] : {std::pair{"left", p.band.left}, {"right", p.band.right}}) {
    // Positions of keys are sums of these and of sequence lengths.
    want(n >= -1 && n <= (std::int64_t{1} << 60), ErrorCode::bad_value, "the window's ", name,
         " side must be -1 (unbounded) to 2^60 (got ", n, ")");
  }
  want(!p.band.causal || p.band.right <= 0, ErrorCode::bad_value,
       "the window's right side must be -1 or 0 with a causal mask (got ", p.band.right, ")");
  validate_scale(p);
  want(p.band.align <= Align::offset, ErrorCode::bad_value, "the band's align must be a value of Align (got ",
       static_cast<int>(p.band.align), ")");
  want(p.band.align == Align::offset || p.band.offset == 0, ErrorCode::bad_value,
       "the band's offset must be 0 unless its align is Align::offset (got ", p.band.offset, ")");
  want(p.band.offset >= -(std::int64_t{1} << 60) && p.band.offset <= (std::int64_t{1} << 60), ErrorCode::bad_value,
       "the band's offset must be -2^60 to 2^60 (got ", p.band.offset, ")");
  want(std::isfinite(p.softcap) && p.softcap >= 0, ErrorCode::bad_value, "softcap must be 0 (none) or positive (got ",
       p.softcap, ")");
  want(p.softcap == 0 || (p.softcap >= kLeastSoftcap && p.softcap <= kMostSoftcap), ErrorCode::bad_value,
       "softcap must be 0 (none) or ", kLeastSoftcap, " to ", kMostSoftcap, " (got ", p.softcap, ")");
  want(p.softcap == 0 || std::abs(p.effective_scale()) <= kMostRatio * double{p.softcap}, ErrorCode::bad_value,
       "scale must be at most 1e25 times softcap in magnitude (got ", p.effective_scale(), " and ", p.softcap, ")");
  want(p.dropout_p >= 0 && p.dropout_p <= 1, ErrorCode::bad_value, "dropout_p must be 0 to 1 (got ", p.dropout_p, ")");
  want(p.dropout_start[3] % 4 == 0, ErrorCode::bad_value, "the key of dropout_start must be a multiple of 4 (got ",
       p.dropout_start[3], ")");
  want(!p.dropout_seed || p.seed == 0, ErrorCode::bad_value, "seed must be 0 with dropout_seed (got ", p.seed, ")");
  validate_cache(p);
  validate_tree(p);
  validate_block_mask(p);
  validate_v_in_k(p);
  validate_tangents(p);
  validate_gradients(p);  // what follows asks for the shapes of all roles
  for (const Role role : {Role::q, Role::k, Role::v, Role::out}) {
    const Dims n = shape_of(p, row_of(role)).size;
    validate_size(row_of(role).name, {n[0], n[1], n[2], n[3]});
  }
  validate_size("the score matrix", {p.batch, p.heads_q, p.seq_q, p.seq_k});
  validate_strides(p);
  validate_alignments(p);
  validate_lengths(p);
  return validate_mods(p);
}

void validate_unified_max(const Problem& p) {
  want(use_of(row_of(Role::recomputed), p.op) != Use::none || (!p.unified_max && !p.want_recomputed),
       ErrorCode::bad_value, p.op->call, " does not support ", p.unified_max ? "unified_max" : "recomputed");
  want(!p.unified_max || std::isfinite(*p.unified_max), ErrorCode::bad_value, "unified_max must be finite (got ",
       p.unified_max.value_or(0), ")");
  want(p.unified_max || !p.want_recomputed, ErrorCode::bad_value, "recomputed requires unified_max");
  want(!p.unified_max || !p.entropy, ErrorCode::bad_value, p.op->call, " does not support entropy with unified_max");
}

}  // namespace onepass
