// The few-row kernel, compiled once per instruction set.
#include "cpu/common/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/decode/kernels.cpp"
#include <hwy/foreach_target.h>

#include "cpu/decode/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

void decode_task(const DecodeJob& job, std::int64_t task, int worker) {
  switch (job.problem.key_dtype()) {
    case DType::f16: return Decode<f16>(job, task, worker).run();
    case DType::bf16: return Decode<bf16>(job, task, worker).run();
    case DType::f8e4m3: return Decode<f8e4m3>(job, task, worker).run();
    default: return Decode<float>(job, task, worker).run();
  }
}

}  // namespace

DecodeTask decode_task_of() { return decode_task; }

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onepass::cpu {
namespace {

#define ONEPASS_ROW(ns, target, isa)                                                                                  \
  Implementation{"cpu.decode." isa,                                                                                   \
                 [](const Request& request) { return plan_decode(request, target, ns::decode_task_of()); }, kForward, \
                 Dataflow::flat_gemm, true},
const Implementation kRows[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW

}  // namespace

std::span<const Implementation> decode_implementations() { return kRows; }

}  // namespace onepass::cpu
#endif
