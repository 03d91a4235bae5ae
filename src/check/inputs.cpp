#include "check/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "check/random.hpp"
#include "core/numerics.hpp"

namespace onepass::check {
namespace {

enum Stream : std::int64_t { kQ, kK, kV, kBias, kMask, kSlopes, kSinks, kMods };

// The strides' reach below and above element 0.
struct Extent {
  std::int64_t below = 0, above = 0, elements = 1;
  explicit Extent(const Tensor& t) {
    for (int i = 0; i < t.rank; ++i) {
      elements *= t.shape[i];
      (t.stride[i] < 0 ? below : above) += std::max<std::int64_t>(0, t.shape[i] - 1) * t.stride[i];
    }
  }
  std::int64_t span() const { return elements == 0 ? 0 : above - below + 1; }
};

class Maker {
 public:
  Maker(const Problem& problem, std::uint64_t seed, Distribution distribution, Placement placement)
      : p_(problem), seed_(seed), distribution_(distribution), placement_(placement) {}

  Inputs make() {
    allocate();
    if (p_.varlen) {
      prefix_sums(in_.tensors.cu_seqlens_q, p_.lengths_q);
      prefix_sums(in_.tensors.cu_seqlens_k, p_.lengths_k);
    }
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      seq_ = sequence_of(p_, in_.tensors, b);
      fill_rows(in_.tensors.q, b, p_.heads_q, seq_.q_begin, seq_.seq_q,
                [&](std::int64_t h, std::int64_t i, float* row) { query(b, h, i, row); });
      fill_rows(in_.tensors.k, b, p_.heads_kv, seq_.k_begin, seq_.seq_k,
                [&](std::int64_t h, std::int64_t j, float* row) { key(b, h, j, row); });
      fill_rows(in_.tensors.v, b, p_.heads_kv, seq_.k_begin, seq_.seq_k,
                [&](std::int64_t h, std::int64_t j, float* row) {
                  Random r(seed_, {kV, b, h, j});
                  for (std::int64_t d = 0; d < p_.dim_v; ++d) row[d] = 0.5f + r.normal();
                });
    }
    if (p_.bias) fill_bias();
    if (p_.bool_mask) fill_mask();
    if (p_.alibi) fill_slopes();
    if (p_.sinks) fill_sinks();
    for (std::size_t i = 0; i < p_.mod_buffers.size(); ++i) fill_mod_buffer(i);
    finish();
    return std::move(in_);
  }

 private:
  // ------------------------------------------------------------------------------------------------ memory
  void own(Tensor& t) {
    const Extent extent(t);
    in_.buffers.emplace_back(static_cast<std::size_t>(extent.span()) * size_of(t.dtype), placement_);
    t.data = in_.buffers.back().data() -
             (extent.elements == 0 ? 0 : extent.below) * static_cast<std::int64_t>(size_of(t.dtype));
  }
  Tensor main_tensor(DType dtype, std::int64_t heads, std::int64_t tokens, std::int64_t dim, const Dims& s) const {
    return p_.varlen ? Tensor(nullptr, dtype, {tokens, heads, dim}, {s[2], s[1], 1})
                     : Tensor(nullptr, dtype, {p_.batch, heads, tokens, dim}, {s[0], s[1], s[2], 1});
  }
  // Row-major, with the rows 3 elements apart if the seed is odd.
  Tensor side_tensor(DType dtype, int rank, Dims shape) const {
    Tensor t;
    t.dtype = dtype;
    t.rank = rank;
    std::int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      t.shape[i] = shape[i];
      t.stride[i] = step;
      step = step * shape[i] + (i == rank - 1 && rank > 1 && seed_ % 2 == 1 ? 3 : 0);
    }
    return t;
  }
  Tensor spread_tensor(DType dtype, const BroadcastDims& s) const {
    return side_tensor(
        dtype, 4, {s.batch ? p_.batch : 1, s.heads ? p_.heads_q : 1, s.rows ? p_.seq_q : 1, s.keys ? p_.seq_k : 1});
  }

  void allocate() {
    Arguments& a = in_.tensors;
    const std::int64_t tq = p_.varlen ? p_.total_q : p_.seq_q, tk = p_.varlen ? p_.total_k : p_.seq_k;
    a.q = main_tensor(p_.dtype, p_.heads_q, tq, p_.dim_qk, p_.layout.q);
    a.k = main_tensor(p_.dtype, p_.heads_kv, tk, p_.dim_qk, p_.layout.k);
    a.v = main_tensor(p_.dtype, p_.heads_kv, tk, p_.dim_v, p_.layout.v);
    a.out = main_tensor(p_.out_dtype, p_.heads_q, tq, p_.dim_v, p_.layout.out);
    if (p_.want_lse)
      a.lse = p_.varlen ? side_tensor(DType::f32, 2, {p_.heads_q, tq})
                        : side_tensor(DType::f32, 3, {p_.batch, p_.heads_q, tq});
    if (p_.bias) a.bias = spread_tensor(p_.bias->dtype, p_.bias->spans);
    if (p_.bool_mask) a.bool_mask = spread_tensor(DType::boolean, *p_.bool_mask);
    if (p_.alibi)
      a.alibi_slopes = seed_ % 2 == 1 ? side_tensor(DType::f32, 2, {p_.batch, p_.heads_q})
                                      : side_tensor(DType::f32, 1, {p_.heads_q});
    if (p_.sinks) a.sinks = side_tensor(DType::f32, 1, {p_.heads_q});
    if (p_.varlen) a.cu_seqlens_q = a.cu_seqlens_k = side_tensor(DType::i32, 1, {p_.batch + 1});
    for (Tensor* t : {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.bias, &a.bool_mask, &a.alibi_slopes, &a.sinks,
                      &a.cu_seqlens_q, &a.cu_seqlens_k}) {
      t->given() ? own(*t) : void(in_.buffers.emplace_back());
    }
    for (const ModBuffer& b : p_.mod_buffers) {
      a.mod_buffers.push_back({b.name, side_tensor(b.dtype, b.rank, b.shape)});
      own(a.mod_buffers.back().tensor);
    }
  }

  static void prefix_sums(const Tensor& cu, const std::vector<std::int64_t>& lengths) {
    auto* sums = static_cast<std::int32_t*>(cu.data);
    sums[0] = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) sums[i + 1] = static_cast<std::int32_t>(sums[i] + lengths[i]);
  }

  // make(head, row of the sequence, values)
  template <class Make>
  void fill_rows(const Tensor& t, std::int64_t batch, std::int64_t heads, std::int64_t begin, std::int64_t count,
                 Make make) {
    const std::int64_t dim = t.shape[t.rank - 1], at_batch = p_.varlen ? 0 : batch;
    std::vector<float> row(static_cast<std::size_t>(dim));
    with_float_type(t.dtype, [&](auto zero) {
      using T = decltype(zero);
      for (std::int64_t h = 0; h < heads; ++h) {
        // Rows that lie on each other are written once: 3 billion broadcast keys are made at once.
        for (std::int64_t i = row_stride(t) == 0 ? std::max<std::int64_t>(0, count - 1) : 0; i < count; ++i) {
          make(h, i, row.data());
          T* into = static_cast<T*>(t.data) + row_offset(t, at_batch, h, begin + i);
          for (std::int64_t d = 0; d < dim; ++d) into[d] = from_float<T>(row[d]);
        }
      }
    });
  }

  // ------------------------------------------------------------------------------------------------ scores
  // Factor of q that turns q . k into a score (1 if the problem's scale is 0).
  float unscale() const {
    const double scale = p_.effective_scale();
    return static_cast<float>(scale == 0 ? 1.0 : 1.0 / scale);
  }
  // q and k of standard deviation `sigma` each make scores of standard deviation `std`.
  float sigma(float std) const {
    return std::sqrt(std * std::abs(unscale()) / std::sqrt(static_cast<float>(p_.dim_qk)));
  }

  // Of the rising scores, from key to key. 16-bit types store scores above 40 too coarsely to judge anything by.
  float rise() const {
    constexpr float kRise = 2.5f / 64;
    return p_.dtype == DType::f32 ? kRise
                                  : std::min(kRise, 40 / static_cast<float>(std::max<std::int64_t>(1, seq_.seq_k)));
  }
  void normals(Random r, float std, float* row) const {
    for (std::int64_t d = 0; d < p_.dim_qk; ++d) row[d] = std * r.normal();
  }
  // Huge queries: rows of all magnitudes side by side. fp16 holds none above 65504.
  float huge_sigma(std::int64_t i) const {
    constexpr float kMore[] = {1, 1e4f, 1e9f, 1e17f, 1e26f};
    const float least = sigma(3e4f), most = least * kMore[i % 5];
    return p_.dtype == DType::f16 ? std::max(least, std::min(most, 1e4f)) : most;
  }
  // A query that scores 30 with the key of stream r.
  void meet(Random r, float* row) const {
    normals(r, 1, row);
    float square = 0;
    for (std::int64_t d = 0; d < p_.dim_qk; ++d) square += row[d] * row[d];
    for (std::int64_t d = 0; d < p_.dim_qk; ++d) row[d] *= 30 * unscale() / square;
  }
  // Any key that the band lets row i see, if there is one.
  std::int64_t target(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const Range seen = band_mask(p_, seq_.seq_q, seq_.seq_k).keys_of(i);
    return seen.lo < seen.hi ? seen.lo + Random(seed_, {kQ, b, h, i}).below(seen.hi - seen.lo) : 0;
  }

  void key(std::int64_t b, std::int64_t h, std::int64_t j, float* row) const {
    const Random r(seed_, {kK, b, h, j});
    switch (distribution_) {
      case Distribution::normal: return normals(r, sigma(4), row);
      case Distribution::huge: return normals(r, sigma(3e4f), row);
      case Distribution::one_hot: return normals(r, 1, row);
      case Distribution::rising:
        normals(r, sigma(1), row);
        row[0] = static_cast<float>(h % 2 == 0 ? j : seq_.seq_k - j) * rise();
    }
  }
  void query(std::int64_t b, std::int64_t h, std::int64_t i, float* row) const {
    const Random r(seed_, {kQ, b, h, i});
    switch (distribution_) {
      case Distribution::normal: return normals(r, sigma(4), row);
      case Distribution::huge: return normals(r, huge_sigma(i), row);
      case Distribution::one_hot: return meet(Random(seed_, {kK, b, h / p_.group(), target(b, h, i)}), row);
      case Distribution::rising: normals(r, sigma(1), row); row[0] = unscale();
    }
  }

  // ------------------------------------------------------------------------------------------------ side inputs
  template <class Make>
  void for_spread(const Tensor& t, Make make) {
    const Dims& n = t.shape;
    for (std::int64_t b = 0; b < n[0]; ++b) {
      for (std::int64_t h = 0; h < n[1]; ++h) {
        for (std::int64_t i = 0; i < n[2]; ++i) {
          for (std::int64_t j = 0; j < n[3]; ++j)
            make(b, h, i, j, b * t.stride[0] + h * t.stride[1] + i * t.stride[2] + j * t.stride[3]);
        }
      }
    }
  }
  void fill_bias() {
    const Tensor& t = in_.tensors.bias;
    Random r(seed_, {kBias});
    for_spread(t, [&](std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t at) {
      store_element(t.data, t.dtype, at, r.below(16) == 0 ? -INFINITY : 2 * r.normal());
    });
  }
  void fill_mask() {
    const Tensor& t = in_.tensors.bool_mask;
    Random r(seed_, {kMask});
    const auto fate = [&](std::initializer_list<std::int64_t> position, std::int64_t n) {
      return Random(seed_ + 1, position).below(n);
    };
    for_spread(t, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, std::int64_t at) {
      const std::int64_t block = fate({b, h, i / 32, j / 64}, 4);
      const bool hidden_row = t.shape[2] > 1 && fate({b, h, i}, 8) == 0;
      static_cast<std::uint8_t*>(t.data)[at] = !hidden_row && block != 0 && (block == 1 || r.below(2) == 0);
    });
  }
  void fill_slopes() {  // 2^-1 .. 2^-8, as the ALiBi paper has them for 8 heads; each batch entry begins elsewhere
    const Tensor& t = in_.tensors.alibi_slopes;
    const std::int64_t per_batch = t.rank == 2 ? t.shape[0] : 1;
    for (std::int64_t b = 0; b < per_batch; ++b) {
      for (std::int64_t h = 0; h < p_.heads_q; ++h)
        static_cast<float*>(t.data)[b * (t.rank == 2 ? t.stride[0] : 0) + h] =
            std::exp2f(-static_cast<float>(1 + (b + h) % 8));
    }
  }
  void fill_sinks() {
    Random r(seed_, {kSinks});
    for (std::int64_t h = 0; h < p_.heads_q; ++h) static_cast<float*>(in_.tensors.sinks.data)[h] = 4 + 4 * r.normal();
  }

  // Floats of +-1; bools half of them true; integers that rise by 1 about every 50 elements of the last dimension, as
  // the ids of documents do.
  void fill_mod_buffer(std::size_t n) {
    const Tensor& t = in_.tensors.mod_buffers[n].tensor;
    Random r(seed_, {kMods, static_cast<std::int64_t>(n)});
    std::int32_t id = 0;
    const Dims& s = t.shape;
    for (std::int64_t i = 0; i < t.elements(); ++i) {
      std::int64_t at = 0, rest = i;
      for (int d = t.rank - 1; d >= 0; rest /= s[d--]) at += rest % s[d] * t.stride[d];
      if (i % s[t.rank - 1] == 0) id = 0;
      id += r.below(50) == 0;
      if (t.dtype == DType::i32)
        static_cast<std::int32_t*>(t.data)[at] = id;
      else if (t.dtype == DType::boolean)
        static_cast<std::uint8_t*>(t.data)[at] = r.below(2) != 0;
      else
        store_element(t.data, t.dtype, at, r.normal());
    }
  }

  void finish() {
    const Arguments& a = in_.tensors;
    Options& o = in_.options;
    o.band = p_.band;
    o.scale = p_.scale;
    o.softcap = p_.softcap;
    o.dropout_p = p_.dropout_p;
    o.seed = p_.seed;
    o.lse = a.lse;
    o.bias = a.bias;
    o.bool_mask = a.bool_mask;
    o.alibi_slopes = a.alibi_slopes;
    o.sinks = a.sinks;
    o.score_mod = p_.score_mod;
    o.mask_mod = p_.mask_mod;
    o.mod_buffers = a.mod_buffers;
    o.cu_seqlens_q = a.cu_seqlens_q;
    o.cu_seqlens_k = a.cu_seqlens_k;
    in_.problem = problem_of(a, o);
    if (placement_ == Placement::middle) return;
    for (std::size_t i = 0; i < in_.buffers.size(); ++i) {
      if (i != 3 && i != 4) in_.buffers[i].make_read_only();  // 3: out, 4: lse
    }
  }

  const Problem& p_;
  std::uint64_t seed_;
  Distribution distribution_;
  Placement placement_;
  Inputs in_;
  Sequence seq_;  // of the batch entry being filled
};

}  // namespace

std::string_view name_of(Distribution distribution) {
  constexpr std::string_view kNames[] = {"normal", "rising", "one_hot", "huge"};
  return kNames[static_cast<std::size_t>(distribution)];
}

Inputs make_inputs(const Problem& problem, std::uint64_t seed, Distribution distribution, Placement placement) {
  validate(problem);
  if (problem.device.kind != DeviceKind::cpu)
    throw Error(ErrorCode::bad_device, text("inputs are made on the CPU, not on ", to_string(problem.device)));
  if (problem.varlen && static_cast<std::int64_t>(problem.lengths_q.size()) != problem.batch) {
    throw Error(ErrorCode::bad_value,
                text("\"", to_string(problem), "\" is packed but gives no lengths; varlen=... does"));
  }
  return Maker(problem, seed, distribution, placement).make();
}

void Inputs::poison_outputs() {
  buffers[3].poison();
  buffers[4].poison();
}

std::string Inputs::touched() const {
  for (const auto& [name, t, buffer] :
       {std::tuple{"out", &tensors.out, &buffers[3]}, {"lse", &tensors.lse, &buffers[4]}}) {
    if (!t->given() || buffer->sparse()) continue;
    if (!buffer->guards_untouched()) return text("bytes around ", name, " were written");
    Buffer rest = buffer->copy();  // with every row taken out, only gaps are left
    const std::int64_t size = static_cast<std::int64_t>(size_of(t->dtype));
    std::byte* const zero = rest.data() + (static_cast<std::byte*>(t->data) - buffer->data());
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      const Sequence seq = sequence_of(problem, tensors, b);
      for (std::int64_t h = 0; h < problem.heads_q; ++h) {
        for (std::int64_t i = 0; i < seq.seq_q; ++i) {
          const bool is_out = t == &tensors.out;
          const std::int64_t at =
              is_out ? row_offset(*t, seq.batch, h, seq.q_begin + i) : lse_offset(*t, seq.batch, h, seq.q_begin + i);
          std::fill_n(zero + at * size, (is_out ? problem.dim_v : 1) * size, std::byte{Buffer::kPoison});
        }
      }
    }
    if (!rest.all_poison()) return text("a gap between the rows of ", name, " was written");
  }
  return "";
}

const reference::Dense& Inputs::oracle(Executor& executor) {
  if (!oracle_) oracle_ = std::make_shared<const reference::Dense>(reference::oracle(problem, tensors, executor));
  return *oracle_;
}
const reference::Dense& Inputs::base(Executor& executor) {
  if (!base_) base_ = std::make_shared<const reference::Dense>(reference::base(problem, tensors, executor));
  return *base_;
}

}  // namespace onepass::check
