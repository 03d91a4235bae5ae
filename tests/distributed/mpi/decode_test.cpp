// Decoding from a cache whose keys are spread over the ranks, beside one device that has all keys.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "arrays.hpp"
#include "onepass/context_parallel_attention.hpp"
#include "onepass/transport_mpi.hpp"
#include "tests.hpp"

namespace onepass::test {
namespace {

constexpr Index kBatch = 3, kDim = 32, kDimV = 24, kCapacity = 64, kPage = 8;
constexpr std::array<Index, kBatch> kLengths{37, 5, 64};

struct Case {
  DType dtype = DType::f32;
  Index heads = 8, heads_kv = 2, rows = 1;
  bool sinks = false, pages = false;
  float softcap = 0;
};

// The cache of one sequence's keys in their order, with NaN behind them; pages are dealt out backwards.
struct Cache {
  Array k, v, used, table;

  Cache(const Case& c, bool pages) : used(DType::i32, {kBatch}), table(DType::i32, {kBatch, kCapacity / kPage}) {
    const Index all = kBatch * kCapacity / kPage;
    const auto shape = [&](Index dim) {
      return pages ? std::vector<Index>{all, kPage, c.heads_kv, dim}
                   : std::vector<Index>{kBatch, c.heads_kv, kCapacity, dim};
    };
    for (const auto& [x, dim] : {std::pair{&k, kDim}, {&v, kDimV}}) {
      *x = Array(c.dtype, shape(dim));
      for (std::size_t i = 0; i < x->count(); ++i) x->set(i, std::numeric_limits<float>::quiet_NaN());
    }
    for (Index i = 0; i < all; ++i) number(table, i) = static_cast<std::int32_t>(all - 1 - i);
    for (Index b = 0; b < kBatch; ++b) number(used, b) = 0;
  }
  static std::int32_t& number(Array& x, Index i) { return reinterpret_cast<std::int32_t*>(x.data())[i]; }

  // Takes key `from` of the whole cache, [batch, heads_kv, capacity, dim], as the next one of the sequence.
  void append(const Case& c, Index b, Index from, const Array& all_k, const Array& all_v, bool pages) {
    const Index at = number(used, b)++;
    for (const auto& [x, all, dim] : {std::tuple{&k, &all_k, kDim}, {&v, &all_v, kDimV}}) {
      for (Index h = 0; h < c.heads_kv; ++h) {
        const Index page = number(table, b * kCapacity / kPage + at / kPage);
        const Index to = pages ? (page * kPage + at % kPage) * c.heads_kv + h : (b * c.heads_kv + h) * kCapacity + at;
        for (Index d = 0; d < dim; ++d)
          x->set(static_cast<std::size_t>(to * dim + d),
                 all->at(static_cast<std::size_t>(((b * c.heads_kv + h) * kCapacity + from) * dim + d)));
      }
    }
  }
};

// The largest difference from one device's results, in units of the last place of out's dtype near 1.
bool is_right(const Case& c, Transport& transport) {
  const int ranks = transport.ranks(), me = transport.rank();
  Array q = converted(random_array(c.dtype, {kBatch, c.heads, c.rows, kDim}, 1, 2), c.dtype);
  const Array k = random_array(c.dtype, {kBatch, c.heads_kv, kCapacity, kDim}, 2);
  const Array v = random_array(c.dtype, {kBatch, c.heads_kv, kCapacity, kDimV}, 3);
  Array sinks = random_array(DType::f32, {c.heads}, 4);
  Cache whole(c, false), mine(c, c.pages);
  Array newest(DType::i32, {kBatch});
  std::mt19937 draw(5);
  for (Index b = 0; b < kBatch; ++b) {
    const auto owner = static_cast<int>(draw() % static_cast<unsigned>(ranks));
    Cache::number(newest, b) = owner;
    for (Index j = 0; j < kLengths[static_cast<std::size_t>(b)]; ++j) {
      const bool is_new = j >= kLengths[static_cast<std::size_t>(b)] - c.rows;
      const auto drawn = static_cast<int>(draw() % static_cast<unsigned>(ranks));
      const int rank = is_new && c.rows > 1 ? owner : drawn;
      whole.append(c, b, j, k, v, false);
      if (rank == me) mine.append(c, b, j, k, v, c.pages);
    }
  }
  const auto call = [&](Cache& cache, bool pages, Array& out, Array& lse, Array& row_max) {
    AttentionTensors t{
        .q = q.tensor(), .k = cache.k.tensor(), .v = cache.v.tensor(), .out = out.tensor(), .lse = lse.tensor()};
    t.row_max = row_max.tensor();
    t.seqused_k = cache.used.tensor();
    if (pages) t.page_table = cache.table.tensor();
    if (c.sinks) t.sinks = sinks.tensor();
    return t;
  };
  Array one(DType::f32, {kBatch, c.heads, c.rows, kDimV}), one_lse(DType::f32, {kBatch, c.heads, c.rows}),
      one_max(DType::f32, {kBatch, c.heads, c.rows});
  attention(call(whole, false, one, one_lse, one_max), {.band = {.causal = c.rows > 1}, .softcap = c.softcap},
            {.executor = &serial_executor()});
  const auto heads = decoded_heads(c.heads, ranks, me);
  Array out(c.dtype, {kBatch, heads.size(), c.rows, kDimV}), lse(DType::f32, {kBatch, heads.size(), c.rows}),
      row_max(DType::f32, {kBatch, heads.size(), c.rows});
  context_parallel_decode(transport, call(mine, c.pages, out, lse, row_max), c.rows > 1 ? newest.tensor() : Tensor{},
                          {.softcap = c.softcap}, {.executor = &serial_executor()});
  double worst = 0;
  const double unit = c.dtype == DType::f32 ? 4e-6 : 1.0 / 256;
  const auto compare = [&](const Array& x, const Array& right, Index dim, double scale) {
    for (Index b = 0; b < kBatch; ++b) {
      for (Index i = 0; i < heads.size() * c.rows * dim; ++i) {
        const double r = right.at(static_cast<std::size_t>((b * c.heads + heads.begin) * c.rows * dim + i));
        const double error = std::abs(x.at(static_cast<std::size_t>(b * heads.size() * c.rows * dim + i)) - r);
        worst = std::max(worst, std::isfinite(error) ? error / (scale * std::max(1.0, std::abs(r))) : 1e9);
      }
    }
  };
  compare(out, one, kDimV, unit), compare(lse, one_lse, 1, 4e-6);
  compare(row_max, one_max, 1, c.rows == 1 ? 1e-9 : 1e-6);  // one row: the same bits
  if (worst > 1)
    std::printf("rank %d of %d: heads %ld rows %ld pages %d sinks %d: %g units\n", me, ranks, long(c.heads),
                long(c.rows), c.pages, c.sinks, worst);
  return worst <= 1;
}

}  // namespace

bool decoding() {
  MpiTransport transport(MPI_COMM_WORLD);
  bool right = true;
  for (const Index rows : {1, 4}) {
    for (const bool pages : {false, true}) {
      right &= is_right({.rows = rows, .pages = pages}, transport);
      right &= is_right({.heads = 5, .heads_kv = 1, .rows = rows, .sinks = true, .pages = pages}, transport);
      right &= is_right({.dtype = DType::bf16, .rows = rows, .sinks = true, .pages = pages, .softcap = 5}, transport);
    }
  }
  return right & is_right({.heads = 1, .heads_kv = 1, .rows = 2}, transport);  // ranks without heads
}

bool decoding_differs() {
  MpiTransport transport(MPI_COMM_WORLD);
  const int last = transport.ranks() - 1;
  bool right = true;
  const auto expect = [&](const std::string& wanted, Index rows, const auto& change) {
    const Case c{.rows = rows};
    Cache cache(c, false);
    Array q(DType::f32, {kBatch, c.heads, rows, kDim}), newest(DType::i32, {kBatch});
    const auto heads = decoded_heads(c.heads, transport.ranks(), transport.rank());
    Array out(DType::f32, {kBatch, heads.size(), rows, kDimV});
    for (std::size_t i = 0; i < out.count(); ++i) out.set(i, 7);
    AttentionTensors t{.q = q.tensor(), .k = cache.k.tensor(), .v = cache.v.tensor(), .out = out.tensor()};
    t.seqused_k = cache.used.tensor();
    ConstTensor owners = newest.tensor();
    Attention options;
    if (transport.rank() == last) change(t, owners, options);
    std::string heard = "nothing was thrown";
    try {
      context_parallel_decode(transport, t, owners, options);
    } catch (const Error& error) {
      heard = error.what();
    }
    if (heard != wanted)
      std::printf("rank %d heard: %s\n  wanted: %s\n", transport.rank(), heard.c_str(), wanted.c_str());
    right &= heard == wanted;
    for (std::size_t i = 0; i < out.count(); ++i) right &= out.at(i) == 7;
  };
  const std::string who = "rank " + std::to_string(last) + ": ";
  expect(who + "newest must be given where q has 2 rows", 2, [](auto&, auto& newest, auto&) { newest = {}; });
  expect(who + "newest must be int32 of shape [3] (got int32 of shape [2])", 2,
         [](auto&, auto& newest, auto&) { newest.shape[0] = 2; });
  expect(who + "seqused_k must be given", 1, [](auto& t, auto&, auto&) { t.seqused_k = {}; });
  expect(who + "row_max must not share memory with out", 1, [](auto& t, auto&, auto&) {
    t.row_max = Tensor(t.out.data, DType::f32, {t.out.shape[0], t.out.shape[1], t.out.shape[2]});
  });
  expect(who + "context_parallel_decode does not support a band", 1,
         [](auto&, auto&, auto& options) { options.band.causal = true; });
  expect("options must be the same on all ranks (rank 0 has scale default, softcap 0, rank " + std::to_string(last) +
             " has scale default, softcap 2)",
         1, [](auto&, auto&, auto& options) { options.softcap = 2; });
  return right;
}

}  // namespace onepass::test
