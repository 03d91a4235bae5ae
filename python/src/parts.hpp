// The parts of the module: a function of a file each, which adds what the package calls.
#pragma once
#include <nanobind/nanobind.h>

namespace onepass::python {

void add_attention(nanobind::module_& m);
void add_operators(nanobind::module_& m);  // the others
void add_block_mask(nanobind::module_& m);
void add_context_parallel(nanobind::module_& m);  // its plan, for the package's transports
// jax_handlers(): {"onepass_attention": {"cpu": capsule, "CUDA": capsule}, ...}, as jax.ffi.register_ffi_target takes
// them.
void add_jax(nanobind::module_& m);
// torch_register, torch_attention, torch_forward, torch_sdpa, torch_gradients, torch_backward and kept_plans, which the
// package's _torch_*.py call.
void add_torch(nanobind::module_& m);
void add_command(nanobind::module_& m);  // the command-line tool as a function

}  // namespace onepass::python
