#include "cpu/gemm/blas.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/make_once.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "cpu/common/place.hpp"
#include "problem/gemm/flat_gemm_problem.hpp"
#include "problem/roles.hpp"

namespace onepass::cpu {
namespace {

// sgemm_ of the reference BLAS (columns side by side, 32-bit sizes) and dnnl_sgemm (oneDNN 2 and 3; rows side by side).
using Sgemm = void (*)(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
                       const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                       const float* beta, float* c, const int* ldc);
using DnnlSgemm = int (*)(char transpose_a, char transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
                          float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta,
                          float* c, std::int64_t ldc);

struct Opened {
  std::string name, why;
  Sgemm sgemm = nullptr;
  DnnlSgemm dnnl = nullptr;
};

Opened open_blas() {
  Opened o;
  const char* const chosen = std::getenv("ONEPASS_BLAS");
  const std::vector<const char*> names =
      chosen && *chosen ? std::vector{chosen} : std::vector{"libmkl_rt.so.2",   "libdnnl.so.3", "libdnnl.so.2",
                                                            "libopenblas.so.0", "libblis.so.4", "libblas.so.3"};
  for (const char* name : names) {
    void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) continue;
    o.name = name;
    o.sgemm = reinterpret_cast<Sgemm>(dlsym(library, "sgemm_"));
    o.dnnl = reinterpret_cast<DnnlSgemm>(dlsym(library, "dnnl_sgemm"));
    if (o.sgemm || o.dnnl) return o;
    o.why = text(name, " does not export sgemm_ or dnnl_sgemm");
  }
  if (o.why.empty()) o.why = "no BLAS was found (MKL, oneDNN, OpenBLAS, BLIS, libblas.so.3)";
  if (chosen && *chosen && o.name.empty()) o.why = text("ONEPASS_BLAS: ", chosen, " cannot be loaded");
  return o;
}

class State final : public PlanState {
 public:
  State(const Request& request, const Opened& library) : PlanState(request.problem), library_(library) {}

  std::string describe() const override { return text(library_.name, ", with its own threads"); }
  void run(const Tensors& t, void*, Executor& executor, void*) const override {
    const Problem& p = *problem;
    const std::int64_t x = row_step(p.layout.x, p.m, p.k), w = row_step(p.layout.w, p.n, p.k),
                       y = row_step(p.layout.y, p.m, p.n);
    const auto* const from = static_cast<const float*>(t.x.data);
    const auto* const weights = static_cast<const float*>(t.w.data);
    auto* const to = static_cast<float*>(t.y.data);
    if (library_.sgemm) {  // y^T = w x^T, as it counts
      const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k),
                lda = static_cast<int>(w), ldb = static_cast<int>(x), ldc = static_cast<int>(y);
      const float one = 1, zero = 0;
      library_.sgemm("T", "N", &n, &m, &k, &one, weights, &lda, from, &ldb, &zero, to, &ldc);
    } else {
      const int status = library_.dnnl('N', 'T', p.m, p.n, p.k, 1, from, x, weights, w, 0, to, y);
      want(status == 0, ErrorCode::internal, "dnnl_sgemm failed (status ", status, ")");
    }
    if (!p.column_bias) return;
    const auto* const bias = static_cast<const float*>(t.column_bias.data);
    parallel(executor, p.m, [&](std::int64_t row, int) {
      for (std::int64_t i = 0; i < p.n; ++i) to[row * y + i] += bias[i * p.layout.column_bias[0]];
    });
  }

 private:
  const Opened& library_;
};

Decision plan_for(const Request& request) {
  const Problem& p = *request.problem;
  if (std::string why = why_elsewhere(p); !why.empty()) return Decision::no(why);
  if (p.dtype != DType::f32) return Decision::no("supports fp32 only");
  static constinit MakeOnce<const Opened> opened;
  const Opened& library = opened.get(open_blas);
  if (!library.sgemm && !library.dnnl) return Decision::no(library.why);
  if (p.m == 0 || p.n == 0 || p.k == 0) return Decision::no("does not support empty matrices");
  for (const auto& [name, stride, rows, numbers] :
       {std::tuple{"x", p.layout.x, p.m, p.k}, {"w", p.layout.w, p.n, p.k}, {"y", p.layout.y, p.m, p.n}}) {
    const std::int64_t step = row_step(stride, rows, numbers);
    if (step == 0) return Decision::no(text("requires ", name, " with unit inner stride and rows that do not overlap"));
    if (std::max({step, rows, numbers}) > std::numeric_limits<int>::max())
      return Decision::no(text("sizes and strides must be at most ", std::numeric_limits<int>::max()));
  }
  return {{}, std::make_shared<State>(request, library)};
}

}  // namespace

constinit const Implementation kBlasImplementation{"cpu.blas", plan_for, kLinear, Dataflow::gemm};

}  // namespace onepass::cpu
