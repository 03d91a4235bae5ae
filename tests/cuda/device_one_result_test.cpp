// With batch_invariant a row has one result on a GPU (support/one_result.hpp).
#include <cstdlib>
#include <tuple>
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

// A large call has other kernels for prompts than a small one, with larger blocks of rows: 64 heads of 700 rows are 256
// of them. Head dims and pages of its keys.
class DeviceOneResultOfLargeCalls : public check::OnDevice<testing::TestWithParam<std::tuple<int, bool>>> {};
TEST_P(DeviceOneResultOfLargeCalls, IsThatOfSmallOnes) {
  const auto [dim, paged] = GetParam();
  constexpr int kRows = 700, kKeys = 2300;
  Random r{std::mt19937_64(static_cast<unsigned>(dim))};
  Sample s(r, kRows, kKeys, 64, 64, dim, dim, DType::bf16);
  for (const float x : {INFINITY, NAN})  // where all rows see it
    s.v.set(((1024 + r.among(0, kKeys - kRows - 1025)) * 64 + r.among(0, 63)) * dim + r.among(0, dim - 1), x);
  Call call;
  call.attention.batch_invariant = true;
  call.attention.band = {.causal = true, .align = Align::bottom_right};
  call.keys = paged ? Keys::pages : Keys::dense;
  const Result whole = run(r, {{&s, 0, kRows, kKeys}}, call, attend_on_device);
  for (const int rows : {1, 40, 150}) {
    const int first = static_cast<int>(r.among(0, kRows - rows));
    const Result got = run(r, {{&s, first, rows, kKeys - kRows + first + rows}}, call, attend_on_device);
    EXPECT_TRUE(same(s, whole, kRows, first, got, rows, 0, rows)) << rows << " rows from " << first;
  }
}
INSTANTIATE_TEST_SUITE_P(Dims, DeviceOneResultOfLargeCalls,
                         testing::Combine(testing::Values(64, 128), testing::Bool()));

}  // namespace
}  // namespace onepass
