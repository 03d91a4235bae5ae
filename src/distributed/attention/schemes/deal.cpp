#include "distributed/attention/schemes/deal.hpp"

#include "distributed/attention/exchange.hpp"

namespace onepass::inline v0::context_parallel {

Deal::Deal(const Job& job) : job_(job) {
  const Index heads = job.tensors.q.shape[1], heads_kv = job.tensors.k.shape[1];
  Index read = 0;
  for (Index r = 0; r < job.ranks(); ++r) {
    shares_.push_back(heads_of(heads, heads_kv, job.ranks(), r));
    read += shares_.back().heads_kv.size();
  }
  shared_ = read > heads_kv;
}

Tensor Deal::memory(DType dtype, Heads kind, Index dim) {
  const std::initializer_list<Index> shape{job_.tensors.q.shape[0], mine(kind).size(), job_.how.layout.length(), dim};
  return memory_.emplace_back(dtype, shape, job_.device(), job_.launch).tensor();
}

std::vector<ConstTensor> Deal::to_heads(const std::vector<Rows>& given) {
  Lists out(shares_.size());
  ComingLists in(shares_.size());
  for (Index r = 0; r < job_.ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    for (const auto& [t, kind] : given) {
      out[at].push_back(slice(t, 1, of(r, kind)));
      in[at].push_back({t.dtype, {t.shape[0], mine(kind).size(), job_.how.layout.count(r), t.shape[3]}});
    }
  }
  const Arrived arrived = exchange(job_.transport, out, in, job_.device(), job_.launch);
  std::vector<ConstTensor> all;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Tensor whole = memory(given[i].tensor.dtype, given[i].kind, given[i].tensor.shape[3]);
    for (Index r = 0; r < job_.ranks(); ++r) {
      const ConstTensor& from = r == job_.me() ? out[static_cast<std::size_t>(r)][i] : arrived.from(r)[i];
      for (const Piece& piece : pieces(r))
        copy(rows_of(from, piece.rows), rows_of(whole, piece.positions), job_.launch);
    }
    all.emplace_back(whole);
  }
  return all;
}

void Deal::to_rows(const std::vector<Results>& given) const {
  Lists out(shares_.size());
  ComingLists in(shares_.size());
  const std::vector<Piece> here = pieces(job_.me());
  for (Index r = 0; r < job_.ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    for (const Results& x : given) {
      for (const Piece& piece : pieces(r)) out[at].push_back(rows_of(x.whole, piece.positions));
      for (const Piece& piece : here)
        in[at].push_back(
            {x.whole.dtype, {x.whole.shape[0], of(r, x.kind).size(), piece.rows.size(), x.whole.shape[3]}});
    }
  }
  const Arrived arrived = exchange(job_.transport, out, in, job_.device(), job_.launch);
  for (Index r = 0; r < job_.ranks(); ++r) {
    const auto& come = r == job_.me() ? out[static_cast<std::size_t>(r)] : arrived.from(r);
    std::size_t next = 0;
    for (const Results& x : given) {
      for (const Piece& piece : here) {
        const Tensor to = rows_of(slice(x.rows, 1, of(r, x.kind)), piece.rows);
        x.add ? add(come[next++], to, job_.launch) : copy(come[next++], to, job_.launch);
      }
    }
  }
}

}  // namespace onepass::inline v0::context_parallel
