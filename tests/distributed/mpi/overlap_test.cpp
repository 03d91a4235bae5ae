// Exchanges begin before the calls that they go on beside.
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cases.hpp"
#include "tests.hpp"

namespace onepass::test {
namespace {

// Writes b and w into a log where an exchange begins and is waited for.
class Recording final : public Transport {
 public:
  Recording(Transport& transport, std::string& log) : transport_(transport), log_(log) {}
  int rank() const override { return transport_.rank(); }
  int ranks() const override { return transport_.ranks(); }
  void all_to_all(std::span<const ConstBlock> send, std::span<const Block> receive, void* stream) override {
    transport_.all_to_all(send, receive, stream);
  }
  std::unique_ptr<Exchange> begin_all_to_all(std::span<const ConstBlock> send, std::span<const Block> receive,
                                             void* stream) override {
    log_ += 'b';
    return std::make_unique<Begun>(transport_.begin_all_to_all(send, receive, stream), log_);
  }
  void all_gather(ConstBlock mine, Block all) override { transport_.all_gather(mine, all); }
  void fail(std::string_view sentence) noexcept override { transport_.fail(sentence); }

 private:
  class Begun final : public Exchange {
   public:
    Begun(std::unique_ptr<Exchange> exchange, std::string& log) : exchange_(std::move(exchange)), log_(log) {}
    void wait() override {
      log_ += 'w';
      exchange_->wait();
    }

   private:
    std::unique_ptr<Exchange> exchange_;
    std::string& log_;
  };

  Transport& transport_;
  std::string& log_;
};

// Writes c where something is computed, or copied into a message or out of it.
class Computing final : public Executor {
 public:
  explicit Computing(std::string& log) : log_(log) {}
  int workers() const override { return 1; }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    if (!log_.ends_with('c')) log_ += 'c';
    serial_executor().parallel_for(tasks, body, context);
  }

 private:
  std::string& log_;
};

// A transport that knows only all_to_all.
class Plain final : public Transport {
 public:
  explicit Plain(Transport& transport) : transport_(transport) {}
  int rank() const override { return transport_.rank(); }
  int ranks() const override { return transport_.ranks(); }
  void all_to_all(std::span<const ConstBlock> send, std::span<const Block> receive, void* stream) override {
    transport_.all_to_all(send, receive, stream);
  }
  void all_gather(ConstBlock mine, Block all) override { transport_.all_gather(mine, all); }
  void fail(std::string_view sentence) noexcept override { transport_.fail(sentence); }

 private:
  Transport& transport_;
};

}  // namespace

bool overlap() {
  MpiTransport mpi(MPI_COMM_WORLD);
  const Case c{.name = "overlap", .length = 40, .options = {.band = {.causal = true}}};
  const Layout layout = Layout::zigzag(c.length, mpi.ranks());
  bool right = true;
  const auto expect = [&](const ContextParallel& how, const std::string& forward, const std::string& backward) {
    std::string log;
    Recording transport(mpi, log);
    Computing executor(log);
    Mine mine(c, layout, mpi.rank()), plain(c, layout, mpi.rank());
    mine.run(transport, how, c, executor);
    Plain without(mpi);
    plain.run(without, how, c);
    if (log != forward + backward) {
      std::printf("rank %d: %s in place of %s\n", mpi.rank(), log.c_str(), (forward + backward).c_str());
      right = false;
    }
    Results::each([&](const char* name, Array Results::* x) {
      for (std::size_t i = 0; i < (mine.results.*x).count(); ++i) {
        if ((mine.results.*x).at(i) == (plain.results.*x).at(i)) continue;
        std::printf("rank %d: %s differs from that of a transport without exchanges that begin\n", mpi.rank(), name);
        right = false;
        break;
      }
    });
  };
  // Three ranks: a shard comes while the one before is computed, and gradients go home while the next one is.
  expect({.layout = layout, .scheme = Scheme::ring}, "cbcwcbcwc", "bcwcbcbwcwcbwc");
  // The second group comes while the first is computed, whose gradients go home while the second is computed.
  expect({.layout = layout, .head_groups = 2}, "cbcbwcwc", "bcbwcbwcbwcwc");
  return right;
}

}  // namespace onepass::test
