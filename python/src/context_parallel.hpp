// The plan of context parallelism, for the package's transports.
#pragma once
#include <nanobind/nanobind.h>

namespace onepass::python {

void add_context_parallel(nanobind::module_& m);

}  // namespace onepass::python
