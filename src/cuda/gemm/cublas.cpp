#include "cuda/gemm/cublas.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "base/make_once.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/driver/library.hpp"
#include "cuda/gemm/cublas_api.hpp"
#include "cuda/host/kernels.hpp"
#include "cuda/host/pretended.hpp"
#include "problem/gemm/flat_gemm_problem.hpp"
#include "problem/roles.hpp"

namespace onepass::cuda {
namespace {

constexpr std::uint64_t kMaxWorkspace = 32 << 20;  // what PyTorch gives it on Hopper

struct Opened {
  Cublas api;
  std::string why;
};

Opened open_cublas() {
  Opened o;
  const char* const chosen = std::getenv("ONEPASS_CUBLASLT");
  void* library = nullptr;
  if (chosen && *chosen) {
    library = open_library("ONEPASS_CUBLASLT", chosen, "cublasLtGetVersion", o.why);
  } else {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so"})
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) o.why = "libcublasLt.so.13 is not on this machine";
  }
  if (!library) return o;
  const auto resolve = [&](const char* symbol, auto& into) {
    into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(dlsym(library, symbol));
    if (!into && o.why.empty()) o.why = text("libcublasLt is too old: it does not define ", symbol);
  };
  resolve("cublasLtGetVersion", o.api.version);
#define ONEPASS_RESOLVE(symbol, member, parameters) resolve(#symbol, o.api.member);
  ONEPASS_CUBLAS_API(ONEPASS_RESOLVE)
#undef ONEPASS_RESOLVE
  return o;
}

void check(Result result, const char* call) {
  want(result == 0, ErrorCode::device_failure, call, " failed (cuBLAS status ", result, ")");
}

LtHandle handle_of(const Cublas& api, const DeviceFacts& device) {
  static std::mutex making;
  static std::map<int, LtHandle> handles;  // never destroyed: other threads may use them while the process ends
  const std::lock_guard lock(making);
  LtHandle& handle = handles[device.ordinal];
  if (!handle) check(api.create(&handle), "cublasLtCreate");
  return handle;
}

int type_of(DType t) { return t == DType::f32 ? kLtF32 : t == DType::f16 ? kLtF16 : kLtBf16; }

// y^T [n, m] = w [k, n]^T x^T [k, m], in cuBLAS's order of numbers.
class State final : public PlanState {
 public:
  State(const Request& request, const Cublas& api, const DeviceFacts& device)
      : PlanState(request.problem), api_(api), device_(device) {
    const Problem& p = *problem;
    const ContextScope scope(device_);
    handle_ = handle_of(api, device);
    check(api_.desc_create(&desc_, kLtComputeF32, kLtF32), "cublasLtMatmulDescCreate");
    set(kLtTransposeA, kLtTranspose);
    if (p.column_bias) set(kLtEpilogue, kLtEpilogueBias);
    w_ = layout(p.dtype, p.k, p.n, p.layout.w);
    x_ = layout(p.dtype, p.k, p.m, p.layout.x);
    y_ = layout(p.out_dtype, p.n, p.m, p.layout.y);
    find();
  }
  ~State() override {
    for (const LtLayout l : {w_, x_, y_})
      if (l) api_.layout_destroy(l);
    if (desc_) api_.desc_destroy(desc_);
  }

  bool found() const { return count_ > 0; }
  std::string describe() const override {
    return text("cuBLASLt ", api_.version() / 10000, ".", api_.version() / 100 % 100, ", first heuristic");
  }
  void run(const Tensors& t, void* workspace, Executor&, void* stream) const override {
    if (problem->m == 0 || problem->n == 0) return;
    const ContextScope scope(device_);
    LtDesc desc = desc_, own = nullptr;
    if (problem->column_bias) {  // its address is the product's, and a plan is good for any
      check(api_.desc_create(&own, kLtComputeF32, kLtF32), "cublasLtMatmulDescCreate");
      desc = own;
      const auto put = [&](int attribute, const auto& value) {
        return api_.desc_set(desc, attribute, &value, sizeof value);
      };
      put(kLtTransposeA, kLtTranspose), put(kLtEpilogue, kLtEpilogueBias), put(kLtBiasPointer, t.column_bias.data);
    }
    const float one = 1, zero = 0;
    const Result result = api_.matmul(handle_, desc, &one, t.w.data, w_, t.x.data, x_, &zero, t.y.data, y_, t.y.data,
                                      y_, &first_.algo, workspace, workspace_bytes, static_cast<Stream>(stream));
    if (own) api_.desc_destroy(own);
    check(result, "cublasLtMatmul");
  }

 private:
  void set(int attribute, int value) {
    check(api_.desc_set(desc_, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }
  LtLayout layout(DType dtype, std::int64_t numbers, std::int64_t rows, const Dims& stride) const {
    LtLayout l = nullptr;
    check(api_.layout_create(&l, type_of(dtype), static_cast<std::uint64_t>(numbers), static_cast<std::uint64_t>(rows),
                             row_step(stride, rows, numbers)),
          "cublasLtMatrixLayoutCreate");
    return l;
  }
  void find() {
    LtPreference preference = nullptr;
    check(api_.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    api_.preference_set(preference, kLtMaxWorkspace, &kMaxWorkspace, sizeof kMaxWorkspace);
    for (const auto& [i, role] : {std::pair{0, Role::w}, {1, Role::x}, {2, Role::y}, {3, Role::y}}) {
      const std::uint32_t bytes = problem->alignment[static_cast<std::size_t>(role)];
      api_.preference_set(preference, kLtAlignmentOfA + i, &bytes, sizeof bytes);
    }
    api_.heuristic(handle_, desc_, w_, x_, y_, y_, preference, 1, &first_, &count_);
    api_.preference_destroy(preference);
    workspace_bytes = count_ > 0 ? first_.workspace_bytes : 0;
  }

  const Cublas& api_;
  const DeviceFacts& device_;
  LtHandle handle_ = nullptr;
  LtDesc desc_ = nullptr;
  LtLayout w_ = nullptr, x_ = nullptr, y_ = nullptr;
  LtHeuristic first_{};
  int count_ = 0;
};

// On a device that is not here.
class Unasked final : public PlanState {
 public:
  using PlanState::PlanState;
  std::string describe() const override { return "cuBLASLt, if it is installed there; it chooses on the device"; }
  void run(const Tensors&, void*, Executor&, void*) const override {
    throw Error(ErrorCode::internal, "a plan for a device that is not here cannot run");
  }
};

Decision plan_for(const Request& request) {
  const Problem& p = *request.problem;
  const auto device = device_of(p);
  if (!device) return Decision::no(device.refusal());
  std::string why;
  const Cublas* const api = pretended_device() ? nullptr : cublas(why);
  if (!api && !pretended_device()) return Decision::no(why);
  if (p.m == 0 || p.n == 0 || p.k == 0) return Decision::no("cuBLAS does not support empty matrices");
  for (const auto& [name, stride, rows, numbers] :
       {std::tuple{"x", p.layout.x, p.m, p.k}, {"w", p.layout.w, p.n, p.k}, {"y", p.layout.y, p.m, p.n}})
    if (row_step(stride, rows, numbers) == 0)
      return Decision::no(text("cuBLAS needs ", name, " with unit inner stride and non-overlapping rows"));
  if (p.column_bias && (p.out_dtype != p.dtype || (p.n > 1 && p.layout.column_bias[0] != 1)))
    return Decision::no("cuBLAS needs a contiguous column_bias with the dtype of y");
  if (!api) return {{}, std::make_shared<Unasked>(request.problem)};
  auto state = std::make_shared<State>(request, *api, **device);
  if (!state->found()) return Decision::no("cuBLAS has no algorithm for this problem");
  return {{}, std::move(state)};
}

}  // namespace

const Cublas* cublas(std::string& why) {
  static constinit MakeOnce<const Opened> opened;
  const Opened& o = opened.get(open_cublas);
  why = o.why;
  return o.why.empty() ? &o.api : nullptr;
}

constinit const Implementation kCublasImplementation{"cuda.cublas", plan_for, kLinear, Dataflow::gemm};

}  // namespace onepass::cuda
