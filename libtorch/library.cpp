// libonepass_torch.so: registers the operators when it is loaded. Where the Python package has registered them already,
// nothing happens, and the package does the same where this library came first.
#include <array>
#include <string>

#include "libtorch/operators.hpp"
#include "libtorch/schemas.hpp"

// From PyTorch 2.12 on.
extern "C" {
__attribute__((weak)) std::int32_t torch_tag_pt2_compliant_tag();
__attribute__((weak)) AOTITorchError torch_library_def_with_tags(TorchLibraryHandle library, const char* schema,
                                                                 const std::int32_t* tags, std::int32_t count);
}

namespace onepass::libtorch {
namespace {

using Kernel = void (*)(StableIValue*, std::uint64_t, std::uint64_t);
constexpr std::array<Kernel, kOperatorNames.size()> kKernels = {&attention, &attention_backward, &quantize, &append_kv};

// False if there is one of this name.
bool define(TorchLibraryHandle library, const std::string& schema) {
  if (!torch_library_def_with_tags) return aoti_torch_library_def(library, schema.c_str()) == TORCH_SUCCESS;
  const std::int32_t tag = torch_tag_pt2_compliant_tag();
  return torch_library_def_with_tags(library, schema.c_str(), &tag, 1) == TORCH_SUCCESS;
}

class Registration {
 public:
  Registration() {
    if (aoti_torch_library_init_fragment("onepass", __FILE__, __LINE__, &definitions_) != TORCH_SUCCESS) return;
    for (const std::string& schema : schemas())
      if (!define(definitions_, schema)) return;
    const char* const devices[] = {"CPU", "CUDA", "Meta"};
    for (std::size_t d = 0; d < kernels_.size(); ++d) {
      if (aoti_torch_library_init_impl("onepass", devices[d], __FILE__, __LINE__, &kernels_[d]) != TORCH_SUCCESS)
        return;
      for (std::size_t i = 0; i < kKernels.size(); ++i)
        torch_library_impl(kernels_[d], kOperatorNames[i], kKernels[i], TORCH_ABI_VERSION);
    }
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() {
    for (TorchLibraryHandle library : kernels_)
      if (library) aoti_torch_delete_library_object(library);
    if (definitions_) aoti_torch_delete_library_object(definitions_);
  }

 private:
  TorchLibraryHandle definitions_ = nullptr;
  std::array<TorchLibraryHandle, 3> kernels_{};
} registration;

}  // namespace
}  // namespace onepass::libtorch
