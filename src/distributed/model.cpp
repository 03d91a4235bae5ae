// The costs of a scheme: work of each rank, bytes of each link, time and memory.
#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <string>

#include "base/text.hpp"
#include "distributed/layout.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

using Index = std::int64_t;
using Matrix = std::vector<std::vector<Index>>;

constexpr std::array<std::string_view, 3> kNames{"gather", "ring", "ulysses"};
constexpr std::array kSchemes{Scheme::gather, Scheme::ring, Scheme::ulysses};

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

// A layout and a shape, looked at once.
struct Case {
  const Layout& layout;
  const Visibility& visibility;
  const Shape& shape;
  Index ranks = layout.ranks();
  std::vector<std::vector<Piece>> runs{}, wanted{};
  std::vector<Index> count{};

  Case(const Layout& l, const Visibility& v, const Shape& s) : layout(l), visibility(v), shape(s) {
    for (Index r = 0; r < ranks; ++r) {
      runs.push_back(l.runs(r));
      wanted.push_back(gathered(l, v, r));
      count.push_back(l.count(r));
    }
  }

  Index per_key() const { return shape.batch * shape.heads_kv * (shape.dim_qk + shape.dim_v); }  // elements of K and V
  HeadShare heads(Index rank) const { return heads_of(shape.heads_q, shape.heads_kv, ranks, rank); }
  bool shares_heads() const {
    Index read = 0;
    for (Index r = 0; r < ranks; ++r) read += heads(r).heads_kv.size();
    return read > shape.heads_kv;
  }
  Index keys(Index source, Index rank) const {  // that travel
    Index n = 0;
    for (const Move& m : moves_between(runs[at(source)], wanted[at(rank)], wanted[at(rank)])) n += m.from.size();
    return n;
  }
  Index pairs(Index rank, Index source) const {
    Index n = 0;
    for (const Piece& q : runs[at(rank)]) {
      for (const Piece& k : runs[at(source)]) n += visibility.pairs(q.positions, k.positions, layout.length());
    }
    return n;
  }
  Index steps(Index source) const {
    for (Index step = ranks - 1; step > 0; --step) {
      if (keys(source, (source + step) % ranks) > 0) return step;
    }
    return 0;
  }
};

Matrix none(Index ranks) { return Matrix(at(ranks), std::vector<Index>(at(ranks))); }

// Keys go out, and their gradients in fp32 come home.
Matrix gather_bytes(const Case& c, bool backward) {
  Matrix bytes = none(c.ranks);
  for (Index s = 0; s < c.ranks; ++s) {
    for (Index r = 0; r < c.ranks; ++r) {
      if (r == s) continue;
      const Index elements = c.keys(s, r) * c.per_key();
      bytes[at(s)][at(r)] += elements * c.shape.bytes;
      if (backward) bytes[at(r)][at(s)] += elements * 4;
    }
  }
  return bytes;
}

// Shards go to the next rank, and gradients straight home.
Matrix ring_bytes(const Case& c, bool backward) {
  Matrix bytes = none(c.ranks);
  for (Index s = 0; s < c.ranks; ++s) {
    const Index elements = c.count[at(s)] * c.per_key();
    for (Index step = 0; step < c.steps(s); ++step) {
      bytes[at((s + step) % c.ranks)][at((s + step + 1) % c.ranks)] += elements * c.shape.bytes;
    }
    for (Index r = 0; backward && r < c.ranks; ++r) {
      if (r != s && c.keys(s, r) > 0) bytes[at(r)][at(s)] += elements * 4;
    }
  }
  return bytes;
}

// Rows go to the ranks of their heads, and results come back.
Matrix ulysses_bytes(const Case& c, bool backward) {
  Matrix bytes = none(c.ranks);
  const Shape& x = c.shape;
  const Index kv = x.dim_qk + x.dim_v;
  const bool shared = c.shares_heads();
  for (Index s = 0; s < c.ranks; ++s) {
    for (Index r = 0; r < c.ranks; ++r) {
      if (r == s) continue;
      const HeadShare h = c.heads(r);
      const Index rows = c.count[at(s)] * x.batch, q = h.heads.size(), k = h.heads_kv.size();
      bytes[at(s)][at(r)] += rows * (backward ? q * x.dim_v : q * x.dim_qk + k * kv) * x.bytes;
      const Index back =
          backward ? q * x.dim_qk * x.bytes + k * kv * (shared ? 4 : x.bytes) : q * (x.dim_v * x.bytes + 4);
      bytes[at(r)][at(s)] += rows * back;
    }
  }
  return bytes;
}

Matrix bytes_of(Scheme scheme, const Case& c, bool backward) {
  switch (scheme) {
    case Scheme::gather: return gather_bytes(c, backward);
    case Scheme::ring: return ring_bytes(c, backward);
    case Scheme::ulysses: return ulysses_bytes(c, backward);
  }
  throw Error(ErrorCode::bad_value, "scheme must be gather, ring or ulysses");
}

// Bytes that the busiest rank receives or sends.
Index busiest(const Matrix& bytes) {
  Index most = 0;
  for (std::size_t r = 0; r < bytes.size(); ++r) {
    Index in = 0;
    for (const auto& row : bytes) in += row[r];
    most = std::max({most, in, std::accumulate(bytes[r].begin(), bytes[r].end(), Index{0})});
  }
  return most;
}

double per_pair(const Shape& x, bool backward) {  // operations of a pair in one head
  const auto qk = static_cast<double>(x.dim_qk), v = static_cast<double>(x.dim_v);
  return static_cast<double>(x.batch) * (backward ? 2 * (3 * qk + 2 * v) : 2 * (qk + v));
}

double seconds(Scheme scheme, const Case& c, const Machine& machine, bool backward) {
  const double flops = backward ? machine.backward_flops : machine.forward_flops;
  const double pair = per_pair(c.shape, backward) / flops, heads = static_cast<double>(c.shape.heads_q);
  const bool alone = c.ranks == 1;
  const double sent = alone ? 0
                            : static_cast<double>(busiest(bytes_of(scheme, c, backward))) / machine.bytes_per_second +
                                  machine.seconds_per_exchange * (backward ? 2 : 1);
  if (scheme == Scheme::ring) {  // a step ends when its slowest rank has computed and its shard is there
    const double share = alone ? 1 : backward ? machine.ring_backward : machine.ring_forward;
    double total = 0;
    for (Index step = 0; step < c.ranks; ++step) {
      Index most = 0, rows = 0;
      for (Index r = 0; r < c.ranks; ++r) {
        const Index source = (r - step + c.ranks) % c.ranks;
        most = std::max(most, c.pairs(r, source));
        if (step < c.steps(source)) rows = std::max(rows, c.count[at(source)]);
      }
      const double bytes = static_cast<double>(rows * c.per_key() * (c.shape.bytes + (backward && step > 0 ? 4 : 0)));
      const double exchange = rows > 0 ? bytes / machine.bytes_per_second + machine.seconds_per_exchange : 0;
      total += std::max(static_cast<double>(most) * heads * pair / share, exchange);
    }
    return total;
  }
  double most = 0;
  const std::vector<Index> pairs = work(c.layout, c.visibility);
  const auto all = static_cast<double>(std::accumulate(pairs.begin(), pairs.end(), Index{0}));
  for (Index r = 0; r < c.ranks; ++r) {
    const double mine = scheme == Scheme::gather ? static_cast<double>(pairs[at(r)]) * heads
                                                 : all * static_cast<double>(c.heads(r).heads.size());
    most = std::max(most, mine);
  }
  return most * pair + sent;
}

// K and V with their fp32 gradients, on the rank that holds the most.
Index memory(Scheme scheme, const Case& c) {
  const Index most = *std::max_element(c.count.begin(), c.count.end()), each = c.shape.bytes + 4;
  Index keys = 2 * most;  // a ring has two shards at a time
  if (scheme == Scheme::gather) {
    for (const auto& wanted : c.wanted) keys = std::max(keys, most + (wanted.empty() ? 0 : wanted.back().rows.end));
  }
  if (scheme != Scheme::ulysses) return keys * c.per_key() * each;
  Index heads = 0;
  for (Index r = 0; r < c.ranks; ++r) heads = std::max(heads, c.heads(r).heads_kv.size());
  const Index per_head = c.shape.batch * (c.shape.dim_qk + c.shape.dim_v);
  return (c.layout.length() * heads + most * c.shape.heads_kv) * per_head * each;
}

}  // namespace

std::string_view name_of(Scheme scheme) {
  want(at(static_cast<Index>(scheme)) < kNames.size(), ErrorCode::bad_value, "scheme must be gather, ring or ulysses");
  return kNames[at(static_cast<Index>(scheme))];
}
Scheme scheme_from_name(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  want(found != kNames.end(), ErrorCode::bad_value, "scheme must be gather, ring or ulysses (got ", name, ")");
  return kSchemes[static_cast<std::size_t>(found - kNames.begin())];
}

std::vector<Index> work(const Layout& layout, const Visibility& visibility) {
  check_documents(visibility.documents, layout.length());
  std::vector<Index> pairs;
  for (Index r = 0; r < layout.ranks(); ++r) {
    Index mine = 0;
    for (const Piece& run : layout.runs(r)) {
      mine += visibility.pairs(run.positions, visibility.seen(run.positions, layout.length()), layout.length());
    }
    pairs.push_back(mine);
  }
  return pairs;
}

Matrix traffic(Scheme scheme, const Layout& layout, const Visibility& visibility, const Shape& shape, bool backward) {
  return bytes_of(scheme, {layout, visibility, shape}, backward);
}

std::vector<Estimate> estimates(const Layout& layout, const Visibility& visibility, const Shape& shape,
                                const Machine& machine) {
  const Case c(layout, visibility, shape);
  const std::vector<Index> pairs = work(layout, visibility);
  const auto all = static_cast<double>(std::accumulate(pairs.begin(), pairs.end(), Index{0}));
  const double each = all * static_cast<double>(shape.heads_q) / static_cast<double>(c.ranks);
  const double ideal =
      each * (per_pair(shape, false) / machine.forward_flops + per_pair(shape, true) / machine.backward_flops);
  std::vector<Estimate> found;
  found.reserve(std::size(kSchemes));
  for (const Scheme scheme : kSchemes) {
    found.push_back(
        {scheme, seconds(scheme, c, machine, false), seconds(scheme, c, machine, true), ideal, memory(scheme, c)});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Estimate& a, const Estimate& b) { return a.total() < b.total(); });
  return found;
}

}  // namespace onepass::inline v0::context_parallel
