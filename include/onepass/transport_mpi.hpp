// A transport over MPI, for tensors on the CPU. Include it in a program that is compiled and linked with MPI; onepass
// itself needs none. Tested with Open MPI 4.1.
#pragma once
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "onepass/error.hpp"
#include "onepass/transport.hpp"

namespace onepass::inline v0 {

// The ranks of a communicator. It is duplicated, so that messages meet no others: all its ranks make and destroy their
// transports together, in one order. Exchanges of two transports may be under way at once, from two threads only with
// MPI_THREAD_MULTIPLE.
//
// A rank that fails sends its sentence to the others. A rank that sends nothing for `deadline` is named in the Error of
// the others; a process that ends is for mpirun to notice, which ends the others.
class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(MPI_Comm comm, std::chrono::milliseconds deadline = std::chrono::minutes(10))
      : deadline_(deadline) {
    check(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &ranks_);
  }
  ~MpiTransport() override {
    if (failed_.empty()) MPI_Comm_free(&comm_);  // else some ranks may never come here
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  void all_to_all(std::span<const ConstBlock> send, std::span<const Block> receive, void* stream) override {
    begin_all_to_all(send, receive, stream)->wait();
  }

  // How far messages come while the caller computes is up to MPI: some need calls of it to go on.
  std::unique_ptr<Exchange> begin_all_to_all(std::span<const ConstBlock> send, std::span<const Block> receive,
                                             void*) override {
    check_usable();
    auto requests = std::make_unique<Requests>(*this);
    for (int r = 0; r < ranks_; ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (r != rank_)
        requests->add(receive[at], r, [&](std::byte* data, int bytes, MPI_Request* request) {
          return MPI_Irecv(data, bytes, MPI_BYTE, r, kData, comm_, request);
        });
    }
    for (int r = 0; r < ranks_; ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (r != rank_)
        requests->add(send[at], r, [&](const std::byte* data, int bytes, MPI_Request* request) {
          return MPI_Isend(data, bytes, MPI_BYTE, r, kData, comm_, request);
        });
    }
    return requests;
  }

  void all_gather(ConstBlock mine, Block all) override {
    std::vector<ConstBlock> send(static_cast<std::size_t>(ranks_), mine);
    std::vector<Block> receive;
    for (std::size_t r = 0; r < send.size(); ++r) receive.push_back(all.subspan(r * mine.size(), mine.size()));
    if (!mine.empty()) std::memcpy(receive[static_cast<std::size_t>(rank_)].data(), mine.data(), mine.size());
    all_to_all(send, receive, nullptr);
  }

  void fail(std::string_view sentence) noexcept override {
    if (!failed_.empty()) return;
    try {
      failed_ = "rank " + std::to_string(rank_) + " has failed: " + std::string(sentence.substr(0, kSentence));
      // The message outlives this transport, and a rank may never ask for it.
      static auto& sent = *new std::list<std::string>;
      const std::string& message = sent.emplace_back(failed_);
      for (int r = 0; r < ranks_; ++r) {
        MPI_Request request = MPI_REQUEST_NULL;
        if (r == rank_ || MPI_Isend(message.data(), static_cast<int>(message.size()), MPI_BYTE, r, kFailure, comm_,
                                    &request) != MPI_SUCCESS)
          continue;
        MPI_Request_free(&request);
      }
    } catch (...) {
      failed_ = "a rank has failed";
    }
  }

 private:
  static constexpr int kData = 1, kFailure = 2;      // tags
  static constexpr std::size_t kSentence = 500;      // bytes: MPI buffers a message of this size
  static constexpr std::size_t kMessage = 1u << 30;  // MPI counts in int

  void check(int code, const char* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    const std::string sentence = std::string(call) + " failed: " + text;
    fail(sentence);
    throw Error(ErrorCode::device_failure, sentence);
  }
  void check_usable() const {
    if (!failed_.empty()) throw Error(ErrorCode::device_failure, "the transport cannot be used any more: " + failed_);
  }
  [[noreturn]] void lose(const std::string& sentence) {
    failed_ = sentence;
    throw Error(ErrorCode::device_failure, sentence);
  }

  // Throws if a rank has said that it has failed.
  void hear() {
    int there = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, kFailure, comm_, &there, &status), "MPI_Iprobe");
    if (!there) return;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    std::string sentence(static_cast<std::size_t>(bytes), ' ');
    MPI_Recv(sentence.data(), bytes, MPI_BYTE, status.MPI_SOURCE, kFailure, comm_, MPI_STATUS_IGNORE);
    lose(sentence);
  }

  // Messages on their way, and the rank of each.
  class Requests final : public Exchange {
   public:
    explicit Requests(MpiTransport& transport) : transport_(transport) {}
    // Messages that will never be done, because a rank has failed: their memory goes away with the caller.
    ~Requests() override {
      for (std::size_t i = 0; i < requests_.size(); ++i) {
        if (requests_[i] != MPI_REQUEST_NULL && receives_[i]) MPI_Cancel(&requests_[i]);
      }
      const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(1);
      for (MPI_Request& request : requests_) {
        for (int done = 0; request != MPI_REQUEST_NULL && !done && std::chrono::steady_clock::now() < patience;)
          MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
      }
    }

    template <class Bytes, class Start>
    void add(Bytes block, int rank, const Start& start) {
      for (std::size_t at = 0; at < block.size(); at += kMessage) {
        const std::size_t bytes = std::min(kMessage, block.size() - at);
        MPI_Request request = MPI_REQUEST_NULL;
        transport_.check(start(block.data() + at, static_cast<int>(bytes), &request), "an exchange of MPI");
        requests_.push_back(request);
        of_.push_back(rank);
        receives_.push_back(std::is_same_v<Bytes, Block>);
      }
    }

    // Until all are done. It looks now and then for a rank that has failed, and for one that is late.
    void wait() override {
      using Clock = std::chrono::steady_clock;
      std::vector<int> done(requests_.size());
      Clock::time_point progress = Clock::now();
      for (std::size_t left = requests_.size(), looks = 0; left > 0; ++looks) {
        int count = 0;
        transport_.check(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, done.data(),
                                      MPI_STATUSES_IGNORE),
                         "an exchange of MPI");
        if (count > 0) {
          left -= static_cast<std::size_t>(count);
          progress = Clock::now();
          continue;
        }
        transport_.hear();
        if (Clock::now() - progress > transport_.deadline_) transport_.lose(late());
        if (looks < 100)
          sched_yield();
        else
          std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }

   private:
    std::string late() const {
      std::string ranks;
      for (int r = 0; r < transport_.ranks_; ++r) {
        for (std::size_t i = 0; i < requests_.size(); ++i) {
          if (of_[i] != r || requests_[i] == MPI_REQUEST_NULL) continue;
          ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
          break;
        }
      }
      const double seconds = std::chrono::duration<double>(transport_.deadline_).count();
      return "rank " + ranks + " has not answered for " + std::to_string(seconds).substr(0, 5) + " seconds";
    }

    MpiTransport& transport_;
    std::vector<MPI_Request> requests_;
    std::vector<int> of_;
    std::vector<bool> receives_;
  };

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, ranks_ = 1;
  const std::chrono::milliseconds deadline_;
  std::string failed_;
};

}  // namespace onepass::inline v0
