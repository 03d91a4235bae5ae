// The host half of cpu.flat_gemm.amx: x packed into tiles, then tasks of 32 rows of w.
#include "cpu/amx/flat_gemm.hpp"

#include <algorithm>

#include "algebra/numerics.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "base/workspace.hpp"
#include "cpu/amx/amx.hpp"
#include "cpu/amx/kernels/tiles.hpp"
#include "cpu/common/place.hpp"

#include "algebra/ceil_div.hpp"
#include "cpu/amx/kernels/flat_gemm-inl.h"

namespace onepass::cpu::amx {
namespace {

class State final : public PlanState {
 public:
  State(const Request& request, const GemmKernels& kernels)
      : PlanState(request.problem),
        kernels_(kernels),
        groups_(ceil_div(problem->m, kGemmRows)),
        chunks_(ceil_div(problem->k, kGemmDepth)) {
    Workspace all;
    book(all, request.workers);
    workspace_bytes = all.bytes();
  }
  std::string describe() const override {
    return text("tiles of 16 x 16 fp32, ", kGemmRows, " rows of w by ", kGemmRows, " of x at a time");
  }
  void run(const Tensors& t, void* memory, Executor& executor, void*) const override {
    const Problem& p = *problem;
    Workspace w(memory);
    const Books books = book(w, executor.workers());
    parallel(executor, groups_ * chunks_, [&](std::int64_t task, int) {
      const std::int64_t group = task / chunks_, k = task % chunks_ * kGemmDepth;
      GemmPackTask pack{{}, static_cast<int>(std::min<std::int64_t>(kGemmDepth, p.k - k)), books.x + task * kGemmChunk};
      for (std::int64_t r = 0; r < std::min<std::int64_t>(kGemmRows, p.m - group * kGemmRows); ++r)
        pack.row[r] = static_cast<const std::uint16_t*>(t.x.data) + (group * kGemmRows + r) * p.layout.x[0] + k;
      kernels_.pack(pack);
    });
    parallel(executor, p.m == 0 ? 0 : ceil_div(p.n, kGemmRows), [&](std::int64_t block, int worker) {
      for (std::int64_t group = 0; group < groups_; ++group) multiply(t, books, block * kGemmRows, group, worker);
    });
  }

 private:
  struct Books {
    std::uint32_t* x;     // [groups][chunks][kGemmChunk]
    std::uint16_t* edge;  // [workers][kGemmRows][kGemmDepth]
    float* sums;          // [workers][kGemmRows][kGemmRows]
  };
  Books book(Workspace& w, int count) const {
    return {w.take<std::uint32_t>(groups_ * chunks_ * kGemmChunk),
            w.take<std::uint16_t>(std::int64_t{count} * kGemmRows * kGemmDepth),
            w.take<float>(std::int64_t{count} * kGemmRows * kGemmRows)};
  }

  void multiply(const Tensors& t, const Books& books, std::int64_t begin, std::int64_t group, int worker) const {
    const Problem& p = *problem;
    const int rows = static_cast<int>(std::min<std::int64_t>(kGemmRows, p.n - begin));
    float* const sums = books.sums + std::int64_t{worker} * kGemmRows * kGemmRows;
    kernels_.multiply({static_cast<const std::uint16_t*>(t.w.data) + begin * p.layout.w[0], p.layout.w[0], p.k, rows,
                       books.x + group * chunks_ * kGemmChunk,
                       books.edge + std::int64_t{worker} * kGemmRows * kGemmDepth, sums});
    const Dims &y = p.layout.y, &bias = p.layout.column_bias;
    for (std::int64_t m = group * kGemmRows; m < std::min(p.m, (group + 1) * kGemmRows); ++m)
      for (std::int64_t c = 0; c < rows; ++c) {
        const float more = p.column_bias ? load_element(t.column_bias.data, p.dtype, (begin + c) * bias[0]) : 0;
        store_element(t.y.data, p.out_dtype, m * y[0] + (begin + c) * y[1], sums[c * kGemmRows + m % kGemmRows] + more);
      }
  }

  const GemmKernels kernels_;
  const std::int64_t groups_, chunks_;
};

}  // namespace

std::string refuses_gemm(const Problem& p) {
  if (std::string why = why_elsewhere(p); !why.empty()) return why;
  if (p.dtype != DType::bf16)
    return text("requires x and w in bf16 (got ", name_of(p.dtype), "), because tiles multiply bf16");
  if (p.k > 1 && (p.layout.x[1] != 1 || p.layout.w[1] != 1))
    return "requires x and w with unit stride in their last dimension";
  return {};
}

Decision plan_gemm(const Request& request, const GemmKernels& kernels) {
  if (std::string why = refuses_gemm(*request.problem); !why.empty()) return Decision::no(std::move(why));
  return {{}, std::make_shared<State>(request, kernels)};
}

std::span<const Implementation> flat_gemm_implementations() {
  static const Implementation row{"cpu.flat_gemm.amx",
                                  [](const Request& request) {
                                    if (std::string why = missing_hardware(); !why.empty()) return Decision::no(why);
                                    return plan_gemm(request, gemm_kernels<HardwareTiles>());
                                  },
                                  kFlatGemm};
  return {&row, 1};
}

}  // namespace onepass::cpu::amx
