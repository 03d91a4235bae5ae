// With batch_invariant a row has one result on a GPU (support/one_result.hpp).
#include <cstdlib>
#include <vector>

#include "base/overlap.hpp"
#include "cuda/host/kernels.hpp"
#include "device.hpp"
#include "problem/roles.hpp"
#include "support/one_result.hpp"

namespace onepass {
namespace {

using namespace one_result;

// The call on copies of its tensors on the device, results copied back.
void attend_on_device(const Tensors& host, const Call& call) {
  const cuda::DeviceFacts& facts = cuda::device_facts(0);
  const cuda::ContextScope scope(facts);
  const cuda::Driver& d = *cuda::driver();
  struct Copy {
    cuda::DevicePtr at;
    void* host;
    std::size_t bytes;
  };
  std::vector<Copy> copies, results;
  Tensors t = host;
  for_each_role(kForward, t, [&](const RoleRow& row, auto& tensor) {
    if (!tensor.given()) return;
    const Extent extent = extent_of(ConstTensor(tensor));
    const Copy copy{0, reinterpret_cast<void*>(extent.from), static_cast<std::size_t>(extent.to - extent.from)};
    copies.push_back(copy);
    cuda::check_cuda(d.mem_alloc(&copies.back().at, copy.bytes + 16), "cuMemAlloc");
    cuda::check_cuda(d.copy_to_device(copies.back().at, copy.host, copy.bytes, nullptr), "cuMemcpyHtoD");
    const auto below = reinterpret_cast<std::uintptr_t>(tensor.data) - extent.from;
    tensor.data = reinterpret_cast<decltype(tensor.data)>(copies.back().at + below);
    tensor.device = {DeviceKind::cuda, 0};
    if (writes(row, kForward)) results.push_back(copies.back());
  });
  attention(t, call.attention);
  for (const Copy& c : results) cuda::check_cuda(d.copy_to_host(c.host, c.at, c.bytes, nullptr), "cuMemcpyDtoH");
  cuda::check_cuda(d.stream_synchronize(nullptr), "cuStreamSynchronize");
  for (const Copy& c : copies) d.mem_free(c.at);
}

// Seeds of the calls. Each has its own test, because compiling the kernels of a call takes seconds on one core.
class DeviceOneResult : public check::OnDevice<testing::TestWithParam<unsigned>> {};

// ONEPASS_ONE_RESULT_CALLS: how many of each seed.
TEST_P(DeviceOneResult, WhateverSurroundsARow) {
  const char* const asked = std::getenv("ONEPASS_ONE_RESULT_CALLS");
  expect_one_result(asked ? std::atoi(asked) : 20, {},
                    {{DType::bf16, DType::bf16, DType::f32}, {64, 128}, false, false, false}, attend_on_device,
                    GetParam());
}
INSTANTIATE_TEST_SUITE_P(Seeds, DeviceOneResult, testing::Range(1u, 11u));

}  // namespace
}  // namespace onepass
