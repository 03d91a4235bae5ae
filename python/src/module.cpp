// The Python interface: arrays become views (no copies), the GIL is released while computing, errors become exceptions.
// The package's __init__.py allocates results and documents the calls.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "cuda/host/kernels.hpp"
#include "onepass/error.hpp"
#include "onepass/tensor.hpp"
#include "onepass/version.hpp"
#include "parts.hpp"
#include "problem/grammar/foreign_words.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using onepass::DType;
using onepass::Error;
using onepass::ErrorCode;
using onepass::text;

PyObject* exception_type(ErrorCode code) {
  switch (code) {
    case ErrorCode::bad_dtype: return PyExc_TypeError;
    case ErrorCode::unsupported:
    case ErrorCode::out_of_memory:
    case ErrorCode::device_failure:
    case ErrorCode::internal: return PyExc_RuntimeError;
    default: return PyExc_ValueError;
  }
}

// Waits for everything on the legacy default stream of a device.
void synchronize(int device) {
  const nb::gil_scoped_release unlocked;
  const onepass::cuda::ContextScope scope(onepass::cuda::device_facts(device));
  onepass::cuda::check_cuda(onepass::cuda::driver()->stream_synchronize(nullptr), "cuStreamSynchronize");
}

// NVRTC's version, or a sentence that says why there is none; opened if it has not been.
std::pair<std::string, std::string> nvrtc() {
  std::string why;
  const onepass::cuda::Nvrtc* api = onepass::cuda::nvrtc(&why);
  return {api ? text(api->major, ".", api->minor) : std::string(), why};
}

// An array of the extension's own, for kinds that can only import: jax and others take it by DLPack, without a copy.
// fill: every element of fp32; 0 for the other dtypes.
nb::object empty(const std::vector<std::size_t>& shape, const std::string& dtype, std::optional<float> fill) {
  const DType type = dtype == "bfloat16" ? DType::bf16 : dtype == "float16" ? DType::f16 : DType::f32;
  std::size_t elements = 1;
  for (std::size_t n : shape) elements *= n;
  const std::size_t bytes = elements * onepass::size_of(type);
  void* data = ::operator new(bytes, std::align_val_t{64});
  if (fill && type == DType::f32) std::fill_n(static_cast<float*>(data), elements, *fill);
  if (fill && type != DType::f32) std::memset(data, 0, bytes);
  const nb::capsule owner(data, [](void* p) noexcept { ::operator delete(p, std::align_val_t{64}); });
  using Code = nb::dlpack::dtype_code;
  const nb::dlpack::dtype dlpack{static_cast<std::uint8_t>(type == DType::bf16 ? Code::Bfloat : Code::Float),
                                 static_cast<std::uint8_t>(onepass::size_of(type) * 8), 1};
  return nb::cast(
      nb::ndarray<nb::array_api>(data, shape.size(), shape.data(), owner, nullptr, dlpack, nb::device::cpu::value));
}

}  // namespace

NB_MODULE(_onepass, m) {
  nb::set_leak_warnings(false);  // plans of context parallelism are kept until the process ends
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const Error& e) {
      PyErr_SetString(exception_type(e.code()), e.what());
    }
  });
  m.attr("__version__") = std::string(onepass::version());
  m.def(
      "foreign_word", [](const std::string& name) { return onepass::foreign_word(name, onepass::Dialect::python); },
      "name"_a);
  m.def("synchronize", &synchronize, "device"_a);
  m.def("offer_nvrtc", &onepass::cuda::offer_nvrtc, "paths"_a);
  m.def("nvrtc", &nvrtc);
  m.def("empty", &empty, "shape"_a, "dtype"_a, "fill"_a.none());
  onepass::python::add_attention(m);
  onepass::python::add_operators(m);
  onepass::python::add_block_mask(m);
  onepass::python::add_context_parallel(m);
  onepass::python::add_jax(m);
  onepass::python::add_torch(m);
#if defined(ONEPASS_COMMAND)
  onepass::python::add_command(m);
#endif
}
