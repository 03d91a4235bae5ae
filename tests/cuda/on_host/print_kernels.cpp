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
#include "cuda/decode/decode.hpp"
#include "cuda/gemm/flat_gemm.hpp"
#include "cuda/gemm/plain_gemm.hpp"
#include "cuda/mla/mla.hpp"
#include "cuda/plain/plain.hpp"
#include "cuda/sm80/backward/backward.hpp"
#include "cuda/sm80/forward/forward.hpp"
#include "cuda/sm90/backward/backward.hpp"
#include "cuda/sm90/forward/forward.hpp"
#include "cuda/softmax/softmax.hpp"
#include "onepass/error.hpp"
#include "problem/problem.hpp"

namespace {

using namespace onepass;

constexpr int kSharedBytes = 232448;  // that a block may have, on Hopper
constexpr int kMultiprocessors = 132;

cuda::KernelProgram program_of(const std::string& family, const std::string& name, const Problem& p) {
  std::string why;
  if (family == "sm90b") {
    const BackwardFeatures f = cuda::backward_features_of(p);
    if (sm90::BackwardConfig c; sm90::select_config(p, f, c, why)) {
      c.guarded = c.careful = name.starts_with("careful_");
      return sm90::program_of(f, sm90::shape_of(p, c), c, cuda::mods_source(p, true));
    }
  } else if (family == "sm80b") {
    const BackwardFeatures f = cuda::backward_features_of(p);
    if (sm80::BackwardConfig c; sm80::select_config(p, f, kSharedBytes, c, why))
      return sm80::program_of(f, sm80::shape_of(p, c), c, "sm_90", cuda::mods_source(p, true));
  } else if (family == "mla") {
    if (decode::MlaConfig c; decode::select_mla(p, c, why)) return decode::mla_program(cuda::features_of(p), c);
  } else if (family == "rows" || family == "rowstates") {  // rowstates: the first of two launches
    if (cuda::SoftmaxPlan plan; cuda::select_softmax(p, plan, why))
      return cuda::softmax_program(family == "rows" ? plan.config : cuda::states_config(plan), "sm_90");
  } else if (family == "gemm") {
    if (cuda::FlatGemmPlan plan; cuda::select_flat_gemm(p, kSharedBytes, kMultiprocessors, plan, why))
      return cuda::flat_gemm_program(plan.config, "sm_90");
  } else if (family == "plaingemm") {
    if (PlainGemmConfig c; cuda::select_plain_gemm(p, c, why)) return cuda::plain_gemm_program(c, "sm_90");
  } else if (family == "mod") {
    return cuda::mod_program(p, "sm_90");
  } else if (family == "plain") {
    if (cuda::select_plain(p, why)) return cuda::plain_program(cuda::features_of(p), "sm_90", cuda::mods_source(p));
  } else if (family == "decode") {
    if (decode::DecodeConfig c; decode::select_config(p, kSharedBytes, c, why)) {
      c.even = name.starts_with("even_");
      return decode::program_of(cuda::features_of(p), c, "sm_90", cuda::mods_source(p));
    }
  } else if (family == "sm80") {
    if (sm80::ForwardConfig c; sm80::select_config(p, kSharedBytes, c, why))
      return sm80::program_of(cuda::features_of(p), c, "sm_90", cuda::mods_source(p));
  } else if (sm90::ForwardConfig c; sm90::select_config(p, c, why)) {
    return sm90::program_of(cuda::features_of(p), c, cuda::mods_source(p));
  }
  throw Error(ErrorCode::unsupported, why);
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
