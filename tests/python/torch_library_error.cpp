// An operator of libonepass_torch.so that refuses a call: torch_library_error LIBRARY. Prints what it throws.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>

#include <cstdio>
#include <stdexcept>

int main(int, char** words) {
  if (!dlopen(words[1], RTLD_NOW)) return std::puts(dlerror()), 2;
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("onepass::attention", "");
  for (const int dim : {8, 9}) {
    torch::jit::Stack stack{at::ones({1, 2, 5, 8}), at::ones({1, 2, 5, dim}), at::ones({1, 2, 5, 8})};
    const auto& arguments = op.schema().arguments();
    for (std::size_t i = stack.size(); i < arguments.size(); ++i) stack.push_back(*arguments[i].default_value());
    try {
      op.callBoxed(stack);
      std::printf("%g\n", stack[0].toTensor().mean().item<double>());
    } catch (const std::runtime_error& e) {
      std::printf("%s\n", e.what());
    }
  }
}
