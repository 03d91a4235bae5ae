// Runs a model that PyTorch has compiled ahead of time, without Python; its attention is an operator of onepass.
//
//   torch_package libonepass_torch.so model.pt2 data.pt
//
// model.pt2: of torch._inductor.aoti_compile_and_package. data.pt: torch.save((input, ..., output)) of one call. The
// program computes the output again and compares.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <vector>

int main(int count, char** words) try {
  if (count != 4) return std::fprintf(stderr, "usage: torch_package libonepass_torch.so model.pt2 data.pt\n"), 2;
  if (!dlopen(words[1], RTLD_NOW)) {  // registers the operators; a program that links the library need not do this
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  std::ifstream file(words[3], std::ios::binary);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  const c10::IValue saved = torch::jit::pickle_load(bytes);
  std::vector<at::Tensor> data;
  for (const c10::IValue& item : saved.toTupleRef().elements()) data.push_back(item.toTensor());
  const at::Tensor expected = data.back();
  data.pop_back();

  torch::inductor::AOTIModelPackageLoader model(words[2]);
  const at::Tensor out = model.run(data)[0];
  const double difference = (out - expected).abs().max().item<double>(), size = expected.abs().max().item<double>();
  std::printf("the outputs differ by %.2g of %.2g\n", difference, size);
  return difference <= 1e-5 * size ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
