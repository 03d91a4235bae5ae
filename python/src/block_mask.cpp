#include "parts.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "argument.hpp"
#include "onepass/block_mask.hpp"

namespace nb = nanobind;

namespace onepass::python {
namespace {

using Buffers = std::vector<std::pair<std::string, nb::object>>;
using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

template <class T>
nb::bytes bytes_of(const std::vector<T>& x) {
  return nb::bytes(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(T));
}
template <class T>
std::vector<T> numbers_of(const nb::bytes& x) {
  std::vector<T> out(x.size() / sizeof(T));
  std::copy_n(x.c_str(), out.size() * sizeof(T), reinterpret_cast<char*>(out.data()));
  return out;
}

// The shape, and begin and tiles of mixed, full, mixed_rows and full_rows.
nb::tuple lists_of(const BlockMask& m) {
  const auto bytes = [](const TileLists& l) { return nb::make_tuple(bytes_of(l.begin), bytes_of(l.tiles)); };
  return nb::make_tuple(
      nb::make_tuple(m.shape.batch, m.shape.heads, m.shape.seq_q, m.shape.seq_k, m.shape.tile_q, m.shape.tile_k),
      bytes(m.mixed), bytes(m.full), bytes(m.mixed_rows), bytes(m.full_rows));
}
BlockMaskShape shape_of(const Shape& s) {
  return std::apply([](const auto&... numbers) { return BlockMaskShape{numbers...}; }, s);
}

// The buffers of a mask_mod, as views that live as long as this.
struct Given {
  std::vector<Argument> arguments;
  std::vector<NamedTensor> tensors;
  explicit Given(const Buffers& buffers) {
    arguments.reserve(buffers.size());
    for (const auto& [name, array] : buffers) {
      const std::string called = "mod buffer " + name;
      arguments.emplace_back(called.c_str(), array, kMod);
      tensors.push_back({name, arguments.back().view});
    }
  }
};

nb::tuple of_text(const std::string& mask_mod, const Buffers& buffers, const Shape& shape, bool exact) {
  const Given given(buffers);
  BlockMask mask;
  {
    const nb::gil_scoped_release unlocked;
    mask = block_mask(mask_mod, given.tensors, shape_of(shape), exact);
  }
  return lists_of(mask);
}
// workspace: None, or bytes -> (what keeps the memory, its address).
void states_of(const std::string& mask_mod, const Buffers& buffers, const Shape& shape, bool exact, nb::handle states,
               std::uintptr_t stream, nb::handle workspace) {
  const Given given(buffers);
  const Argument to("states", states, "int32", true);
  Launch launch{.stream = reinterpret_cast<void*>(stream)};
  nb::object memory;
  if (const std::size_t bytes = block_mask_workspace_bytes(given.tensors, shape_of(shape));
      bytes > 0 && !workspace.is_none()) {
    memory = workspace(bytes);
    launch.workspace = {reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(memory[1])), bytes};
  }
  const nb::gil_scoped_release unlocked;
  block_mask_states(mask_mod, given.tensors, shape_of(shape), to.view, exact, launch);
}
nb::tuple of_tensor(nb::handle bool_mask, std::int64_t tile_q, std::int64_t tile_k) {
  const Argument argument("bool_mask", bool_mask, "bool");
  return lists_of(block_mask(argument.view, tile_q, tile_k));
}
using Lists = std::pair<nb::bytes, nb::bytes>;
nb::tuple of_lists(const Shape& shape, const Lists& mixed, const Lists& full) {
  const auto lists = [](const Lists& l) {
    return TileLists{numbers_of<std::int64_t>(l.first), numbers_of<std::int32_t>(l.second)};
  };
  return lists_of(block_mask(shape_of(shape), lists(mixed), lists(full)));
}

}  // namespace

void add_block_mask(nb::module_& m) {
  m.def("block_mask", &of_text, nb::arg("mask_mod"), nb::arg("mod_buffers"), nb::arg("shape"), nb::arg("exact"));
  m.def("block_mask_states", &states_of, nb::arg("mask_mod"), nb::arg("mod_buffers"), nb::arg("shape"),
        nb::arg("exact"), nb::arg("states"), nb::arg("stream"), nb::arg("workspace").none());
  m.def("block_mask_of_tensor", &of_tensor, nb::arg("bool_mask"), nb::arg("tile_q"), nb::arg("tile_k"));
  m.def("block_mask_of_lists", &of_lists, nb::arg("shape"), nb::arg("mixed"), nb::arg("full"));
}

}  // namespace onepass::python
