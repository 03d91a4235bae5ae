// Appends to a cache with every option. The tensors are in memory that is compared byte for byte; a plain loop in
// float64 gives the expected values.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "algebra/numerics.hpp"
#include "onepass/append.hpp"
#include "onepass/element.hpp"
#include "problem/append/append.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass {

inline Problem problem_of(const AppendTensors& tensors, bool interleaved) {
  CallOptions options;
  options.interleaved = interleaved;
  return problem_of(kAppend, as_tensors(tensors), options);
}

}  // namespace onepass

namespace onepass::check {

struct AppendSpec {
  const char* name = "";
  DType dtype = DType::f32, table = DType::f32;  // of cos and sin
  std::int64_t heads_kv = 2, heads_q = 0;        // heads_q = 0: without q
  std::int64_t dim_qk = 32, dim_v = 32, rotary_dim = 0;
  bool interleaved = false, in_place = false;  // of q
  std::vector<std::int32_t> used{},
      lengths{};  // keys before the call; new tokens of each sequence, equal unless packed
  bool packed = false;
  std::int64_t page_size = 0;  // 0: without pages
  bool heads_first = false;    // the cache has heads before tokens in memory
  std::int64_t pad = 0;        // elements behind each row of every tensor
  std::int64_t capacity = 40;  // a multiple of page_size
  std::int64_t left_over = 0;  // packed: tokens behind the last sequence
  bool fp8 = false;            // the cache is fp8_e4m3, with scales per head and block
  bool fp16 = false;           // the cache is fp16, whatever the tokens are
  // One sequence of tokens with slots and positions in any order; `used` is {0}. Every fifth token has no slot.
  bool slots = false, wide_slots = true, wide_positions = false, joined = false;  // joined: cos_sin_cache
};

class AppendCase {
 public:
  // The bytes of one tensor, and the bytes that were there before the call.
  struct Memory {
    std::vector<std::byte> bytes, before;
    ConstTensor AppendTensors::* input = nullptr;
    Tensor AppendTensors::* output = nullptr;
  };

  AppendSpec spec;
  AppendTensors tensors;
  std::vector<Memory> memory;  // one entry for each tensor that is given; q_out shares q's entry if it is q

  explicit AppendCase(AppendSpec s, Device device = {}) : spec(std::move(s)) {
    const std::int64_t batch = static_cast<std::int64_t>(spec.used.size()), hk = spec.heads_kv, hq = spec.heads_q;
    const std::int64_t total = std::accumulate(spec.lengths.begin(), spec.lengths.end(), spec.left_over),
                       seq = spec.packed || batch == 0 ? 0 : spec.lengths[0], rotary = spec.rotary_dim;
    const bool tokens_first = spec.packed || spec.slots;
    memory.reserve(16);                                                  // tensors point into it
    const auto new_tokens = [&](std::int64_t heads, std::int64_t dim) {  // in memory tokens stand before heads
      const std::int64_t row = dim + spec.pad;
      return tokens_first ? Tensor(nullptr, spec.dtype, {total, heads, dim}, {heads * row, row, 1}, device)
                          : Tensor(nullptr, spec.dtype, {batch, heads, seq, dim},
                                   {seq * heads * row, row, heads * row, 1}, device);
    };
    const std::int64_t pages_each = spec.page_size ? spec.capacity / spec.page_size : 0, pages = batch * pages_each + 3;
    const auto cache = [&](std::int64_t dim) {
      const std::int64_t row = dim + spec.pad, n = spec.page_size ? spec.page_size : spec.capacity;
      const std::int64_t head = spec.heads_first ? n * row : row, token = spec.heads_first ? row : hk * row;
      const DType type = spec.fp8 ? DType::f8e4m3 : spec.fp16 ? DType::f16 : spec.dtype;
      return spec.page_size ? Tensor(nullptr, type, {pages, n, hk, dim}, {n * hk * row, token, head, 1}, device)
                            : Tensor(nullptr, type, {batch, hk, n, dim}, {n * hk * row, head, token, 1}, device);
    };
    input(&AppendTensors::k_new, new_tokens(hk, spec.dim_qk));
    input(&AppendTensors::v_new, new_tokens(hk, spec.dim_v));
    output(&AppendTensors::k, cache(spec.dim_qk));
    output(&AppendTensors::v, cache(spec.dim_v));
    if (spec.slots) draw_slots(total, pages * spec.page_size, device);
    if (!spec.slots) index(&AppendTensors::cache_seqlens, {batch}, spec.used, device);
    if (spec.page_size && !spec.slots) {
      std::vector<std::int32_t> table(static_cast<std::size_t>(batch * pages_each));
      std::iota(table.begin(), table.end(), 2);  // pages 0, 1 and the last are unused
      std::shuffle(table.begin(), table.end(), random_);
      index(&AppendTensors::page_table, {batch, pages_each}, table, device);
    }
    if (spec.packed) {
      std::vector<std::int32_t> cu(1, 0);
      for (const std::int32_t n : spec.lengths) cu.push_back(cu.back() + n);
      index(&AppendTensors::cu_seqlens_q, {batch + 1}, cu, device);
    }
    if (rotary > 0 && spec.joined) {
      input(&AppendTensors::cos_sin_cache,
            Tensor(nullptr, spec.table, {spec.capacity, rotary}, {rotary + spec.pad, 1}, device));
    } else if (rotary > 0) {
      for (ConstTensor AppendTensors::* table : {&AppendTensors::cos, &AppendTensors::sin})
        input(table, Tensor(nullptr, spec.table, {spec.capacity, rotary / 2}, {rotary / 2 + spec.pad, 1}, device));
    }
    if (spec.fp8) {
      const std::int64_t blocks = (spec.capacity + 127) / 128;
      input(&AppendTensors::k_descale, spec.slots ? Tensor(nullptr, DType::f32, {1}, device)
                                                  : Tensor(nullptr, DType::f32, {batch, hk, blocks}, device));
      input(&AppendTensors::v_descale, Tensor(nullptr, DType::f32, {1, hk}, device));
      for (const ConstTensor* t : {&tensors.k_descale, &tensors.v_descale}) make_positive(*t);
    }
    if (hq > 0) {
      input(&AppendTensors::q, new_tokens(hq, spec.dim_qk));
      if (spec.in_place) {
        tensors.q_out = new_tokens(hq, spec.dim_qk);
        tensors.q_out.data = const_cast<void*>(tensors.q.data);
        memory.back().output = &AppendTensors::q_out;
      } else {
        output(&AppendTensors::q_out, new_tokens(hq, spec.dim_qk));
      }
    }
  }

  AppendCase(AppendCase&&) = delete;  // tensors point into memory

  // Rotated elements are right to one rounding of the data's dtype and two of fp32, copied elements have the same bits,
  // and no other byte has changed.
  void expect_right() {
    for (std::size_t b = 0; b < spec.used.size(); ++b) {
      for (std::int32_t t = 0; t < spec.lengths[b]; ++t) {
        for (std::int64_t h = 0; h < spec.heads_kv; ++h) {
          if (spec.slots && !is_slot(place_of(b, t).key)) continue;
          row(tensors.k_new, tensors.k, b, t, h, spec.rotary_dim, true);
          row(tensors.v_new, tensors.v, b, t, h, 0, true);
        }
        for (std::int64_t h = 0; h < spec.heads_q; ++h) row(tensors.q, tensors.q_out, b, t, h, spec.rotary_dim, false);
      }
    }
    expect_untouched();
  }
  void expect_untouched() const {
    for (const Memory& m : memory)
      EXPECT_TRUE(m.bytes == m.before) << spec.name << ": tensor " << &m - memory.data() << " of " << memory.size();
  }
  // The bytes of all outputs, to be compared with those of another run.
  std::string output_bytes() const {
    std::string all;
    for (const Memory& m : memory)
      if (m.output) all.append(reinterpret_cast<const char*>(m.bytes.data()), m.bytes.size());
    return all;
  }

 private:
  template <class T>
  T at(const ConstTensor& t, std::int64_t i) const {
    return static_cast<const T*>(t.data)[i];
  }
  Memory& place(Tensor& t, bool poison) {
    std::int64_t last = 0;
    for (int i = 0; i < t.rank; ++i) last += (t.shape[i] - 1) * t.stride[i];
    const std::int64_t elements = t.elements() == 0 ? 0 : last + 1;
    Memory& m = memory.emplace_back();
    m.bytes.assign(static_cast<std::size_t>(elements) * size_of(t.dtype), std::byte{0xff});  // NaN
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; !poison && i < elements; ++i)
      if (i % (t.shape[t.rank - 1] + spec.pad) < t.shape[t.rank - 1])
        store_element(m.bytes.data(), t.dtype, i, normal(random_));
    t.data = m.bytes.data();
    m.before = m.bytes;
    return m;
  }
  void input(ConstTensor AppendTensors::* role, Tensor t) {
    place(t, false).input = role;
    tensors.*role = t;
  }
  void output(Tensor AppendTensors::* role, Tensor t) {
    place(t, true).output = role;
    tensors.*role = t;
  }
  template <class T>
  void index(ConstTensor AppendTensors::* role, std::initializer_list<std::int64_t> shape,
             const std::vector<T>& numbers, Device device) {
    Memory& m = memory.emplace_back();
    m.bytes.resize(numbers.size() * sizeof(T));
    if (!numbers.empty()) std::memcpy(m.bytes.data(), numbers.data(), m.bytes.size());
    m.before = m.bytes;
    m.input = role;
    tensors.*role = ConstTensor(m.bytes.data(), dtype_of<T>, shape, device);
  }
  void draw_slots(std::int64_t tokens, std::int64_t room, Device device) {
    const auto give = [&](ConstTensor AppendTensors::* role, const std::vector<std::int32_t>& numbers, bool wide) {
      if (wide)
        index(role, {tokens}, std::vector<std::int64_t>(numbers.begin(), numbers.end()), device);
      else
        index(role, {tokens}, numbers, device);
    };
    std::vector<std::int32_t> slots(static_cast<std::size_t>(room)), positions;
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random_);
    slots.resize(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (i % 5 == 2) slots[i] = -1 - static_cast<std::int32_t>(i);
      positions.push_back(static_cast<std::int32_t>(random_() % static_cast<unsigned>(spec.capacity)));
    }
    give(&AppendTensors::slot_mapping, slots, spec.wide_slots);
    if (spec.rotary_dim > 0) give(&AppendTensors::positions, positions, spec.wide_positions);
  }
  bool is_slot(std::int64_t key) const { return key >= 0 && key < tensors.k.shape[0] * spec.page_size; }
  NewToken place_of(std::size_t b, std::int64_t t) const {
    if (!spec.slots) return {spec.used[b] + t, spec.used[b] + t};
    return {index_at(tensors.slot_mapping, t), spec.rotary_dim > 0 ? index_at(tensors.positions, t) : 0};
  }

  // The value that an element had before the call.
  double original(const ConstTensor& t, std::int64_t at) const {
    for (const Memory& m : memory)
      if (m.bytes.data() == t.data) return double{load_element(m.before.data(), t.dtype, at)};
    ADD_FAILURE() << "the tensor is unknown";
    return 0;
  }
  std::int64_t token_offset(const ConstTensor& t, std::size_t b, std::int64_t i, std::int64_t h) const {
    const auto sb = static_cast<std::int64_t>(b);
    if (t.rank == 4) return sb * t.stride[0] + h * t.stride[1] + i * t.stride[2];
    if (spec.slots) return i * t.stride[0] + h * t.stride[1];
    return (at<std::int32_t>(tensors.cu_seqlens_q, sb) + i) * t.stride[0] + h * t.stride[1];
  }
  std::int64_t cache_offset(const ConstTensor& t, std::size_t b, std::int64_t key, std::int64_t h) const {
    const auto sb = static_cast<std::int64_t>(b);
    if (spec.page_size == 0) return sb * t.stride[0] + h * t.stride[1] + key * t.stride[2];
    const std::int64_t page =
        spec.slots ? key / spec.page_size
                   : at<std::int32_t>(tensors.page_table, sb * tensors.page_table.stride[0] + key / spec.page_size);
    return page * t.stride[0] + key % spec.page_size * t.stride[1] + h * t.stride[2];
  }
  void make_positive(const ConstTensor& t) {
    std::normal_distribution<float> normal;
    for (Memory& m : memory) {
      if (m.bytes.data() != t.data) continue;
      for (std::int64_t i = 0; i < t.elements(); ++i)
        store_element(m.bytes.data(), t.dtype, i, 0.1f + 0.1f * std::abs(normal(random_)));
      m.before = m.bytes;
    }
  }
  // The scale of a head's block of 128 keys.
  double factor(const ConstTensor& to, std::size_t b, std::int64_t h, std::int64_t key) const {
    if (to.dtype != DType::f8e4m3) return 1;
    const ConstTensor& t = to.data == tensors.k.data ? tensors.k_descale : tensors.v_descale;
    const std::int64_t at[3] = {static_cast<std::int64_t>(b), h, key / 128};
    std::int64_t offset = 0;
    for (int i = 0; i < t.rank; ++i) offset += (t.shape[i] > 1 ? at[i] : 0) * t.stride[i];
    return double{load_element(t.data, t.dtype, offset)};
  }
  // Judges a row, then restores the bytes that were there before.
  void row(const ConstTensor& from, const Tensor& to, std::size_t b, std::int64_t t, std::int64_t h,
           std::int64_t rotary, bool cached) {
    const auto [key, position] = place_of(b, t);
    const std::int64_t in = token_offset(from, b, t, h),
                       out = cached ? cache_offset(to, b, key, h) : token_offset(to, b, t, h), half = rotary / 2;
    Memory* m = nullptr;
    for (Memory& x : memory)
      if (x.bytes.data() == to.data) m = &x;
    const std::size_t size = size_of(to.dtype);
    for (std::int64_t d = 0; d < from.shape[from.rank - 1]; ++d) {
      const double f = cached ? factor(to, b, h, key) : 1, got = f * double{load_element(to.data, to.dtype, out + d)};
      if (d < rotary) {
        const std::int64_t pair = spec.interleaved ? d / 2 : d % half;
        const std::int64_t x = in + (spec.interleaved ? 2 * pair : pair), y = x + (spec.interleaved ? 1 : half);
        const bool second = spec.interleaved ? d % 2 == 1 : d >= half;
        const ConstTensor &cos = spec.joined ? tensors.cos_sin_cache : tensors.cos,
                          &sin = spec.joined ? tensors.cos_sin_cache : tensors.sin;
        const std::int64_t angle = position * cos.stride[0] + pair;
        const double c = original(cos, angle), s = original(sin, angle + (spec.joined ? half : 0));
        const double a = (second ? original(from, y) : original(from, x)) * c,
                     e = (second ? original(from, x) : -original(from, y)) * s;
        const double unit = to.dtype == DType::f32      ? 0x1p-24
                            : to.dtype == DType::f16    ? 0x1p-11
                            : to.dtype == DType::f8e4m3 ? 0x1p-4
                                                        : 0x1p-8;
        const double least = to.dtype == DType::f8e4m3 ? f * 0x1p-10 : 0x1p-25;
        ASSERT_NEAR(got, a + e, unit * std::abs(a + e) + 0x1p-23 * (std::abs(a) + std::abs(e)) + least)
            << spec.name << " sequence " << b << " token " << t << " head " << h << " element " << d;
      } else {
        const auto x = static_cast<float>(original(from, in + d));
        const double expected = to.dtype == DType::f8e4m3 ? f * double{to_float(divided(x, static_cast<float>(f)))}
                                : to.dtype == DType::f16  ? double{to_float(from_float<f16>(x))}
                                                          : double{x};
        ASSERT_EQ(got, expected) << spec.name << " sequence " << b << " token " << t << " head " << h << " element "
                                 << d;
      }
      std::memcpy(m->bytes.data() + static_cast<std::size_t>(out + d) * size,
                  m->before.data() + static_cast<std::size_t>(out + d) * size, size);
    }
  }

  std::mt19937 random_{7};
};

}  // namespace onepass::check
