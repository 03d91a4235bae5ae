#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

// Messages between the ranks of a communicator.
struct Mail {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> boxes;  // by (from, to)
  bool aborted = false;
};
struct FakeComm {
  std::shared_ptr<Mail> mail;
  int rank, ranks;
};
struct FakeStream {
  bool stuck = false;
};
struct FakeEvent {
  bool stuck = false;
};

namespace {

constexpr auto kPatience = std::chrono::milliseconds(500);

thread_local FakeStream default_stream;
FakeStream& stream_of(cudaStream_t stream) { return stream ? *stream : default_stream; }

struct Operation {
  const void* from;
  void* to;
  std::size_t bytes;
  int peer;
  ncclComm_t comm;
  cudaStream_t stream;

  void send() const {
    const std::lock_guard lock(comm->mail->mutex);
    const auto* const begin = static_cast<const char*>(from);
    comm->mail->boxes[{comm->rank, peer}].emplace_back(begin, begin + bytes);
    comm->mail->changed.notify_all();
  }
  void receive() const {
    std::unique_lock lock(comm->mail->mutex);
    auto& box = comm->mail->boxes[{peer, comm->rank}];
    comm->mail->changed.wait_for(lock, kPatience, [&] { return !box.empty() || comm->mail->aborted; });
    if (box.empty() || box.front().size() != bytes) {
      stream_of(stream).stuck = true;
      return;
    }
    std::memcpy(to, box.front().data(), bytes);
    box.pop_front();
  }
};
thread_local std::vector<Operation> group;
thread_local bool grouped = false;

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new FakeStream;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return stream_of(stream).stuck ? cudaErrorNotReady : cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaStreamQuery(stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  stream_of(stream).stuck |= event->stuck;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new FakeEvent;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stuck = stream_of(stream).stuck;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (bytes > std::size_t{1} << 20) return cudaErrorMemoryAllocation;
  *memory = ::operator new(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  ::operator delete(memory);
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake"; }

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* ranks) {
  *ranks = comm->ranks;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  grouped = true;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  grouped = false;
  for (const Operation& o : group) {
    if (o.from) o.send();
  }
  for (const Operation& o : group) {
    if (o.to) o.receive();
  }
  group.clear();
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (!grouped || peer == comm->rank || peer >= comm->ranks) return ncclInvalidUsage;
  group.push_back({from, nullptr, count, peer, comm, stream});
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  if (!grouped || peer == comm->rank || peer >= comm->ranks) return ncclInvalidUsage;
  group.push_back({nullptr, to, count, peer, comm, stream});
  return ncclSuccess;
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  auto* const all = static_cast<char*>(to);
  if (all + static_cast<std::size_t>(comm->rank) * count != from) return ncclInvalidUsage;  // in place, as it is used
  ncclGroupStart();
  for (int r = 0; r < comm->ranks; ++r) {
    if (r == comm->rank) continue;
    ncclSend(from, count, type, r, comm, stream);
    ncclRecv(all + static_cast<std::size_t>(r) * count, count, type, r, comm, stream);
  }
  return ncclGroupEnd();
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const std::lock_guard lock(comm->mail->mutex);
  *error = comm->mail->aborted ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(comm->mail->mutex);
  comm->mail->aborted = true;
  comm->mail->changed.notify_all();
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "remote process exited or there was a network error"; }

std::vector<ncclComm_t> fake_comms(int ranks) {
  const auto mail = std::make_shared<Mail>();
  std::vector<ncclComm_t> comms;
  for (int r = 0; r < ranks; ++r) comms.push_back(new FakeComm{mail, r, ranks});
  return comms;
}
