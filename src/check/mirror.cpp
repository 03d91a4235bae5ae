#include "check/mirror.hpp"

#include <algorithm>

namespace onepass::check {

using cuda::check_cuda;

DeviceMirror::DeviceMirror(Inputs& inputs, int device)
    : device_(cuda::device_facts(device)), inputs_(inputs), problem_(inputs.problem), tensors_(inputs.tensors) {
  problem_.device = {DeviceKind::cuda, device};
  const cuda::ContextScope scope(device_);
  const cuda::Driver& d = *cuda::driver();
  for (Buffer& host : inputs_.buffers) {
    Copy copy{&host, 0, 0, false};
    check_cuda(d.mem_alloc(&copy.base, host.bytes() + 2 * kGuard), "cuMemAlloc");
    copy.data = copy.base + kGuard;
    copies_.push_back(copy);
    check_cuda(d.memset8(copy.base, Buffer::kPoison, host.bytes() + 2 * kGuard, nullptr), "cuMemsetD8Async");
    if (host.bytes()) check_cuda(d.copy_to_device(copy.data, host.data(), host.bytes(), nullptr), "cuMemcpyHtoDAsync");
  }
  const auto move = [&](auto& t, bool output) {
    t.device = problem_.device;
    const auto* at = static_cast<const std::byte*>(t.data);
    for (Copy& c : copies_) {
      if (!t.given() || at < c.host->data() || at > c.host->data() + c.host->bytes()) continue;
      t.data = reinterpret_cast<void*>(c.data + static_cast<std::uint64_t>(at - c.host->data()));
      c.output = output;
      break;
    }
  };
  for_each_role(tensors_, [&](const RoleRow& row, auto& tensor) { move(tensor, writes(row, problem_.op)); });
  for (NamedTensor& named : tensors_.mod_buffers) move(named.tensor, false);
  for (auto* parts : {&tensors_.outs, &tensors_.lses})
    for (ConstTensor& part : *parts) move(part, false);
  CallOptions attention = inputs_.attention;
  bound_lengths(attention, problem_);
  problem_ = problem_of(problem_.op, tensors_, attention);
}

DeviceMirror::~DeviceMirror() {
  cuda::Context context = nullptr;
  const cuda::Driver& d = *cuda::driver();
  if (d.push_context(device_.context) != 0) return;
  for (const Copy& c : copies_) d.mem_free(c.base);
  d.pop_context(&context);
}

void DeviceMirror::poison_outputs() {
  const cuda::ContextScope scope(device_);
  for (const Copy& c : copies_) {
    if (c.output)
      check_cuda(cuda::driver()->memset8(c.data, Buffer::kPoison, c.host->bytes(), nullptr), "cuMemsetD8Async");
  }
}

void DeviceMirror::fetch_outputs() {
  const cuda::ContextScope scope(device_);
  const cuda::Driver& d = *cuda::driver();
  std::vector<unsigned char> guard(kGuard);
  for (const Copy& c : copies_) {
    if (c.output && c.host->bytes())
      check_cuda(d.copy_to_host(c.host->data(), c.data, c.host->bytes(), nullptr), "cuMemcpyDtoHAsync");
    for (const cuda::DevicePtr at : {c.base, c.data + c.host->bytes()}) {
      check_cuda(d.copy_to_host(guard.data(), at, kGuard, nullptr), "cuMemcpyDtoHAsync");
      check_cuda(d.stream_synchronize(nullptr), "cuStreamSynchronize");
      if (std::any_of(guard.begin(), guard.end(), [](unsigned char b) { return b != Buffer::kPoison; })) {
        throw Error(ErrorCode::bad_value, "bytes around a device buffer were written");
      }
    }
  }
  check_cuda(d.stream_synchronize(nullptr), "cuStreamSynchronize");
}

Verdict check_on_device(const Implementation& implementation, Inputs& inputs, int device, Executor& executor) {
  Verdict verdict;
  try {
    DeviceMirror mirror(inputs, device);
    const Decision decision = decide(implementation, mirror.problem(), executor.workers());
    if (verdict.sentence = decision.refusal; !decision) {
      verdict.accepted = false;
      return verdict;
    }
    const cuda::ContextScope scope(cuda::device_facts(device));
    const cuda::Driver& d = *cuda::driver();
    const std::size_t bytes = decision.state->workspace_bytes;
    cuda::DevicePtr workspace = 0;
    check_cuda(d.mem_alloc(&workspace, bytes + 64), "cuMemAlloc");
    check_cuda(d.memset8(workspace, Buffer::kPoison, bytes + 64, nullptr), "cuMemsetD8Async");
    mirror.poison_outputs();
    decision.state->run(mirror.tensors(), reinterpret_cast<void*>(workspace), executor, nullptr);
    mirror.fetch_outputs();
    d.mem_free(workspace);
  } catch (const Error& error) {
    verdict.sentence = error.what();
    return verdict;
  }
  return judge(inputs, executor, DeviceKind::cuda);
}

}  // namespace onepass::check
