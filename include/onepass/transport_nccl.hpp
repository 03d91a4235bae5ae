// A transport over NCCL, for tensors on CUDA devices, one for each rank. Include it in a program that is compiled and
// linked with NCCL and the CUDA runtime; onepass itself needs neither.
#pragma once
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "onepass/error.hpp"
#include "onepass/transport.hpp"

namespace onepass::inline v0 {

// The ranks of a blocking communicator, which stays the caller's. Its device is current in every call. Calls return as
// soon as their work is on the stream, or, of exchanges that have begun, on a stream of the transport. wait() waits for
// a stream in place of cudaStreamSynchronize. If a rank has failed, or the stream is not done after `deadline`, it
// aborts the communicator (ncclCommAbort) and throws Error. Then comm() is null, and the transport cannot be used any
// more.
class NcclTransport final : public Transport {
 public:
  explicit NcclTransport(ncclComm_t comm, std::chrono::milliseconds deadline = std::chrono::minutes(10))
      : comm_(comm), deadline_(deadline) {
    check(ncclCommUserRank(comm, &rank_), "ncclCommUserRank");
    check(ncclCommCount(comm, &ranks_), "ncclCommCount");
  }
  ~NcclTransport() override {
    if (staged_) cudaFree(staged_);
    if (own_) cudaStreamDestroy(own_);
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  ncclComm_t comm() const { return comm_; }

  void all_to_all(std::span<const ConstBlock> send, std::span<const Block> receive, void* stream) override {
    check_usable();
    const auto on = static_cast<cudaStream_t>(stream);
    check(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < ranks_; ++r) {
      const ConstBlock out = send[static_cast<std::size_t>(r)];
      const Block in = receive[static_cast<std::size_t>(r)];
      if (r == rank_) continue;
      if (!out.empty()) check(ncclSend(out.data(), out.size(), ncclUint8, r, comm_, on), "ncclSend");
      if (!in.empty()) check(ncclRecv(in.data(), in.size(), ncclUint8, r, comm_, on), "ncclRecv");
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
  }

  // On a stream of its own: after what is on the caller's stream by now, and beside what comes there until wait().
  std::unique_ptr<Exchange> begin_all_to_all(std::span<const ConstBlock> send, std::span<const Block> receive,
                                             void* stream) override {
    check_usable();
    if (!own_) check(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking), "cudaStreamCreate");
    Event(*this, static_cast<cudaStream_t>(stream)).wait_on(own_);
    all_to_all(send, receive, own_);
    return std::make_unique<Begun>(*this, own_, static_cast<cudaStream_t>(stream));
  }

  void all_gather(ConstBlock mine, Block all) override {
    check_usable();
    if (all.empty()) return;
    auto* const staged = memory(all.size());
    std::byte* const own = staged + static_cast<std::size_t>(rank_) * mine.size();
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    try {
      check(cudaMemcpyAsync(own, mine.data(), mine.size(), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
      check(ncclAllGather(own, staged, mine.size(), ncclUint8, comm_, stream), "ncclAllGather");
      wait(stream);
      check(cudaMemcpyAsync(all.data(), staged, all.size(), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
      check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    } catch (...) {
      cudaStreamDestroy(stream);
      throw;
    }
    check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }

  // Until the work on a stream is done.
  void wait(cudaStream_t stream) {
    check_usable();
    const auto end = std::chrono::steady_clock::now() + deadline_;
    for (cudaError_t state = cudaStreamQuery(stream); state != cudaSuccess; state = cudaStreamQuery(stream)) {
      if (state != cudaErrorNotReady) check(state, "cudaStreamQuery");
      ncclResult_t error = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &error), "ncclCommGetAsyncError");
      if (error != ncclSuccess && error != ncclInProgress)
        lose(std::string("a rank has ended or failed: ") + ncclGetErrorString(error));
      if (std::chrono::steady_clock::now() > end)
        lose("another rank has not answered for " + std::to_string(deadline_.count()) + " ms");
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  void fail(std::string_view sentence) noexcept override {
    try {
      if (failed_.empty()) failed_ = "rank " + std::to_string(rank_) + " has failed: " + std::string(sentence);
    } catch (...) {
      failed_ = "a rank has failed";
    }
    abort();
  }

 private:
  // The work that is on a stream by now.
  class Event {
   public:
    Event(NcclTransport& transport, cudaStream_t of) : transport_(transport) {
      transport.check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
      const cudaError_t recorded = cudaEventRecord(event_, of);
      if (recorded != cudaSuccess) cudaEventDestroy(event_);
      transport.check(recorded, "cudaEventRecord");
    }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() { cudaEventDestroy(event_); }
    void wait_on(cudaStream_t stream) {
      transport_.check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
    }
    void wait_on_anyway(cudaStream_t stream) noexcept { static_cast<void>(cudaStreamWaitEvent(stream, event_, 0)); }

   private:
    NcclTransport& transport_;
    cudaEvent_t event_ = nullptr;
  };
  class Begun final : public Exchange {
   public:
    Begun(NcclTransport& transport, cudaStream_t of, cudaStream_t stream) : done_(transport, of), stream_(stream) {}
    ~Begun() override { done_.wait_on_anyway(stream_); }  // its memory is freed on this stream
    void wait() override { done_.wait_on(stream_); }

   private:
    Event done_;
    cudaStream_t stream_;
  };

  void check(ncclResult_t result, const char* call) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    lose(std::string(call) + " failed: " + ncclGetErrorString(result));
  }
  void check(cudaError_t result, const char* call) {
    if (result != cudaSuccess) lose(std::string(call) + " failed: " + cudaGetErrorString(result));
  }
  void check_usable() const {
    if (!failed_.empty()) throw Error(ErrorCode::device_failure, "the transport cannot be used any more: " + failed_);
  }
  [[noreturn]] void lose(const std::string& sentence) {
    failed_ = sentence;
    abort();
    throw Error(ErrorCode::device_failure, sentence);
  }
  void abort() noexcept {
    if (comm_) ncclCommAbort(std::exchange(comm_, nullptr));
  }

  // Memory on the device for small messages of the host.
  std::byte* memory(std::size_t bytes) {
    if (bytes > staged_bytes_) {
      if (staged_) check(cudaFree(std::exchange(staged_, nullptr)), "cudaFree");
      staged_bytes_ = 0;
      check(cudaMalloc(&staged_, bytes), "cudaMalloc");
      staged_bytes_ = bytes;
    }
    return static_cast<std::byte*>(staged_);
  }

  ncclComm_t comm_;
  const std::chrono::milliseconds deadline_;
  int rank_ = 0, ranks_ = 1;
  cudaStream_t own_ = nullptr;  // of exchanges beside the caller's stream
  void* staged_ = nullptr;
  std::size_t staged_bytes_ = 0;
  std::string failed_;
};

}  // namespace onepass::inline v0
