// The transport over NCCL with a fake of NCCL and of the CUDA runtime, whose device memory is the host's.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "onepass/context_parallel_attention.hpp"
#include "onepass/transport_nccl.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

using namespace std::chrono_literals;
using context_parallel::Layout;
using context_parallel::Scheme;
using Index = std::int64_t;

// work(transport) in a thread for each rank.
void on_ranks(int ranks, const std::function<void(NcclTransport&)>& work, std::chrono::milliseconds deadline = 10s) {
  const std::vector<ncclComm_t> comms = fake_comms(ranks);
  std::vector<std::thread> threads;
  for (const ncclComm_t comm : comms) {
    threads.emplace_back([&work, comm, deadline] {
      NcclTransport transport(comm, deadline);
      work(transport);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<float> numbers(const Layout& layout, int rank, Index heads, Index dim, int seed) {
  std::vector<float> found;
  for (Index h = 0; h < heads; ++h) {
    for (const auto& piece : layout.runs(rank)) {
      for (Index i = piece.positions.begin * dim; i < piece.positions.end * dim; ++i)
        found.push_back(static_cast<float>((31 * h + 17 * i + 7 * seed) % 23) / 11.0f - 1.0f);
    }
  }
  return found;
}

struct Call {
  std::vector<float> q, k, v, out, lse, dout, dq, dk, dv;
  AttentionTensors forward, backward;

  Call(const Layout& layout, int rank) {
    const Index rows = layout.count(rank);
    q = numbers(layout, rank, 4, 8, 1), k = numbers(layout, rank, 2, 8, 2), v = numbers(layout, rank, 2, 8, 3);
    dout = numbers(layout, rank, 4, 8, 4);
    out = q, dq = q, dk = k, dv = v, lse.resize(static_cast<std::size_t>(4 * rows));
    const auto tensor = [&](std::vector<float>& x, Index heads) {
      return Tensor(x.data(), DType::f32, {1, heads, rows, 8});
    };
    forward.q = tensor(q, 4), forward.k = tensor(k, 2), forward.v = tensor(v, 2), forward.out = tensor(out, 4);
    forward.lse = Tensor(lse.data(), DType::f32, {1, 4, rows});
    backward = forward;
    backward.dout = tensor(dout, 4), backward.dq = tensor(dq, 4), backward.dk = tensor(dk, 2),
    backward.dv = tensor(dv, 2);
  }
};

TEST(NcclTransport, AttentionIsThatOfOneDevice) {
  const Layout whole = Layout::contiguous(50, 1);
  const Attention causal{.band = {.causal = true}};
  Call one(whole, 0);
  attention(one.forward, causal);
  attention_backward(one.backward, causal);
  struct Case {
    int ranks;
    Scheme scheme;
    Index head_groups = 1;
  };
  for (const Case& c : {Case{1, Scheme::gather}, Case{2, Scheme::gather}, Case{3, Scheme::gather},
                        Case{3, Scheme::gather, 2}, Case{3, Scheme::ring}, Case{3, Scheme::ulysses}}) {
    on_ranks(c.ranks, [&](NcclTransport& transport) {
      const Layout layout = Layout::zigzag(50, transport.ranks());
      const ContextParallel how{.layout = layout, .scheme = c.scheme, .head_groups = c.head_groups};
      Call mine(layout, transport.rank());
      context_parallel_attention(transport, how, mine.forward, causal);
      context_parallel_attention_backward(transport, how, mine.backward, causal);
      transport.wait(nullptr);
      std::size_t at = 0;
      for (Index h = 0; h < 4; ++h) {
        for (const auto& piece : layout.runs(transport.rank())) {
          for (Index i = piece.positions.begin * 8; i < piece.positions.end * 8; ++i, ++at) {
            const auto there = static_cast<std::size_t>(h * 50 * 8 + i);
            EXPECT_NEAR(mine.out[at], one.out[there], 1e-5) << transport.ranks();
            EXPECT_NEAR(mine.dq[at], one.dq[there], 1e-5) << transport.ranks();
            if (h >= 2) continue;  // heads of K and V
            EXPECT_NEAR(mine.dk[at], one.dk[there], 1e-5) << transport.ranks();
            EXPECT_NEAR(mine.dv[at], one.dv[there], 1e-5) << transport.ranks();
          }
        }
      }
    });
  }
}

TEST(NcclTransport, AnExchangeGoesOnBesideTheCallersStream) {
  on_ranks(
      2,
      [](NcclTransport& transport) {
        if (transport.rank() == 1) return;  // it sends nothing
        std::vector<std::byte> memory(4);
        const std::vector<Transport::ConstBlock> send(2);
        const std::vector<Transport::Block> receive{{}, memory};
        const auto exchange = transport.begin_all_to_all(send, receive, nullptr);
        EXPECT_EQ(test::sentence_of([&] { transport.wait(nullptr); }), "");
        exchange->wait();
        EXPECT_EQ(test::sentence_of([&] { transport.wait(nullptr); }), "another rank has not answered for 100 ms");
      },
      100ms);
}

TEST(NcclTransport, RanksThatDisagreeThrowTheSameSentence) {
  on_ranks(3, [](NcclTransport& transport) {
    const Layout layout = Layout::zigzag(30, 3);
    Call mine(layout, transport.rank());
    const Attention options{.softcap = transport.rank() == 2 ? -1.0f : 0.0f};
    const std::string said =
        test::sentence_of([&] { context_parallel_attention(transport, {layout}, mine.forward, options); });
    EXPECT_TRUE(said.starts_with("rank 2: softcap must be")) << said;
    EXPECT_EQ(test::sentence_of([&] { context_parallel_attention(transport, {layout}, mine.forward); }), "");
  });
}

TEST(NcclTransport, ARankThatFailsEndsTheOthers) {
  on_ranks(2, [](NcclTransport& transport) {
    std::vector<std::byte> mine(4), all(8);
    const auto gather = [&] { transport.all_gather(mine, all); };
    if (transport.rank() == 1) {
      transport.fail("out of something");
      EXPECT_EQ(test::sentence_of(gather),
                "the transport cannot be used any more: rank 1 has failed: out of something");
    } else {
      EXPECT_EQ(test::sentence_of(gather),
                "a rank has ended or failed: remote process exited or there was a network error");
    }
    EXPECT_EQ(transport.comm(), nullptr);
  });
}

TEST(NcclTransport, ARankWithoutMemoryEndsTheOthers) {
  on_ranks(2, [](NcclTransport& transport) {
    const std::size_t each = transport.rank() == 1 ? std::size_t{1} << 20 : 4;
    std::vector<std::byte> mine(each), all(2 * each);
    const auto gather = [&] { transport.all_gather(mine, all); };
    const std::string refusal = "cudaMalloc failed: an error of the fake";
    EXPECT_EQ(test::sentence_of(gather),
              transport.rank() == 1 ? refusal
                                    : "a rank has ended or failed: remote process exited or there was a network error");
    if (transport.rank() == 1) {
      EXPECT_EQ(test::sentence_of(gather), "the transport cannot be used any more: " + refusal);
    }
    EXPECT_EQ(transport.comm(), nullptr);
  });
}

TEST(NcclTransport, ARankThatDoesNotComeEndsTheOthersAfterTheDeadline) {
  on_ranks(
      2,
      [](NcclTransport& transport) {
        if (transport.rank() == 1) return;
        std::vector<std::byte> mine(4), all(8);
        EXPECT_EQ(test::sentence_of([&] { transport.all_gather(mine, all); }),
                  "another rank has not answered for 100 ms");
        EXPECT_EQ(transport.comm(), nullptr);
      },
      100ms);
}

}  // namespace
}  // namespace onepass
