// A transport moves bytes between ranks. The library has none of its own: onepass/transport_mpi.hpp and
// onepass/transport_nccl.hpp make one of MPI and of NCCL in the caller's program.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "onepass/export.h"

namespace onepass::inline v0 {

// The ranks of a group, seen from one of them. One thread uses it at a time, and all ranks make the same calls in the
// same order. Its functions throw Error. A transport that has thrown throws in every later call.
class ONEPASS_API Transport {
 public:
  using Block = std::span<std::byte>;
  using ConstBlock = std::span<const std::byte>;

  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport();

  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // send[r] goes to rank r, and receive[r] comes from it. Both ranks know the size; empty blocks and a rank's own are
  // not sent. The memory is where the tensors of a call are. On a device the stream orders the exchange, and the
  // function may return before it is done.
  virtual void all_to_all(std::span<const ConstBlock> send, std::span<const Block> receive, void* stream) = 0;
  // An exchange that is under way. Its blocks stay the caller's and untouched until it is over: when wait() has
  // returned or thrown, or it is destroyed. On a device it is over for what is put on the stream afterwards.
  class Exchange {
   public:
    Exchange() = default;
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;
    virtual ~Exchange() = default;
    virtual void wait() = 0;
  };
  // all_to_all, which the caller may compute beside. Several may be under way; all ranks begin them in the same order.
  // In a transport that does not say otherwise it is over at once.
  virtual std::unique_ptr<Exchange> begin_all_to_all(std::span<const ConstBlock> send, std::span<const Block> receive,
                                                     void* stream);
  // all[r * mine.size()] and on comes from rank r. Host memory and equal sizes; done when it returns.
  virtual void all_gather(ConstBlock mine, Block all) = 0;
  // This rank has failed with this sentence, and the others may wait for it: their calls throw, and so do later ones
  // of this rank.
  virtual void fail(std::string_view sentence) noexcept = 0;

  // Kinds of calls that all ranks have agreed on. The library keeps them.
  std::vector<std::uint64_t> agreed{};
};

}  // namespace onepass::inline v0
