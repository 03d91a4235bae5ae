// Block masks in Python.
#pragma once
#include <nanobind/nanobind.h>

namespace onepass::python {

void add_block_mask(nanobind::module_& m);

}  // namespace onepass::python
