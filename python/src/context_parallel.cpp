#include "parts.hpp"

#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "onepass/context_parallel.hpp"

namespace onepass::python {
namespace {

namespace nb = nanobind;
namespace cp = context_parallel;
using namespace nb::literals;
using Index = std::int64_t;
using Pair = std::pair<Index, Index>;
using Indices = std::vector<Index>;

Pair pair_of(cp::Range r) { return {r.begin, r.end}; }

std::vector<std::pair<Pair, Pair>> pairs_of(const std::vector<cp::Piece>& pieces) {
  std::vector<std::pair<Pair, Pair>> all;
  for (const cp::Piece& piece : pieces) all.emplace_back(pair_of(piece.positions), pair_of(piece.rows));
  return all;
}

std::vector<cp::Node> nodes_from(const std::vector<Pair>& given) {
  std::vector<cp::Node> nodes;
  for (const auto& [height, index] : given) nodes.push_back({height, index});
  return nodes;
}
std::vector<Pair> pairs_of(const std::vector<cp::Node>& nodes) {
  std::vector<Pair> all;
  for (const cp::Node& node : nodes) all.emplace_back(node.height, node.index);
  return all;
}

nb::tuple sum(Index count, const std::vector<Pair>& given) {
  const cp::Sum found = cp::sum(count, nodes_from(given));
  std::vector<std::tuple<Index, Index, Index>> additions;
  for (const auto& a : found.additions) additions.emplace_back(a.to, a.from, a.after);
  return nb::make_tuple(additions, pairs_of(found.nodes), found.slots);
}

std::vector<std::pair<Pair, Pair>> moves(const cp::Layout& layout, const cp::Visibility& visibility, Index source,
                                         Index rank, std::optional<Pair> node) {
  std::optional<cp::Node> of;
  if (node) of = cp::Node{node->first, node->second};
  std::vector<std::pair<Pair, Pair>> all;
  for (const cp::Move& move : cp::moves(layout, visibility, source, rank, of)) {
    all.emplace_back(pair_of(move.from), pair_of(move.to));
  }
  return all;
}

std::vector<std::pair<Pair, Pair>> pairs_of(const std::vector<cp::HeadShare>& shares) {
  std::vector<std::pair<Pair, Pair>> all;
  for (const cp::HeadShare& share : shares) all.emplace_back(pair_of(share.heads), pair_of(share.heads_kv));
  return all;
}

// (name, seconds of a forward, of a backward, of both if nothing were sent, bytes), the fastest first.
std::vector<std::tuple<std::string, double, double, double, Index>> estimates(
    const cp::Layout& layout, const cp::Visibility& visibility,
    const std::tuple<Index, Index, Index, Index, Index, Index>& shape,
    std::optional<std::pair<double, double>> machine) {
  const auto& [batch, heads_q, heads_kv, dim_qk, dim_v, bytes] = shape;
  cp::Machine of;
  if (machine) {
    of.forward_flops = of.backward_flops = machine->first;
    of.bytes_per_second = machine->second;
  }
  std::vector<std::tuple<std::string, double, double, double, Index>> all;
  for (const cp::Estimate& e :
       cp::estimates(layout, visibility, {batch, heads_q, heads_kv, dim_qk, dim_v, bytes}, of)) {
    all.emplace_back(cp::name_of(e.scheme), e.forward, e.backward, e.ideal, e.memory);
  }
  return all;
}

void add_layout(nb::module_& m) {
  using cp::Layout;
  nb::class_<Layout>(m, "Layout")
      .def(nb::init<Indices, Indices, Indices>(), "cuts"_a, "order"_a, "shares"_a)
      .def_static("contiguous", &Layout::contiguous, "length"_a, "ranks"_a, "units"_a, "multiple"_a)
      .def_static("zigzag", &Layout::zigzag, "length"_a, "ranks"_a, "units"_a, "multiple"_a)
      .def_static("documents", &Layout::documents, "documents"_a, "ranks"_a, "multiple"_a)
      .def_prop_ro("ranks", &Layout::ranks)
      .def_prop_ro("length", &Layout::length)
      .def_prop_ro("cuts", [](const Layout& x) { return x.cuts(); })
      .def_prop_ro("order", [](const Layout& x) { return x.order(); })
      .def_prop_ro("shares", [](const Layout& x) { return x.shares(); })
      .def(
          "runs", [](const Layout& x, Index rank) { return pairs_of(x.runs(rank)); }, "rank"_a)
      .def(
          "units", [](const Layout& x, Index rank) { return pairs_of(x.units(rank)); }, "rank"_a)
      .def("leaves", &Layout::leaves, "rank"_a)
      .def("count", &Layout::count, "rank"_a);
}

void add_part(nb::module_& m) {
  using cp::Part;
  const auto range = [](cp::Range Part::* field) { return [field](const Part& x) { return pair_of(x.*field); }; };
  nb::class_<Part>(m, "Part")
      .def_prop_ro("rows", range(&Part::rows))
      .def_prop_ro("keys", range(&Part::keys))
      .def_prop_ro("row_positions", range(&Part::row_positions))
      .def_prop_ro("key_positions", range(&Part::key_positions))
      .def_ro("document", &Part::document)
      .def_ro("masked", &Part::masked)
      .def_ro("own", &Part::own)
      .def_ro("offset", &Part::offset)
      .def_prop_ro("at_the_end", [](const Part& x) { return x.align == Align::bottom_right; })
      .def_ro("cu_rows", &Part::cu_rows)
      .def_ro("cu_keys", &Part::cu_keys);
}

}  // namespace

void add_context_parallel(nb::module_& package) {
  nb::module_ m = package.def_submodule("context_parallel");
  add_layout(m);
  add_part(m);
  nb::class_<cp::Visibility>(m, "Visibility")
      .def(
          "__init__",
          [](cp::Visibility* x, Index left, Index right, Indices documents, Index key_multiple) {
            new (x) cp::Visibility{left, right, std::move(documents), key_multiple};
          },
          "left"_a, "right"_a, "documents"_a, "key_multiple"_a = 1);
  m.def(
      "gathered", [](const cp::Layout& l, const cp::Visibility& v, Index r) { return pairs_of(cp::gathered(l, v, r)); },
      "layout"_a, "visibility"_a, "rank"_a);
  m.def(
      "gather_parts",
      [](const cp::Layout& l, const cp::Visibility& v, Index r, bool by_unit, bool packed, bool distances) {
        return cp::gather_parts(l, v, r, {by_unit, packed, distances});
      },
      "layout"_a, "visibility"_a, "rank"_a, "by_unit"_a, "packed"_a, "distances"_a);
  m.def(
      "ring_parts",
      [](const cp::Layout& l, const cp::Visibility& v, Index r, Index source, bool packed, bool distances) {
        return cp::ring_parts(l, v, r, source, {false, packed, distances});
      },
      "layout"_a, "visibility"_a, "rank"_a, "source"_a, "packed"_a, "distances"_a);
  m.def(
      "node_layouts",
      [](const cp::Layout& l, Index within, Index node) {
        const cp::NodeLayouts found = cp::node_layouts(l, within, node);
        return nb::make_tuple(found.nodes, found.ranks);
      },
      "layout"_a, "within"_a, "node"_a);
  m.def("ring_steps", &cp::ring_steps, "layout"_a, "visibility"_a, "source"_a);
  m.def("sum", &sum, "count"_a, "given"_a);
  m.def(
      "nodes_of", [](const cp::Layout& l, Index rank) { return pairs_of(cp::nodes_of(l, rank)); }, "layout"_a,
      "rank"_a);
  m.def("moves", &moves, "layout"_a, "visibility"_a, "source"_a, "rank"_a, "node"_a.none());
  m.def(
      "heads_of",
      [](Index heads_q, Index heads_kv, Index ranks, Index rank) {
        return pairs_of(std::vector{cp::heads_of(heads_q, heads_kv, ranks, rank)}).front();
      },
      "heads_q"_a, "heads_kv"_a, "ranks"_a, "rank"_a);
  m.def(
      "head_calls",
      [](Index heads_q, Index heads_kv, Index ranks, Index rank) {
        return pairs_of(cp::head_calls(heads_q, heads_kv, ranks, rank));
      },
      "heads_q"_a, "heads_kv"_a, "ranks"_a, "rank"_a);
  m.def("work", &cp::work, "layout"_a, "visibility"_a);
  m.def("estimates", &estimates, "layout"_a, "visibility"_a, "shape"_a, "machine"_a.none());
}

}  // namespace onepass::python
