// A sequence sharded between the ranks of MPI: mpirun -n 4 context_parallel. Each rank trains on its positions: the
// loss is half the sum of squares of the outputs, and its gradients are those of one process.
#include <mpi.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include <onepass/onepass.hpp>
#include <onepass/transport_mpi.hpp>

namespace {

constexpr std::int64_t kLength = 1000, kHeads = 8, kHeadsKv = 2, kDim = 64;
constexpr onepass::Attention kCausal{.band = {.causal = true, .left = 256}};

// The numbers at some positions: [heads, rows, dim].
std::vector<float> numbers(std::int64_t heads, const std::vector<onepass::context_parallel::Piece>& pieces,
                           float phase) {
  std::vector<float> x;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (const auto& piece : pieces) {
      for (std::int64_t i = piece.positions.begin; i < piece.positions.end; ++i) {
        for (std::int64_t d = 0; d < kDim; ++d) x.push_back(std::sin(phase * float(1 + (7 * h + 3 * i + 5 * d) % 101)));
      }
    }
  }
  return x;
}

// This rank's part of the loss, and of the sum of |dk|.
std::pair<double, double> train(onepass::Transport& transport, const onepass::context_parallel::Layout& layout) {
  const auto pieces = layout.runs(transport.rank());
  const std::int64_t rows = layout.count(transport.rank());
  std::vector<float> q = numbers(kHeads, pieces, 0.3f), k = numbers(kHeadsKv, pieces, 0.7f);
  std::vector<float> v = numbers(kHeadsKv, pieces, 0.2f);
  std::vector<float> out(q.size()), lse(static_cast<std::size_t>(kHeads * rows));
  std::vector<float> dq(q.size()), dk(k.size()), dv(v.size());
  onepass::AttentionTensors t{.q = onepass::view(q.data(), {1, kHeads, rows, kDim}),
                              .k = onepass::view(k.data(), {1, kHeadsKv, rows, kDim}),
                              .v = onepass::view(v.data(), {1, kHeadsKv, rows, kDim}),
                              .out = onepass::view(out.data(), {1, kHeads, rows, kDim}),
                              .lse = onepass::view(lse.data(), {1, kHeads, rows})};
  onepass::context_parallel_attention(transport, {layout}, t, kCausal);

  double loss = 0, sum = 0;
  std::vector<float> dout = out;  // the gradient of half the sum of squares
  for (const float x : out) loss += double(x) * double(x) / 2;
  t.dout = onepass::view(dout.data(), {1, kHeads, rows, kDim});
  t.dq = onepass::view(dq.data(), {1, kHeads, rows, kDim});
  t.dk = onepass::view(dk.data(), {1, kHeadsKv, rows, kDim});
  t.dv = onepass::view(dv.data(), {1, kHeadsKv, rows, kDim});
  onepass::context_parallel_attention_backward(transport, {layout}, t, kCausal);
  for (const float x : dk) sum += std::abs(double(x));
  return {loss, sum};
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  bool right = false;
  {
    onepass::MpiTransport everybody(MPI_COMM_WORLD), alone(MPI_COMM_SELF);
    using onepass::context_parallel::Layout;
    auto [loss, sum] = train(everybody, Layout::zigzag(kLength, everybody.ranks()));
    for (double* x : {&loss, &sum}) MPI_Allreduce(MPI_IN_PLACE, x, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    const auto [one_loss, one_sum] = train(alone, Layout::contiguous(kLength, 1));
    if (everybody.rank() == 0) std::printf("%d ranks: loss %.4f, sum of |dk| %.4f\n", everybody.ranks(), loss, sum);
    right = std::abs(loss - one_loss) < 1e-5 * one_loss && std::abs(sum - one_sum) < 1e-5 * one_sum;
  }
  MPI_Finalize();
  return right ? 0 : 1;
}
