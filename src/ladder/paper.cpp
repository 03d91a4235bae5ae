#include "ladder/sample.hpp"
#include "ladder/steps/flash1_backward.hpp"
#include "ladder/steps/standard_backward.hpp"
#include "ladder/table.hpp"

namespace onepass::ladder {
namespace {

constexpr Index kHeads = 16 * 64;

Counts times(Counts c, Index count) {
  for (Index* x : {&c.matmul_flops, &c.pointwise_flops, &c.exponentials, &c.bytes_read, &c.bytes_written}) *x *= count;
  return c;
}

}  // namespace

double PaperRow::gflops_as_in_paper() const {
  return (static_cast<double>(counts.matmul_flops) / 16 +
          static_cast<double>(counts.pointwise_flops + counts.exponentials)) *
         1e-9;
}

std::vector<PaperRow> measure_paper(const PaperOptions& options) {
  const RandomHead data(parse_problem("fwd b1 h1 s1024 d64 fp16 causal_bottom_right dropout=0.1 seed=1"));
  const Head<float>& head = data.head();
  const auto progress = [&](Index done) {
    if (options.progress) options.progress(done, 2);
  };
  std::vector<PaperRow> rows;
  {
    Machine<float> machine(options.fast_bytes);
    const StandardForward<float> f = standard_forward(machine, head);
    standard_backward(machine, head, f, data.d_o());
    rows.push_back({"standard attention", times(machine.counts, kHeads), machine.extra_peak(), 66.6, 40.3});
    progress(1);
  }
  {
    Machine<float> machine(options.fast_bytes);
    const Forward<float> f =
        flash1_forward(machine, head, flash1_forward_tiles(options.sram_bytes, options.fast_bytes, head));
    flash1_backward(machine, head, f, data.d_o(), flash1_backward_tiles(options.sram_bytes, options.fast_bytes, head));
    rows.push_back({"FlashAttention-1", times(machine.counts, kHeads), machine.extra_peak(), 75.2, 4.4});
    progress(2);
  }
  return rows;
}

}  // namespace onepass::ladder
