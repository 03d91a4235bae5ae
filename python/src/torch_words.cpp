// Keywords of onepass.torch.attention as a call: only those that are given are looked at.
#include <algorithm>
#include <string_view>
#include <vector>

#include "torch_call.hpp"

namespace nb = nanobind;

namespace onepass::python {
namespace {

// A keyword, and how its value comes into a call. False: the general path reads it.
struct Word {
  PyObject* name;  // interned, as Python has the names of keywords
  bool (*take)(TorchCall& call, int at, PyObject* value);
  int at;  // of the item of this name, or -1
};
std::vector<Word> known;  // guarded by the GIL

bool take_item(TorchCall& call, int at, PyObject* value) {
  call[at] = value;
  return true;
}
bool is_false(TorchCall&, int, PyObject* value) { return value == Py_False; }
bool is_none(TorchCall&, int, PyObject* value) { return value == Py_None; }
bool take_switch(TorchCall& call, int at, PyObject* value) {
  call[at] = value;
  return value == Py_True || value == Py_False;
}
bool take_layout(TorchCall& call, int, PyObject* value) {
  if (!PyUnicode_Check(value)) return false;
  const bool tokens_first = PyUnicode_CompareWithASCIIString(value, "bshd") == 0;
  call[torch_at.tokens_first] = tokens_first ? Py_True : Py_False;
  return tokens_first || PyUnicode_CompareWithASCIIString(value, "bhsd") == 0;
}
bool take_window(TorchCall& call, int, PyObject* value) {
  if (value == Py_None) return true;
  if (!PyTuple_Check(value) || PyTuple_Size(value) != 2) return false;
  call[torch_at.left] = PyTuple_GetItem(value, 0);
  call[torch_at.right] = PyTuple_GetItem(value, 1);
  return true;
}
// Calls with dropout are not taken, so that a seed says nothing.
bool pass_seed(TorchCall&, int, PyObject* value) {
  if (value == Py_None) return true;
  int overflow = 0;
  return PyLong_CheckExact(value) && PyLong_AsLongLongAndOverflow(value, &overflow) >= 0 && overflow == 0;
}
bool take_out(TorchCall& call, int, PyObject* value) {
  call.into = value;
  return true;
}

struct Reader {
  std::string_view name;
  bool (*take)(TorchCall& call, int at, PyObject* value);
};
// Keywords that are not an item of a call under the same name, or not with any value.
constexpr Reader kReaders[] = {
    {"window", take_window},     {"layout", take_layout},  {"seed", pass_seed},
    {"out", take_out},           {"fp8", is_false},        {"mod_buffers", is_none},
    {"return_lse", take_switch}, {"return_max", is_false}, {"return_entropy", is_false},
    {"recomputed", is_none},
};
// Items that are not keywords.
constexpr std::string_view kInside[] = {
    "q", "k", "v", "random_seed", "mod_names", "window_left", "window_right", "tokens_first"};

}  // namespace

void register_torch_words(const nb::tuple& names) {
  known.clear();
  const auto add = [](std::string_view name, bool (*take)(TorchCall&, int, PyObject*), int at) {
    known.push_back({PyUnicode_InternFromString(std::string(name).c_str()), take, at});
  };
  for (const Reader& reader : kReaders) add(reader.name, reader.take, -1);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view name = nb::cast<const char*>(nb::handle(names[i].ptr()));
    const auto reader = std::ranges::find(kReaders, name, &Reader::name);
    if (reader != std::end(kReaders))
      known[static_cast<std::size_t>(reader - kReaders)].at = static_cast<int>(i);
    else if (std::ranges::find(kInside, name) == std::end(kInside))
      add(name, take_item, static_cast<int>(i));
  }
}

bool TorchCall::take_words(nb::handle options) {
  Py_ssize_t next = 0;
  PyObject *name = nullptr, *value = nullptr;
  while (PyDict_Next(options.ptr(), &next, &name, &value)) {
    const auto word = std::ranges::find(known, name, &Word::name);
    if (word == known.end() || !word->take(*this, word->at, value)) return false;
  }
  return true;
}

}  // namespace onepass::python
