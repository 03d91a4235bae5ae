// With batch_invariant a row's bits depend on its q, the keys and values that it sees, and the options. A prompt as one
// call without a cache is compared with the same rows in random chunks, batches, pages, layouts, bounds and numbers of
// threads. Slots without a key hold NaN.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "algebra/numerics.hpp"
#include "onepass/attention.hpp"
#include "problem/tensors.hpp"

namespace onepass::one_result {

struct Random {
  std::mt19937_64 engine;
  std::int64_t among(std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(engine);
  }
  bool flip() { return among(0, 1) == 1; }
  bool rarely() { return among(0, 4) == 0; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[among(0, static_cast<std::int64_t>(values.size()) - 1)];
  }
};

// Numbers of a dtype.
struct Numbers {
  DType dtype;
  std::vector<std::byte> bytes;
  Numbers(DType type, std::int64_t count, float fill = NAN)
      : dtype(type), bytes(static_cast<std::size_t>(count) * size_of(type)) {
    for (std::int64_t i = 0; i < count; ++i) set(i, fill);
  }
  void set(std::int64_t i, float x) { store_element(bytes.data(), dtype, i, x); }
  void copy(std::int64_t to, const Numbers& from, std::int64_t at, std::int64_t count) {
    const std::size_t size = size_of(dtype);
    const auto first = [size](const Numbers& numbers, std::int64_t i) {
      return numbers.bytes.begin() + i * static_cast<std::ptrdiff_t>(size);
    };
    std::copy(first(from, at), first(from, at + count), bytes.begin() + to * static_cast<std::ptrdiff_t>(size));
  }
  void draw(Random& random, float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(bytes.size() / size_of(dtype)); ++i)
      set(i, normal(random.engine));
  }
};

// Rows of one sequence, [token][head][dim], and what the call gave for them.
struct Sample {
  std::int64_t rows, keys, heads_q, heads_kv, dim_qk, dim_v;
  DType dtype;
  Numbers q, k, v;
  Sample(Random& r, std::int64_t m, std::int64_t n, std::int64_t hq, std::int64_t hk, std::int64_t dqk, std::int64_t dv,
         DType type)
      : rows(m),
        keys(n),
        heads_q(hq),
        heads_kv(hk),
        dim_qk(dqk),
        dim_v(dv),
        dtype(type),
        q(type, m * hq * dqk),
        k(type, n * hk * dqk),
        v(type, n * hk * dv) {
    q.draw(r, 2), k.draw(r, 1), v.draw(r, 1);
  }
  // Values that are not finite reach the rows that see them.
  void spoil(Random& r) {
    for (int i = 0; keys > 0 && i < 3; ++i) v.set(r.among(0, keys * heads_kv * dim_v - 1), r.flip() ? NAN : INFINITY);
  }
};

struct Result {
  Numbers out;
  std::vector<float> lse, entropy;  // [head][token]; entropies are empty where they are not asked for
};

// The rows of several sequences in one call.
struct Part {
  const Sample* sample;
  std::int64_t first, rows, keys;  // rows [first, first + rows), which see the first `keys` keys
};

enum class Keys { dense, packed, cache, pages };

struct Call {
  Attention attention;
  Keys keys = Keys::dense;
  std::int64_t page_size = 16, spare = 0;
  bool heads_first = false, entropy = false;
  int threads = 1;
  std::string isa;
};

// attend(tensors, call): the call of attention, on tensors in host memory.
template <class Attend>
Result run(Random& r, const std::vector<Part>& parts, const Call& call, const Attend& attend) {
  const Sample& s = *parts[0].sample;
  const auto batch = static_cast<std::int64_t>(parts.size());
  std::vector<std::int32_t> cu_q{0}, cu_k{0}, used;
  std::int64_t longest_q = 0, longest = 0;
  for (const Part& p : parts) {
    cu_q.push_back(cu_q.back() + static_cast<std::int32_t>(p.rows));
    cu_k.push_back(cu_k.back() + static_cast<std::int32_t>(p.keys));
    used.push_back(static_cast<std::int32_t>(p.keys));
    longest_q = std::max(longest_q, p.rows), longest = std::max(longest, p.keys);
  }
  const std::int64_t total = cu_q.back(), room = longest + call.spare;
  Numbers q(s.dtype, total * s.heads_q * s.dim_qk);
  for (std::int64_t b = 0; b < batch; ++b)
    q.copy(cu_q[static_cast<std::size_t>(b)] * s.heads_q * s.dim_qk, parts[static_cast<std::size_t>(b)].sample->q,
           parts[static_cast<std::size_t>(b)].first * s.heads_q * s.dim_qk,
           parts[static_cast<std::size_t>(b)].rows * s.heads_q * s.dim_qk);

  Tensors t;
  const std::int64_t per = (room + call.page_size - 1) / call.page_size;
  const std::int64_t pages = batch * per + 2, size = call.keys == Keys::pages ? call.page_size : room;
  const std::int64_t outer = call.keys == Keys::pages ? pages : batch;
  std::vector<std::int32_t> table(static_cast<std::size_t>(batch * per), -1), order;
  for (std::int64_t i = 0; i < pages; ++i) order.push_back(static_cast<std::int32_t>(i));
  std::shuffle(order.begin(), order.end(), r.engine);
  // Tokens of k or v: [outer][size][heads][dim], or heads before tokens.
  const auto place = [&](const Numbers Sample::* member, std::int64_t dim, ConstTensor& to) {
    const std::int64_t heads = s.heads_kv;
    const bool packed = call.keys == Keys::packed;
    auto memory = std::make_shared<Numbers>(s.dtype, (packed ? cu_k.back() : outer * size) * heads * dim);
    for (std::int64_t b = 0; b < batch; ++b) {
      const Part& part = parts[static_cast<std::size_t>(b)];
      for (std::int64_t j = 0; j < part.keys; ++j) {
        std::int64_t block = b, at = j;
        if (call.keys == Keys::pages) {
          block = order[static_cast<std::size_t>(b * per + j / size)], at = j % size;
          table[static_cast<std::size_t>(b * per + j / size)] = static_cast<std::int32_t>(block);
        }
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t where = packed             ? (cu_k[static_cast<std::size_t>(b)] + j) * heads + h
                                     : call.heads_first ? (block * heads + h) * size + at
                                                        : (block * size + at) * heads + h;
          memory->copy(where * dim, part.sample->*member, (j * heads + h) * dim, dim);
        }
      }
    }
    const std::int64_t head = (call.heads_first ? size : 1) * dim, token = (call.heads_first ? 1 : heads) * dim;
    if (packed)
      to = ConstTensor(memory->bytes.data(), s.dtype, {cu_k.back(), heads, dim});
    else if (call.keys == Keys::pages)
      to = ConstTensor(memory->bytes.data(), s.dtype, {outer, size, heads, dim}, {size * heads * dim, token, head, 1});
    else
      to = ConstTensor(memory->bytes.data(), s.dtype, {outer, heads, size, dim}, {size * heads * dim, head, token, 1});
    return memory;
  };
  const auto k = place(&Sample::k, s.dim_qk, t.k), v = place(&Sample::v, s.dim_v, t.v);
  Result result{Numbers(s.dtype, total * s.heads_q * s.dim_v),
                std::vector<float>(static_cast<std::size_t>(total * s.heads_q)),
                std::vector<float>(static_cast<std::size_t>(call.entropy ? total * s.heads_q : 0))};
  if (call.keys == Keys::dense) {
    t.q = ConstTensor(q.bytes.data(), s.dtype, {1, s.heads_q, total, s.dim_qk}, {0, s.dim_qk, s.heads_q * s.dim_qk, 1});
    t.out =
        Tensor(result.out.bytes.data(), s.dtype, {1, s.heads_q, total, s.dim_v}, {0, s.dim_v, s.heads_q * s.dim_v, 1});
    t.lse = Tensor(result.lse.data(), DType::f32, {1, s.heads_q, total});
    if (call.entropy) t.entropy = Tensor(result.entropy.data(), DType::f32, {1, s.heads_q, total});
  } else {
    t.q = ConstTensor(q.bytes.data(), s.dtype, {total, s.heads_q, s.dim_qk});
    t.out = Tensor(result.out.bytes.data(), s.dtype, {total, s.heads_q, s.dim_v});
    t.lse = Tensor(result.lse.data(), DType::f32, {s.heads_q, total});
    if (call.entropy) t.entropy = Tensor(result.entropy.data(), DType::f32, {s.heads_q, total});
    t.cu_seqlens_q = ConstTensor(cu_q.data(), DType::i32, {batch + 1});
    if (call.keys == Keys::packed)
      t.cu_seqlens_k = ConstTensor(cu_k.data(), DType::i32, {batch + 1});
    else
      t.seqused_k = ConstTensor(used.data(), DType::i32, {batch});
    if (call.keys == Keys::pages) t.page_table = ConstTensor(table.data(), DType::i32, {batch, per});
  }
  std::vector<float> slopes, sinks;
  for (std::int64_t h = 0; h < s.heads_q; ++h)
    slopes.push_back(0.01f * static_cast<float>(h + 1)), sinks.push_back(1.5f);
  if (call.attention.band.causal && s.dim_v % 3 == 0)
    t.alibi_slopes = ConstTensor(slopes.data(), DType::f32, {s.heads_q});
  if (s.dim_v % 2 == 0) t.sinks = ConstTensor(sinks.data(), DType::f32, {s.heads_q});
  attend(t, call);
  return result;
}

// Returns true if rows of `got` from `at` on are those of `expected` from `first` on. NaN is NaN.
inline bool same(const Sample& s, const Result& expected, std::int64_t of_expected, std::int64_t first,
                 const Result& got, std::int64_t of_got, std::int64_t at, std::int64_t rows) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t h = 0; h < s.heads_q; ++h) {
      for (const auto member : {&Result::lse, &Result::entropy}) {
        if ((expected.*member).empty()) continue;
        const float x = (expected.*member)[static_cast<std::size_t>(h * of_expected + first + i)],
                    y = (got.*member)[static_cast<std::size_t>(h * of_got + at + i)];
        if (std::memcmp(&x, &y, 4) != 0 && !(std::isnan(x) && std::isnan(y))) return false;
      }
      for (std::int64_t d = 0; d < s.dim_v; ++d) {
        const float a = load_element(expected.out.bytes.data(), s.dtype, ((first + i) * s.heads_q + h) * s.dim_v + d),
                    b = load_element(got.out.bytes.data(), s.dtype, ((at + i) * s.heads_q + h) * s.dim_v + d);
        if (std::memcmp(&a, &b, 4) != 0 && !(std::isnan(a) && std::isnan(b))) return false;
      }
    }
  }
  return true;
}

// The space of random calls. many: head dims of v of their own, softcaps and scales; a device compiles a kernel for
// each. special: some values are not finite. entropies: some calls ask for them.
struct Space {
  std::initializer_list<DType> dtypes;
  std::initializer_list<std::int64_t> dims;
  bool many, special, entropies;
};

// Random calls.
template <class Attend>
void expect_one_result(int calls, const std::string& isa, const Space& space, const Attend& attend,
                       unsigned seed = 17) {
  Random r{std::mt19937_64(seed)};
  for (int done = 0; done < calls;) {
    const std::int64_t heads_kv = r.among(1, 2), heads_q = heads_kv * r.one_of<std::int64_t>({1, 2, 4, 5, 7});
    const std::int64_t keys = r.flip() ? r.among(1, 400) : r.among(400, 3300);
    const std::int64_t rows =
        r.flip() ? std::min<std::int64_t>(keys, r.among(1, 40)) : std::min<std::int64_t>(keys, 300);
    const std::int64_t dim_qk = r.one_of(space.dims), dim_v = !space.many || r.flip() ? dim_qk : r.among(1, 70);
    const DType dtype = r.one_of(space.dtypes);
    Sample s(r, rows, keys, heads_q, heads_kv, dim_qk, dim_v, dtype);
    if (space.special && r.rarely()) s.spoil(r);
    Call call;
    call.isa = isa;
    call.attention.batch_invariant = true;
    call.entropy = space.entropies && r.flip();
    const bool causal = !r.rarely();
    if (causal) call.attention.band = {.causal = true, .align = Align::bottom_right};
    if (causal && r.rarely()) call.attention.band.left = r.among(0, 1500);
    if (space.many && r.rarely()) call.attention.softcap = 20;
    if (space.many && r.rarely()) call.attention.scale = r.one_of({-0.2, 0.05, 3.0});
    const Result whole = run(r, {{&s, 0, rows, keys}}, call, attend);

    for (int variant = 0; variant < 10 && done < calls; ++variant, ++done) {
      call.keys = r.one_of({Keys::packed, Keys::cache, Keys::pages, Keys::pages});
      call.page_size = r.one_of<std::int64_t>({1, 3, 16, 32, 64, 100, 256});
      call.spare = r.flip() ? 0 : r.among(0, 3000);
      call.heads_first = r.flip();
      call.threads = static_cast<int>(r.among(1, 3));
      const std::int64_t count = std::min(rows, r.one_of<std::int64_t>({1, 1, 2, 4, 5, 17, 100, 300}));
      const std::int64_t first = r.among(0, rows - count);
      std::vector<Sample> others;
      others.reserve(3);
      std::vector<Part> parts{{&s, first, count, causal ? keys - (rows - first - count) : keys}};
      std::int64_t before = 0;
      for (std::int64_t i = r.among(0, 3); i > 0; --i) {
        const std::int64_t n = r.among(0, 500), m = std::min(n, r.one_of<std::int64_t>({0, 1, 4, 5, 17, 300}));
        others.emplace_back(r, m, n, heads_q, heads_kv, dim_qk, dim_v, dtype);
        if (space.special && r.rarely()) others.back().spoil(r);
        const Part other{&others.back(), 0, m, n};
        if (r.flip())
          parts.push_back(other);
        else
          parts.insert(parts.begin(), other), before += m;
      }
      std::int64_t total = 0;
      for (const Part& p : parts) total += p.rows;
      const Result got = run(r, parts, call, attend);
      ASSERT_TRUE(same(s, whole, rows, first, got, total, before, count))
          << "call " << done << ": " << count << " rows from " << first << " of " << rows << ", " << keys
          << " keys, heads " << heads_q << "/" << heads_kv << ", d " << dim_qk << "/" << dim_v << " " << name_of(dtype)
          << ", keys in form " << static_cast<int>(call.keys) << ", pages of " << call.page_size << ", spare "
          << call.spare << ", " << parts.size() << " sequences, causal " << causal << ", window "
          << call.attention.band.left << ", softcap " << call.attention.softcap << ", scale "
          << call.attention.scale.value_or(0) << ", entropies " << call.entropy;
    }
  }
}

}  // namespace onepass::one_result
