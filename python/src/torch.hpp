// Calls from PyTorch, with the plans of calls before.
#pragma once
#include <nanobind/nanobind.h>

namespace onepass::python {

// Adds torch_register, torch_forward, torch_sdpa, torch_gradients, torch_backward and kept_plans, which the package's
// _torch_*.py call.
void add_torch(nanobind::module_& m);

}  // namespace onepass::python
