#include "cuda/compile/program.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cstdlib>

#include "cuda/compile/embedded.hpp"
#include "cuda/compile/sha256.hpp"
#include "cuda/driver/api.hpp"
#include "onepass/error.hpp"

namespace onepass::cuda {
namespace {

std::string source_of(const KernelProgram& p) {
  std::string s = p.generated + p.config + "\n";
  if (!p.user_code.empty()) s += "#line 1 \"user expression\"\n" + p.user_code + "\n#line 1 \"kernel\"\n";
  return s + "#include \"" + p.file + "\"\n";
}

struct Destroyed {
  const Nvrtc& api;
  Program program = nullptr;
  ~Destroyed() {
    if (program) api.destroy(&program);
  }
};

// Kernels that compute-sanitizer's racecheck understands; slower. tests/cuda/sanitize.sh asks for them.
bool for_racecheck() {
  static const bool wanted = std::getenv("ONEPASS_RACECHECK") != nullptr;
  return wanted;
}

}  // namespace

std::string arch_text(int major, int minor) { return text("sm_", major, minor); }

std::string_view device_source(std::string_view name) {
  for (const EmbeddedSource& t : embedded_sources())
    if (t.name == name) return t.text;
  throw Error(ErrorCode::bad_value, text("unknown device source '", name, "'"));
}

std::string key_of(const KernelProgram& p) {
  Sha256 hash;
  const auto add = [&](std::string_view s) { hash.add(text(s.size(), ":")).add(s); };  // "a", "bc" is not "ab", "c"
  for (const std::string& s : {p.file, p.entry, p.config, p.arch, p.user_code, p.generated}) add(s);
  for (const EmbeddedSource& t : embedded_sources()) {
    add(t.name);
    add(t.text);
  }
  if (for_racecheck()) add("racecheck");
  return hash.hex();
}

Cubin compile(const KernelProgram& p) {
  std::string why;
  const Nvrtc* api = nvrtc(&why);
  if (!api)
    throw Error(ErrorCode::unsupported,
                text("the kernel for {", p.config, "} is not in the cache and cannot be compiled: ", why));
  std::vector<const char*> texts, names;
  for (const EmbeddedSource& t : embedded_sources()) {
    texts.push_back(t.text);
    names.push_back(t.name);
  }
  const std::string source = source_of(p), arch = "-arch=" + p.arch;
  std::vector<const char*> options = {arch.c_str(), "-std=c++20", "-default-device", "--ptxas-options=-v"};
  // The user's divisions, one a score: 2 ulp instead of half, in 2 instructions instead of 8 and a branch.
  if (!p.user_code.empty()) options.push_back("-prec-div=false");
  if (for_racecheck()) options.push_back("-DONEPASS_EVERY_LANE_ARRIVES");  // device/pipeline.cuh
  Destroyed guard{*api};
  if (api->create(&guard.program, source.c_str(), "kernel", static_cast<int>(texts.size()), texts.data(),
                  names.data()) != 0) {
    throw Error(ErrorCode::unsupported, "NVRTC cannot create a program");
  }
  const Result result = api->compile(guard.program, static_cast<int>(options.size()), options.data());
  Cubin out;
  std::size_t n = 0;
  api->log_size(guard.program, &n);
  out.log.resize(n);
  api->log(guard.program, out.log.data());
  out.log.erase(std::remove(out.log.begin(), out.log.end(), '\0'), out.log.end());
  if (result != 0) {
    if (!p.user_code.empty())
      throw Error(ErrorCode::bad_text, text("the score_mod or mask_mod does not compile:\n", out.log));
    throw Error(ErrorCode::unsupported, text("the kernel for {", p.config, "} does not compile:\n", out.log));
  }
  api->cubin_size(guard.program, &n);
  out.bytes.resize(n);
  api->cubin(guard.program, out.bytes.data());
  return out;
}

}  // namespace onepass::cuda
