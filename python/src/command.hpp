// The command-line tool as a function of the extension.
#pragma once
#include <nanobind/nanobind.h>

namespace onepass::python {

void add_command(nanobind::module_& m);

}  // namespace onepass::python
