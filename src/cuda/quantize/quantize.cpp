#include "cuda/quantize/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/quantize_problem.hpp"
#include "core/roles.hpp"
#include "core/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/host/initializer.hpp"
#include "cuda/host/kernels.hpp"

namespace onepass::cuda {
namespace {

// Rows of a block of threads where they share nothing within a launch: many blocks, each at another step, keep memory
// busier than few large ones.
constexpr int kFewRows = 32;
// A piece of a survey: the blocks of the last launch read the results of all pieces of their head.
constexpr std::int64_t kPieceRows = 512, kMostPieces = 16;

// Rows begin at multiples of 16 bytes of x and of 8 bytes of y.
bool in_vectors(const Problem& p) {
  const auto fits = [&](Role role, std::int64_t bytes, std::int64_t size) {
    const Dims& s = p.layout.*row_of(role).layout;
    return p.alignment[static_cast<std::size_t>(role)] >= bytes && (p.seq_k <= 1 || s[3] == 1) &&
           std::all_of(s.begin(), s.begin() + 3, [&](std::int64_t stride) { return stride * size % bytes == 0; });
  };
  return p.seq_k % kQuantizeRun == 0 && fits(Role::x, 16, static_cast<std::int64_t>(size_of(p.dtype))) &&
         fits(Role::y, 8, 1);
}

class State final : public PlanState {
 public:
  State(const Request& request, const DeviceFacts& device, const QuantizePlan& plan)
      : PlanState(request.problem), device_(device), plan_(plan) {
    workspace_bytes = plan.workspace_bytes();
  }
  std::string describe() const override {
    std::string line = text(plan_.config.rows, " rows a block");
    line += !plan_.surveys() ? text(", read once") : text(", read twice: first in ", plan_.pieces, " pieces of a head");
    return line + (plan_.config.vectors ? "" : ", number by number");
  }
  void prepare() const override {
    if (plan_.surveys()) load(plan_.survey_config(), nullptr);
    load(plan_.config, nullptr);
  }
  void run(const Tensors& tensors, void* workspace, Executor&, void* stream_) const override {
    const auto stream = static_cast<Stream>(stream_);
    QuantizeParams parameters = quantize_params(*problem, plan_, tensors, workspace);
    if (plan_.heads * static_cast<std::int64_t>(plan_.blocks) == 0) return prepare();
    const ContextScope scope(device_);
    void* arguments[] = {&parameters};
    const auto start = [&](const QuantizeConfig& config, int of_head) {
      launch(load(config, stream), static_cast<unsigned>(plan_.heads * of_head),
             static_cast<unsigned>(config.threads()), config.shared_bytes(), stream, arguments);
    };
    if (plan_.surveys()) start(plan_.survey_config(), plan_.pieces);
    start(plan_.config, plan_.blocks);
  }

 private:
  const Kernel& load(const QuantizeConfig& config, Stream stream) const {
    static KernelTable<QuantizeConfig> kernels;
    return kernels.find(device_.ordinal, config, config.shared_bytes(), stream,
                        [&] { return quantize_program(config, arch_of(device_)); });
  }

  const DeviceFacts& device_;
  const QuantizePlan plan_;
};

}  // namespace

QuantizeConfig QuantizePlan::survey_config() const {
  QuantizeConfig c = config;
  c.part = QuantizePart::survey;
  c.by_block = false;
  c.rows = c.centered ? static_cast<int>(kDescaleRows) : kFewRows;
  return c;
}
std::size_t QuantizePlan::workspace_bytes() const {
  const auto all = static_cast<std::size_t>(heads) * static_cast<std::size_t>(pieces);
  return surveys() ? all * sizeof(float) * static_cast<std::size_t>((config.centered ? config.dim : 0) + 1) : 0;
}

bool select_quantize(const Problem& p, QuantizePlan& plan, std::string& why) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max() / 2;
  if (p.batch * p.heads_q > kMost || p.seq_q > kMost || p.batch * p.heads_q * (p.seq_q / kFewRows + 1) > kMost) {
    why = "it counts rows of a head, and blocks of 128 rows, in 30 bits";
    return false;
  }
  plan.heads = static_cast<int>(p.batch * p.heads_q);
  // Factors and means of heads without rows are written too.
  const int rows = p.descale.blocks || p.centered ? static_cast<int>(kDescaleRows) : kFewRows;
  plan.blocks =
      static_cast<int>(std::max<std::int64_t>((p.seq_q + rows - 1) / rows, p.descale.blocks && !p.centered ? 0 : 1));
  const std::int64_t piece =
      std::max(kPieceRows, descale_blocks((p.seq_q + kMostPieces - 1) / kMostPieces) * kDescaleRows);
  plan.piece_rows = static_cast<int>(piece);
  plan.pieces = static_cast<int>(std::max<std::int64_t>(1, (p.seq_q + piece - 1) / piece));
  plan.config = {.input = scalar_type_of(p.dtype),
                 .dim = static_cast<int>(p.seq_k),
                 .hadamard = p.hadamard,
                 .centered = p.centered,
                 .by_block = p.descale.blocks,
                 .vectors = in_vectors(p),
                 .rows = rows,
                 .lanes = p.hadamard && p.seq_k % 128 == 0 && p.seq_k <= 128 ? 2 : 4,  // fewer shuffles
                 .part = QuantizePart::write};
  return true;
}

KernelProgram quantize_program(const QuantizeConfig& c, const std::string& arch) {
  const auto& [input, dim, hadamard, centered, by_block, vectors, rows, lanes, part] = c;
  const std::string config =
      Initializer()
          .field("input", input)
          .field("dim", dim)
          .field("hadamard", hadamard)
          .field("centered", centered)
          .field("by_block", by_block)
          .field("vectors", vectors)
          .field("rows", rows)
          .field("lanes", lanes)
          .word("part", part == QuantizePart::survey ? "QuantizePart::survey" : "QuantizePart::write")
          .source();
  return {"cuda/quantize/quantize.cuh", "quantize_rows",
          text("#include \"cuda/quantize/quantize_params.hpp\"\nnamespace onepass {\nconstexpr QuantizeConfig "
               "quantize_config = ",
               config, ";\n}\n"),
          arch};
}

QuantizeParams quantize_params(const Problem& p, const QuantizePlan& plan, const Tensors& t, void* workspace) {
  QuantizeParams q{};
  q.x = t.x.data;
  q.y = static_cast<unsigned char*>(t.y.data);
  q.descale = static_cast<float*>(t.descale.data);
  q.mean = static_cast<float*>(t.mean.data);
  q.most = static_cast<float*>(workspace);
  q.sums = q.most + static_cast<std::int64_t>(plan.heads) * plan.pieces;
  const Layout& l = p.layout;
  std::copy_n(l.x.begin(), 4, q.x_stride);
  std::copy_n(l.y.begin(), 4, q.y_stride);
  std::copy_n(l.descale.begin(), 3, q.descale_stride);
  std::copy_n(l.mean.begin(), 3, q.mean_stride);
  std::ranges::copy(rotation_signs(p.seed), q.sign);
  q.root = 1 / std::sqrt(static_cast<float>(rotated_together(p.seq_k)));
  q.heads = static_cast<int>(p.heads_q);
  q.rows = static_cast<int>(p.seq_q);
  q.blocks = plan.blocks;
  q.pieces = plan.pieces;
  q.piece_rows = plan.piece_rows;
  q.group_batch = p.descale.batch ? 1 : static_cast<int>(std::max<std::int64_t>(1, p.batch));
  q.group_heads = p.descale.heads ? 1 : static_cast<int>(std::max<std::int64_t>(1, p.heads_q));
  return q;
}

const Implementation& quantize_implementation() {
  static const Implementation row{"cuda.quantize",
                                  [](const Request& request) {
                                    std::string why;
                                    QuantizePlan plan;
                                    const DeviceFacts* const device = device_of(*request.problem, why);
                                    if (!device || !select_quantize(*request.problem, plan, why))
                                      return Decision::no(why);
                                    return Decision{{}, std::make_shared<State>(request, *device, plan)};
                                  },
                                  Op::quantize};
  return row;
}

}  // namespace onepass::cuda
