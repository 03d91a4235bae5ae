#include "parts.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "tools/onepass/command_line.hpp"

namespace nb = nanobind;

namespace onepass::python {
namespace {

// arguments: bytes, the tool's name first. Returns the exit status.
int command(const nb::list& arguments) {
  std::vector<std::string> words;
  for (const nb::handle word : arguments) {
    const auto bytes = nb::cast<nb::bytes>(word);
    words.emplace_back(bytes.c_str(), bytes.size());
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const nb::gil_scoped_release unlocked;
  return cli::command_line(static_cast<int>(words.size()), argv.data());
}

}  // namespace

void add_command(nb::module_& m) { m.def("command", &command, nb::arg("arguments")); }

}  // namespace onepass::python
