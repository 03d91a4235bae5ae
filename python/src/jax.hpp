// onepass as custom calls of XLA.
#pragma once
#include <nanobind/nanobind.h>

namespace onepass::python {

// Adds jax_handlers() to the module: {"onepass_attention": {"cpu": capsule, "CUDA": capsule}, ...}, as
// jax.ffi.register_ffi_target takes them.
void add_jax(nanobind::module_& m);

}  // namespace onepass::python
