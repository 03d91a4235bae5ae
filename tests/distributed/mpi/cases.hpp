// Calls that are made on one device, in float64, and on several ranks.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "onepass/context_parallel_attention.hpp"
#include "onepass/transport_mpi.hpp"

namespace onepass::test {

using context_parallel::Layout;
using context_parallel::Scheme;

struct Case {
  std::string name;
  Index length = 75;
  std::vector<Index> documents{};
  Attention options{};
  bool sinks = false, slopes = false, bias = false, bias_of_keys = false, mask = false, dlse = false;
  DType dtype = DType::f32;
  Index batch = 1, heads = 4, heads_kv = 2, dim = 16, dim_v = 24;
  unsigned draw = 0;
};

// Whole inputs, the same on every rank.
struct Inputs {
  Array q, k, v, dout, dlse, sinks, slopes, bias, mask;

  explicit Inputs(const Case& c, DType dtype) {
    const auto data = [&](Index heads, Index dim, unsigned seed, float spread) {
      return converted(random_array(c.dtype, {c.batch, heads, c.length, dim}, 100 * c.draw + seed, spread), dtype);
    };
    q = data(c.heads, c.dim, 1, 2), k = data(c.heads_kv, c.dim, 2, 1), v = data(c.heads_kv, c.dim_v, 3, 1);
    dout = data(c.heads, c.dim_v, 4, 1);
    const auto side = [&](std::vector<Index> shape, unsigned seed) {
      return random_array(DType::f32, std::move(shape), seed);
    };
    if (c.dlse) dlse = side({c.batch, c.heads, c.length}, 5);
    if (c.sinks) sinks = side({c.heads}, 6);
    if (c.slopes) {
      slopes = side({c.heads}, 7);
      for (std::size_t i = 0; i < slopes.count(); ++i) slopes.set(i, 0.2f * std::abs(slopes.at(i)));
    }
    if (c.bias) bias = side({1, c.heads, c.length, c.length}, 8);
    if (c.bias_of_keys) bias = side({1, 1, 1, c.length}, 9);
    if (c.mask) {
      mask = Array(DType::boolean, {1, 1, c.length, c.length});
      std::mt19937 draw(10);
      for (std::size_t i = 0; i < mask.count(); ++i) {
        const bool hidden_row = static_cast<Index>(i) / std::max<Index>(1, c.length) == 7;  // it sees no key
        mask.data()[i] = std::byte{draw() % 3 > 0 && !hidden_row};
      }
    }
  }
};

inline Results new_results(const Case& c, Index rows, DType dtype, const Inputs& in, Index bias_rows) {
  Results r;
  r.out = Array(dtype, {c.batch, c.heads, rows, c.dim_v});
  r.lse = Array(DType::f32, {c.batch, c.heads, rows});
  r.row_max = Array(DType::f32, {c.batch, c.heads, rows});
  r.dq = Array(dtype, {c.batch, c.heads, rows, c.dim});
  r.dk = Array(dtype, {c.batch, c.heads_kv, rows, c.dim});
  r.dv = Array(dtype, {c.batch, c.heads_kv, rows, c.dim_v});
  if (c.sinks) r.dsinks = Array(DType::f32, {c.heads});
  if (c.slopes) r.dslopes = Array(DType::f32, {c.heads});
  if (in.bias.given()) {
    std::vector<Index> shape = in.bias.shape();
    if (shape[2] != 1) shape[2] = bias_rows;
    r.dbias = Array(DType::f32, shape);
  }
  return r;
}

inline AttentionTensors tensors_of(Inputs& in, Results& r) {
  AttentionTensors t;
  t.q = in.q.tensor(), t.k = in.k.tensor(), t.v = in.v.tensor(), t.dout = in.dout.tensor(), t.dlse = in.dlse.tensor();
  t.sinks = in.sinks.tensor(), t.alibi_slopes = in.slopes.tensor(), t.bias = in.bias.tensor();
  t.bool_mask = in.mask.tensor();
  t.out = r.out.tensor(), t.lse = r.lse.tensor(), t.row_max = r.row_max.tensor();
  t.dq = r.dq.tensor(), t.dk = r.dk.tensor(), t.dv = r.dv.tensor();
  t.dsinks = r.dsinks.tensor(), t.dalibi_slopes = r.dslopes.tensor(), t.dbias = r.dbias.tensor();
  return t;
}
inline AttentionTensors without_gradients(AttentionTensors t) {
  t.dout = t.dlse = {};
  t.dq = t.dk = t.dv = t.dbias = t.dsinks = t.dalibi_slopes = {};
  return t;
}
inline AttentionTensors of_backward(AttentionTensors t) {
  t.row_max = {};
  return t;
}

// The rows and columns of a document.
inline AttentionTensors document_of(AttentionTensors t, context_parallel::Range rows) {
  const auto cut = [&](auto& x, std::size_t dim) {
    if (!x.given() || x.shape[dim] == 1) return;
    using Byte = std::conditional_t<std::is_same_v<std::decay_t<decltype(x)>, Tensor>, std::byte, const std::byte>;
    x.data = static_cast<Byte*>(x.data) + rows.begin * x.stride[dim] * static_cast<Index>(size_of(x.dtype));
    x.shape[dim] = rows.size();
  };
  cut(t.q, 2), cut(t.k, 2), cut(t.v, 2), cut(t.dout, 2), cut(t.dlse, 2), cut(t.out, 2), cut(t.lse, 2),
      cut(t.row_max, 2);
  cut(t.dq, 2), cut(t.dk, 2), cut(t.dv, 2);
  cut(t.bias, 2), cut(t.bias, 3), cut(t.bool_mask, 2), cut(t.bool_mask, 3), cut(t.dbias, 2), cut(t.dbias, 3);
  return t;
}

// By one device, a call for each document. implementation: "reference" is float64.
inline Results one_device(const Case& c, DType dtype, std::string_view implementation) {
  Inputs in(c, dtype);
  Results all = new_results(c, c.length, dtype, in, c.length);
  std::vector<Index> documents = c.documents;
  if (documents.empty()) documents = {0, c.length};
  const AttentionTensors whole = tensors_of(in, all);
  for (std::size_t d = 0; d + 1 < documents.size(); ++d) {
    const context_parallel::Range rows{documents[d], documents[d + 1]};
    if (rows.empty()) continue;
    AttentionTensors t = document_of(whole, rows);
    Results sums = new_results(c, 1, dtype, in, c.length);  // of this document
    if (t.dsinks.given()) t.dsinks = sums.dsinks.tensor();
    if (t.dalibi_slopes.given()) t.dalibi_slopes = sums.dslopes.tensor();
    Attention options = c.options;
    options.dropout_start = {static_cast<std::uint32_t>(d * static_cast<std::size_t>(c.batch)), 0, 0, 0};
    attention(without_gradients(t), options, {.executor = &serial_executor()}, implementation);
    attention_backward(of_backward(t), options, {.executor = &serial_executor()}, implementation);
    for (auto [to, from] : {std::pair{&all.dsinks, &sums.dsinks}, {&all.dslopes, &sums.dslopes}}) {
      for (std::size_t i = 0; i < to->count(); ++i) to->set(i, to->at(i) + from->at(i));
    }
  }
  return all;
}

// A rank's tensors, and its call.
struct Mine {
  Inputs in;
  Results results;
  AttentionTensors tensors;

  Mine(const Case& c, const Layout& layout, int rank) : in(c, c.dtype) {
    for (Array* x : {&in.q, &in.k, &in.v, &in.dout, &in.dlse, &in.bias, &in.mask}) {
      if (!x->given() || x->dtype() == DType::boolean) continue;
      *x = shard(*x, layout, rank);
    }
    if (in.mask.given()) shard_mask(layout, rank);
    results = new_results(c, layout.count(rank), c.dtype, in, layout.count(rank));
    tensors = tensors_of(in, results);
  }

  // ranks: a Transport, or a MeshTransport.
  template <class Ranks>
  void run(Ranks& ranks, const ContextParallel& how, const Case& c, Executor& executor = serial_executor()) {
    context_parallel_attention(ranks, how, without_gradients(tensors), c.options, {.executor = &executor});
    context_parallel_attention_backward(ranks, how, of_backward(tensors), c.options, {.executor = &executor});
  }

 private:
  void shard_mask(const Layout& layout, int rank) {
    Array mine(DType::boolean, {1, 1, layout.count(rank), layout.length()});
    each_element(in.mask.shape(), 2, layout.runs(rank),
                 [&](std::size_t from, std::size_t to) { mine.data()[to] = in.mask.data()[from]; });
    in.mask = std::move(mine);
  }
};

// All ranks as nodes of `within` ranks each.
class MpiMesh {
 public:
  explicit MpiMesh(int within) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_split(MPI_COMM_WORLD, rank_ / within, rank_, &node_);
    MPI_Comm_split(MPI_COMM_WORLD, rank_ % within, rank_, &place_);
    within_.emplace(node_), between_.emplace(place_);
  }
  ~MpiMesh() {
    within_.reset(), between_.reset();
    MPI_Comm_free(&node_), MPI_Comm_free(&place_);
  }
  int rank() const { return rank_; }
  MeshTransport transport() { return {*within_, *between_}; }

 private:
  int rank_ = 0;
  MPI_Comm node_ = MPI_COMM_NULL, place_ = MPI_COMM_NULL;
  std::optional<MpiTransport> within_{}, between_{};
};

// The whole results of all ranks, on every rank: rows in their places, sums added up.
inline Results together(Results& mine, const Case& c, const Layout& layout, int rank, MPI_Comm comm) {
  Results whole = new_results(c, c.length, c.dtype, Inputs(c, c.dtype), c.length);
  Results::each([&](const char* name, Array Results::* x) {
    Array &to = whole.*x, &from = mine.*x;
    if (!to.given()) return;
    std::vector<float> values(to.count());
    const std::string_view of = name;
    if (of == "dbias" ? to.shape()[2] != 1 : of != "dsinks" && of != "dslopes") {
      each_element(to.shape(), 2, layout.runs(rank), [&](std::size_t w, std::size_t m) { values[w] = from.at(m); });
    } else {
      for (std::size_t i = 0; i < to.count(); ++i) values[i] = from.at(i);
    }
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, comm);
    for (std::size_t i = 0; i < to.count(); ++i) to.set(i, values[i]);
  });
  return whole;
}

inline std::vector<std::pair<std::string, Layout>> layouts_of(Index length, Index ranks,
                                                              const std::vector<Index>& documents) {
  std::vector<std::pair<std::string, Layout>> found{{"contiguous", Layout::contiguous(length, ranks)},
                                                    {"zigzag", Layout::zigzag(length, ranks)}};
  if (!documents.empty()) found.emplace_back("documents", Layout::documents(documents, ranks));
  // Any cuts, any order; the last rank holds nothing.
  std::vector<Index> shares(static_cast<std::size_t>(ranks) + 1, 5);
  shares.front() = 0;
  for (std::size_t r = 1; r + 1 < shares.size(); ++r) shares[r] = std::min<Index>(5, 2 * static_cast<Index>(r));
  if (ranks > 1) shares[shares.size() - 2] = 5;
  found.emplace_back(
      "any", Layout({0, length / 5, length / 5, length / 2, length - length / 7, length}, {3, 1, 0, 4, 2}, shares));
  return found;
}

}  // namespace onepass::test
