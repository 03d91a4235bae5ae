#include "cpu/implementations.hpp"

#include <vector>

#include "base/make_once.hpp"
#include "cpu/amx/amx.hpp"
#include "cpu/amx/backward.hpp"
#include "cpu/amx/flat_gemm.hpp"
#include "cpu/append/append.hpp"
#include "cpu/backward/backward.hpp"
#include "cpu/backward_jvp/backward_jvp.hpp"
#include "cpu/decode/decode.hpp"
#include "cpu/flash/flash.hpp"
#include "cpu/gemm/blas.hpp"
#include "cpu/gemm/flat_gemm.hpp"
#include "cpu/jvp/jvp.hpp"
#include "cpu/merge/merge.hpp"
#include "cpu/mixed/mixed.hpp"
#include "cpu/quantize/quantize.hpp"
#include "cpu/softmax/softmax.hpp"

namespace onepass::cpu {

std::span<const Implementation> implementations() {
  static constinit MakeOnce<const std::vector<Implementation>> rows;
  return rows.get([] {
    std::vector<Implementation> all;
    const auto add = [&](std::span<const Implementation> family) {
      all.insert(all.end(), family.begin(), family.end());
    };
    all.push_back(kMixedImplementation);
#if defined(__x86_64__)
    add(amx::one_result_implementations());
#endif
    add(decode_implementations());
#if defined(__x86_64__)
    add(amx::implementations());
#endif
    add(flash::implementations());
#if defined(__x86_64__)
    add(amx::backward_implementations());
#endif
    add(backward::implementations());
    add(jvp::implementations());
    add(backward_jvp::implementations());
    all.push_back(kMergeImplementation);
    add(softmax_implementations());
    all.push_back(kQuantizeImplementation);
    all.push_back(kAppendImplementation);
#if defined(__x86_64__)
    add(amx::flat_gemm_implementations());
#endif
    add(flat_gemm_implementations());
    all.push_back(kBlasImplementation);
    return all;
  });
}

}  // namespace onepass::cpu
