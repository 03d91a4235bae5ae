// print_kernels LIST FOLDER: for each line of kernels.txt, FOLDER/FAMILY_NAME.cpp, which compiles that kernel for the
// host (FAMILY_kernel.inl), and FOLDER/FAMILY_NAME.inc, the source that the library puts in front of it.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/backward_jvp/backward_jvp.hpp"
#include "cuda/backward_jvp/sm90/backward_jvp.hpp"
#include "cuda/backward_plain/backward_plain.hpp"
#include "cuda/block_mask/host.hpp"
#include "cuda/decode/decode.hpp"
#include "cuda/gemm/flat_gemm.hpp"
#include "cuda/gemm/plain_gemm.hpp"
#include "cuda/jvp/jvp.hpp"
#include "cuda/jvp/sm90/jvp.hpp"
#include "cuda/mla/mla.hpp"
#include "cuda/plain/plain.hpp"
#include "cuda/sm80/backward/backward.hpp"
#include "cuda/sm80/forward/forward.hpp"
#include "cuda/sm90/backward/backward.hpp"
#include "cuda/sm90/forward/forward.hpp"
#include "cuda/softmax/softmax.hpp"
#include "decode_config.hpp"
#include "onepass/error.hpp"
#include "problem/problem.hpp"
#include "shared_bytes.hpp"

namespace {

using namespace onepass;

constexpr int kSharedBytes = 232448;  // that a block may have, on Hopper
constexpr int kMultiprocessors = 132;

cuda::KernelProgram program_of(const std::string& family, const std::string& name, const Problem& p) {
  if (family == "sm90b") {
    const BackwardFeatures f = cuda::backward_features_of(p);
    sm90::BackwardConfig c = sm90::select_config(p, f).value();
    c.guarded = c.careful = name.starts_with("careful_");
    c.zeroes = sm90::may_zero(p, f, c);
    return sm90::program_of(f, sm90::shape_of(p, c), c, cuda::mods_source(p, 1));
  }
  if (family == "sm80b") {
    const BackwardFeatures f = cuda::backward_features_of(p);
    const sm80::BackwardConfig c = sm80::select_config(p, f, shared_bytes(name)).value();
    return sm80::program_of(f, sm80::shape_of(p, c), c, "sm_90", cuda::mods_source(p, 1));
  }
  if (family == "jvp")
    return cuda::jvp::program_of(cuda::jvp::features_of(p), cuda::jvp::select_config(p, kSharedBytes).value(), "sm_90",
                                 cuda::mods_source(p, 1));
  if (family == "jvpplain")
    return cuda::jvp::plain_program(cuda::jvp::features_of(p), "sm_90", cuda::mods_source(p, 1));
  if (family == "jvpsm90")
    return cuda::jvp::sm90::program_of(cuda::jvp::features_of(p), cuda::jvp::sm90::select_config(p).value(),
                                       cuda::mods_source(p, 1));
  if (family == "backwardplain") {  // its kernels have one config
    const cuda::backward_plain::Plan plan = cuda::backward_plain::select_plan(p).value();
    return cuda::backward_plain::program_of(cuda::backward_plain::Part::rows, plan, "sm_90",
                                            cuda::mods_source(p, cuda::backward_plain::derivatives_of(plan)));
  }
  if (family == "backwardjvp")  // likewise
    return cuda::backward_jvp::program_of(false, cuda::backward_jvp::select_plan(p, shared_bytes(name)).value(),
                                          "sm_90", cuda::mods_source(p, 2));
  if (family == "backwardjvpsm90")
    return cuda::backward_jvp::sm90::program_of(false, cuda::backward_jvp::sm90::select_plan(p).value(), "sm_90a",
                                                cuda::mods_source(p, 2));
  if (family == "mla") return decode::mla_program(cuda::features_of(p), decode::select_mla(p).value());
  if (family == "rows" || family == "rowstates") {  // rowstates: the first of two launches
    const cuda::SoftmaxPlan plan = cuda::select_softmax(p).value();
    return cuda::softmax_program(family == "rows" ? plan.config : cuda::states_config(plan), "sm_90");
  }
  if (family == "gemm")
    return cuda::flat_gemm_program(cuda::select_flat_gemm(p, kSharedBytes, kMultiprocessors).value().config, "sm_90");
  if (family == "plaingemm") return cuda::plain_gemm_program(cuda::select_plain_gemm(p).value(), "sm_90");
  if (family == "blockmask") return cuda::block_mask_programs(p, "sm_90").back();  // that of tiles
  if (family == "mod") return cuda::mod_program(p, "sm_90");
  if (family == "plain") return cuda::plain_program(cuda::select_plain(p).value(), "sm_90", cuda::mods_source(p));
  if (family == "decode")
    return decode::program_of(cuda::features_of(p), decode_config(p, name, kSharedBytes), "sm_90", decode::mods_of(p));
  if (family == "sm80")
    return sm80::program_of(cuda::features_of(p), sm80::select_config(p, shared_bytes(name)).value(), "sm_90",
                            cuda::mods_source(p));
  return sm90::program_of(cuda::features_of(p), sm90::select_config(p).value(), cuda::mods_source(p));
}

// Only what differs, so that a library that prints the same configs compiles no kernel again.
void write(const std::filesystem::path& path, const std::string& content) {
  std::ifstream there(path);
  if (there && std::string(std::istreambuf_iterator<char>(there), {}) == content) return;
  std::ofstream(path) << content;
}

}  // namespace

int main(int, char** argv) {
  std::ifstream list(argv[1]);
  const std::filesystem::path folder = argv[2];
  std::string line, family, name, problem;
  try {
    while (std::getline(list, line)) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream words(line);
      std::getline(words >> family >> name >> std::ws, problem);
      const cuda::KernelProgram program = program_of(family, name, parse_problem(problem));
      const std::string file = family + "_" + name;
      write(folder / (file + ".inc"), program.config + "\n" + program.user_code + "\n");
      write(folder / (file + ".cpp"), text("#define KERNEL_NAME ", name, "\n#define KERNEL_PROBLEM \"", problem,
                                           "\"\n#define KERNEL_FILE \"", program.file, "\"\n#define KERNEL_CONFIG \"",
                                           file, ".inc\"\n#include \"on_host/", family, "_kernel.inl\"\n"));
    }
  } catch (const Error& e) {
    std::cerr << line << ": " << e.what() << "\n";
    return 1;
  }
}
