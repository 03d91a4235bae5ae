// Calls from PyTorch, with the plans of calls before.
#pragma once
#include <nanobind/nanobind.h>

namespace onepass::python {

// Adds torch_register, torch_forward and torch_backward, which onepass/_torch_op.py calls.
void add_torch(nanobind::module_& m);

}  // namespace onepass::python
