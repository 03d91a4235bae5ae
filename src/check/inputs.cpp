#include "check/inputs.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "check/draw_cache.hpp"
#include "check/draw_factors.hpp"
#include "check/draw_rows.hpp"
#include "check/random.hpp"
#include "core/key_value_view.hpp"
#include "core/numerics.hpp"

namespace onepass::check {
namespace {

enum Stream : std::int64_t { kQ, kK, kV, kBias, kMask, kMods, kDOut, kDLse, kParts };

// The strides' reach below and above element 0.
struct Extent {
  std::int64_t below = 0, above = 0, elements = 1;
  template <class Data>
  explicit Extent(const BasicTensor<Data>& t) {
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
    if (p_.op == Op::merge) return make_parts();
    if (is_drawn_by_rows(p_)) {
      if (p_.bool_mask) fill_mask();
      draw_rows(p_, in_.tensors, seed_, distribution_);
      finish();
      return std::move(in_);
    }
    if (p_.varlen) prefix_sums(in_.tensors.cu_seqlens_q, p_.lengths_q);
    if (p_.packed_k()) prefix_sums(in_.tensors.cu_seqlens_k, p_.lengths_k);
    fill_cache();
    for (const Role role : {Role::q_descale, Role::k_descale, Role::v_descale})
      draw_descale(tensor_of(in_.tensors, row_of(role)), role, seed_);
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      seq_ = sequence_of(p_, in_.tensors, b);
      fill_rows(
          in_.tensors.q, rows_of(in_.tensors.q, seq_.q_begin), p_.heads_q, seq_.seq_q,
          [&](std::int64_t h, std::int64_t i, float* row) { query(b, h, i, row); }, Descale(in_.tensors.q_descale, b));
      fill_rows(
          in_.tensors.k, keys_of(in_.tensors, seq_), p_.heads_kv, seq_.seq_k,
          [&](std::int64_t h, std::int64_t j, float* row) { key(b, h, j, row); }, Descale(in_.tensors.k_descale, b));
      if (p_.v_in_k) continue;
      fill_rows(
          in_.tensors.v, values_of(in_.tensors, seq_), p_.heads_kv, seq_.seq_k,
          [&](std::int64_t h, std::int64_t j, float* row) {
            Random r(seed_, {kV, b, h, j});
            for (std::int64_t d = 0; d < p_.dim_v; ++d) row[d] = 0.5f + r.normal();
          },
          Descale(in_.tensors.v_descale, b));
    }
    if (p_.v_mean) draw_mean(in_.tensors.v_mean, seed_);
    if (p_.bias) fill_bias();
    if (p_.bool_mask) fill_mask();
    if (p_.alibi) draw_slopes(in_.tensors.alibi_slopes, p_.heads_q);
    if (p_.sinks) draw_sinks(in_.tensors.sinks, seed_);
    if (p_.op == Op::backward) fill_upstream();
    for (std::size_t i = 0; i < p_.mod_buffers.size(); ++i) fill_mod_buffer(i);
    finish();
    return std::move(in_);
  }

 private:
  // ------------------------------------------------------------------------------------------------ memory
  template <class AnyTensor>
  void own(AnyTensor& t) {
    const Extent extent(t);
    in_.buffers.emplace_back(static_cast<std::size_t>(extent.span()) * size_of(t.dtype), placement_);
    t.data = in_.buffers.back().data() -
             (extent.elements == 0 ? 0 : extent.below) * static_cast<std::int64_t>(size_of(t.dtype));
  }
  // Row-major, with the rows 3 elements apart if the seed is odd.
  Tensor side_tensor(DType dtype, int rank, const Dims& shape) const {
    Tensor t;
    t.dtype = dtype;
    t.rank = rank;
    std::int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      t.shape[i] = shape[i];
      t.stride[i] = step;
      step = step * std::max<std::int64_t>(shape[i], 1) + (i == rank - 1 && rank > 1 && seed_ % 2 == 1 ? 3 : 0);
    }
    return t;
  }
  // What the problem says; side tensors are padded, and slopes of each batch entry, if the seed is odd.
  Tensor tensor_for(const RoleRow& row) const {
    const RoleShape shape = shape_of(p_, row);
    if (row.fit == Fit::leading_optional && seed_ % 2 == 0)
      return side_tensor(shape.dtype, shape.rank - 1, {shape.size[1], 1, 1, 1});
    if (!row.unit_last && !is_drawn_by_rows(p_)) return side_tensor(shape.dtype, shape.rank, shape.size);
    const ConstTensor as_described = described(p_, row);
    Tensor t;
    t.rank = as_described.rank;
    t.shape = as_described.shape;
    t.stride = as_described.stride;
    t.dtype = as_described.dtype;
    return t;
  }

  void allocate() {
    for_each_role(in_.tensors, [&](const RoleRow& row, auto& tensor) {
      if (!uses(p_, row)) return void(in_.buffers.emplace_back());
      tensor = tensor_for(row);
      if (row.role == Role::v && p_.v_in_k) {
        in_.buffers.emplace_back();
        tensor.data = const_cast<void*>(in_.tensors.k.data);
      } else {
        own(tensor);
      }
    });
    for (const ModBuffer& b : p_.mod_buffers) {
      in_.tensors.mod_buffers.push_back({b.name, side_tensor(b.dtype, b.rank, b.shape)});
      own(in_.tensors.mod_buffers.back().tensor);
    }
  }

  static void prefix_sums(const ConstTensor& cu, const std::vector<std::int64_t>& lengths) {
    auto* sums = Inputs::writable<std::int32_t>(cu);
    sums[0] = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) sums[i + 1] = static_cast<std::int32_t>(sums[i] + lengths[i]);
  }

  void fill_cache() {
    const std::vector<std::int32_t> lengths = draw_lengths(p_, seed_);
    if (p_.seqused) put(in_.tensors.seqused_k, lengths);
    if (p_.paged()) put(in_.tensors.page_table, draw_page_table(p_, lengths, seed_));
  }
  static void put(const ConstTensor& t, const std::vector<std::int32_t>& numbers) {  // row by row
    const std::int64_t columns = t.rank == 2 ? t.shape[1] : 1;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / columns, column = static_cast<std::int64_t>(i) % columns;
      Inputs::writable<std::int32_t>(t)[row * t.stride[0] + column * t.stride[1]] = numbers[i];
    }
  }

  // Rows of queries as a view: the batch entry's.
  KeyValueView rows_of(const ConstTensor& t, std::int64_t begin) const {
    Sequence s;
    s.batch = seq_.batch;
    s.k_begin = begin;
    return {t, s};
  }
  // make(head, row of the sequence, values); stored divided by their factors
  template <class Make>
  void fill_rows(const ConstTensor& t, const KeyValueView& view, std::int64_t heads, std::int64_t count, Make make,
                 const Descale& factors = {}) {
    const std::int64_t dim = t.shape[t.rank - 1];
    std::vector<float> row(static_cast<std::size_t>(dim));
    with_float_type(t.dtype, [&](auto zero) {
      using T = decltype(zero);
      for (std::int64_t h = 0; h < heads; ++h) {
        // Rows that lie on each other are written once: 3 billion broadcast keys are made at once.
        for (std::int64_t i = row_stride(t) == 0 && !p_.paged() ? std::max<std::int64_t>(0, count - 1) : 0; i < count;
             ++i) {
          make(h, i, row.data());
          T* into = const_cast<T*>(view.row<T>(h, i));
          const float factor = factors.at(h, i);
          for (std::int64_t d = 0; d < dim; ++d) into[d] = from_float<T>(row[d] / factor);
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
    return p_.key_dtype() == DType::f32
               ? kRise
               : std::min(kRise, 40 / static_cast<float>(std::max<std::int64_t>(1, seq_.seq_k)));
  }
  void normals(Random r, float std, float* row) const {
    for (std::int64_t d = 0; d < p_.dim_qk; ++d) row[d] = std * r.normal();
  }
  // Huge queries: rows of all magnitudes side by side. fp16 holds none above 65504.
  float huge_sigma(std::int64_t i) const {
    constexpr float kMore[] = {1, 1e4f, 1e9f, 1e17f, 1e26f};
    const float least = sigma(3e4f), most = least * kMore[i % 5];
    if (p_.dtype == DType::f8e4m3) return std::min(least, 100.0f);  // and none above 448
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
      case Distribution::huge: return normals(r, p_.key_dtype() == DType::f8e4m3 ? 100.0f : sigma(3e4f), row);
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
  void for_spread(const ConstTensor& t, Make make) {
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
    const ConstTensor& t = in_.tensors.bias;
    Random r(seed_, {kBias});
    for_spread(t, [&](std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t at) {
      store_element(const_cast<void*>(t.data), t.dtype, at, r.below(16) == 0 ? -INFINITY : 2 * r.normal());
    });
  }
  void fill_mask() {
    const ConstTensor& t = in_.tensors.bool_mask;
    Random r(seed_, {kMask});
    const auto fate = [&](std::initializer_list<std::int64_t> position, std::int64_t n) {
      return Random(seed_ + 1, position).below(n);
    };
    for_spread(t, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, std::int64_t at) {
      const std::int64_t block = fate({b, h, i / 32, j / 64}, 4);
      const bool hidden_row = t.shape[2] > 1 && fate({b, h, i}, 8) == 0;
      Inputs::writable<std::uint8_t>(t)[at] = !hidden_row && block != 0 && (block == 1 || r.below(2) == 0);
    });
  }
  // Floats of +-1; bools half of them true; integers that rise by 1 about every 50 elements of the last dimension, as
  // the ids of documents do.
  void fill_mod_buffer(std::size_t n) {
    const ConstTensor& t = in_.tensors.mod_buffers[n].tensor;
    Random r(seed_, {kMods, static_cast<std::int64_t>(n)});
    std::int32_t id = 0;
    const Dims& s = t.shape;
    for (std::int64_t i = 0; i < t.elements(); ++i) {
      std::int64_t at = 0, rest = i;
      for (int d = t.rank - 1; d >= 0; rest /= s[d--]) at += rest % s[d] * t.stride[d];
      if (i % s[t.rank - 1] == 0) id = 0;
      id += r.below(50) == 0;
      if (t.dtype == DType::i32)
        Inputs::writable<std::int32_t>(t)[at] = id;
      else if (t.dtype == DType::boolean)
        Inputs::writable<std::uint8_t>(t)[at] = r.below(2) != 0;
      else
        store_element(const_cast<void*>(t.data), t.dtype, at, r.normal());
    }
  }

  // dO and dLSE are N(0, 1); rows of the outputs that see nothing hold whatever it is.
  void fill_upstream() {
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      seq_ = sequence_of(p_, in_.tensors, b);
      fill_rows(in_.tensors.dout, rows_of(in_.tensors.dout, seq_.q_begin), p_.heads_q, seq_.seq_q,
                [&](std::int64_t h, std::int64_t i, float* row) {
                  Random r(seed_, {kDOut, b, h, i});
                  for (std::int64_t d = 0; d < p_.dim_v; ++d) row[d] = r.normal();
                });
      for (std::int64_t h = 0; p_.dlse && h < p_.heads_q; ++h)
        for (std::int64_t i = 0; i < seq_.seq_q; ++i)
          Inputs::writable<float>(in_.tensors.dlse)[lse_offset(in_.tensors.dlse, seq_.batch, h, seq_.q_begin + i)] =
              Random(seed_, {kDLse, b, h, i}).normal();
    }
  }
  // ------------------------------------------------------------------------------------------------ a merge
  // Every other part lies rows before heads. What a part holds in a row that it has not seen stays NaN.
  Inputs make_parts() {
    const std::int64_t b = p_.batch, h = p_.heads_q, s = p_.seq_q;
    for (std::int64_t n = 0; n < p_.partials; ++n) {
      Tensor out = side_tensor(p_.dtype, 4, n % 2 == 0 ? Dims{b, h, s, p_.dim_v} : Dims{b, s, h, p_.dim_v}),
             lse = side_tensor(DType::f32, 3, n % 2 == 0 ? Dims{b, h, s, 1} : Dims{b, s, h, 1});
      in_.tensors.outs.push_back(n % 2 == 0 ? out : out.permuted({0, 2, 1, 3}));
      own(in_.tensors.outs.back());
      in_.tensors.lses.push_back(n % 2 == 0 ? lse : lse.permuted({0, 2, 1}));
      own(in_.tensors.lses.back());
      for (std::int64_t i = 0; i < b * h * s; ++i) fill_part_row(n, i / (h * s), i / s % h, i % s);
    }
    finish();
    return std::move(in_);
  }
  void fill_part_row(std::int64_t n, std::int64_t b, std::int64_t h, std::int64_t i) {
    Random r(seed_, {kParts, n, b, h, i});
    const ConstTensor &out = in_.tensors.outs.back(), &lse = in_.tensors.lses.back();
    float& x = Inputs::writable<float>(lse)[lse_offset(lse, b, h, i)];
    const bool empty = r.below(6) == 0 || (b + h + i) % 11 == 10;
    switch (distribution_) {
      case Distribution::normal: x = 4 * r.normal(); break;
      case Distribution::rising: x = 2.5f * static_cast<float>(h % 2 == 0 ? n : p_.partials - n) + r.normal(); break;
      case Distribution::one_hot: x = (n == i % p_.partials ? 30.0f : 0.0f) + r.normal(); break;
      case Distribution::huge: x = 3e4f * std::pow(10.0f, static_cast<float>(i % 5)) + 4 * r.normal(); break;
    }
    if (empty) x = -INFINITY;
    for (std::int64_t d = 0; d < p_.dim_v && !empty; ++d)
      store_element(const_cast<void*>(out.data), out.dtype, row_offset(out, b, h, i) + d, 0.5f + r.normal());
  }

  void finish() {
    in_.attention = attention_of(p_);
    in_.problem = problem_of(p_.op, in_.tensors, in_.attention);
    in_.changed();
    if (placement_ == Placement::middle) return;
    for (std::size_t i = 0; i < in_.buffers.size(); ++i) {
      if (i >= kRoles || !writes(kRoleTable[i], p_.op)) in_.buffers[i].make_read_only();
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

}  // namespace onepass::check
