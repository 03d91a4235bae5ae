#include "cuda/driver/api.hpp"
#include "base/text.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/fork.hpp"
#include "base/make_once.hpp"
#include "cuda/driver/library.hpp"
#include "onepass/error.hpp"

namespace onepass::cuda {
namespace {

template <class Api>
struct Opened {
  Api api;
  std::string why;  // empty: usable
};

constexpr char kForked[] =
    "this process was forked from a process that uses CUDA, which the CUDA driver does not support; "
    "start processes with spawn instead of fork (Python: multiprocessing's \"spawn\")";
constexpr Result kNotInitialized = 3;  // CUDA_ERROR_NOT_INITIALIZED: returned by cuInit in such a process

void* open_first(const std::vector<const char*>& names, std::string& why) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  why = std::string(names.front()) + " is not on this machine";
  return nullptr;
}

template <class F>
void resolve(void* library, const char* symbol, F& into, std::string& why) {
  into = reinterpret_cast<F>(dlsym(library, symbol));
  if (!into && why.empty()) why = text("the library is too old: it does not define ", symbol);
}

std::string version_text(int version) { return text(version / 1000, ".", version % 1000 / 10); }

Opened<Driver> open_driver() {
  Opened<Driver> d;
  void* library = open_first({"libcuda.so.1", "libcuda.so"}, d.why);
  if (!library) return d;
#define ONEPASS_RESOLVE(symbol, member, parameters) resolve(library, #symbol, d.api.member, d.why);
  ONEPASS_DRIVER_API(ONEPASS_RESOLVE)
#undef ONEPASS_RESOLVE
  if (d.api.driver_version) d.api.driver_version(&d.api.version);
  if (d.api.version != 0 && d.api.version < kMinDriver) {
    d.why = text("the driver must support CUDA ", version_text(kMinDriver), " or later (got ",
                 version_text(d.api.version), ")");
  }
  if (!d.why.empty()) return d;
  int devices = 0;
  if (const Result r = d.api.init(0); r != 0)
    d.why = r == kNotInitialized ? kForked : text("cuInit failed (CUDA error ", r, "); the machine may have no GPU");
  else if (d.api.device_count(&devices) != 0 || devices == 0)
    d.why = "the CUDA driver found no GPU";
  return d;
}

// NVRTC opens its builtins by name when it compiles. The wheels of CUDA 13 do not tell it to look beside itself (no
// RUNPATH), but a library that is loaded already is found by its name wherever it lies.
void open_builtins_beside(const Nvrtc& api) {
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void*>(api.version), &found) == 0 || !found.dli_fname) return;
  const std::string path = found.dli_fname;
  if (const std::size_t slash = path.rfind('/'); slash != path.npos)
    dlopen(text(path.substr(0, slash), "/libnvrtc-builtins.so.", api.major, ".", api.minor).c_str(), RTLD_NOW);
}

constinit MakeOnce<const std::vector<std::string>> offered_nvrtc;

Opened<Nvrtc> open_nvrtc() {
  Opened<Nvrtc> n;
  const char* const chosen = std::getenv("ONEPASS_NVRTC");
  std::vector<const char*> names{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
  if (const auto* offered = offered_nvrtc.if_made()) {
    for (const std::string& path : *offered) names.push_back(path.c_str());
  }
  names.push_back("/usr/local/cuda/lib64/libnvrtc.so");
  void* library =
      chosen && *chosen ? open_library("ONEPASS_NVRTC", chosen, "nvrtcVersion", n.why) : open_first(names, n.why);
  if (!n.why.empty()) return n;
#define ONEPASS_RESOLVE(symbol, member, parameters) resolve(library, #symbol, n.api.member, n.why);
  ONEPASS_NVRTC_API(ONEPASS_RESOLVE)
#undef ONEPASS_RESOLVE
  if (!n.why.empty()) return n;
  n.api.version(&n.api.major, &n.api.minor);
  if (n.api.major < kMinNvrtcMajor || (n.api.major == kMinNvrtcMajor && n.api.minor < kMinNvrtcMinor)) {
    n.why = text("NVRTC must be ", kMinNvrtcMajor, ".", kMinNvrtcMinor, " or later (got ", n.api.major, ".",
                 n.api.minor, ")");
  }
  if (n.why.empty()) open_builtins_beside(n.api);
  return n;
}

template <class Api>
const Api* usable(const Opened<Api>& opened, std::string* why) {
  if (why) *why = opened.why;
  return opened.why.empty() ? &opened.api : nullptr;
}

}  // namespace

const Driver* driver(std::string* why) {
  static constinit MakeOnce<const Opened<Driver>> opened;
  static constinit std::atomic<int> first_use{-1};  // as fork_count() was
  int before = first_use.load(std::memory_order_relaxed);
  const int now = fork_count();
  if (before == -1 && first_use.compare_exchange_strong(before, now)) before = now;
  const Opened<Driver>* const parents = opened.if_made();
  if (before != now && (!parents || parents->why.empty())) {  // opened by the parent, or half opened
    if (why) *why = kForked;
    return nullptr;
  }
  return usable(opened.get(open_driver), why);
}

void offer_nvrtc(std::vector<std::string> paths) {
  offered_nvrtc.get([&] { return std::move(paths); });
}

const Nvrtc* nvrtc(std::string* why) {
  static constinit MakeOnce<const Opened<Nvrtc>> opened;
  return usable(opened.get(open_nvrtc), why);
}

void check_cuda(Result result, const char* call) {
  if (result == 0) return;
  const char* words = nullptr;
  if (const Driver* d = driver()) d->error_string(result, &words);
  constexpr Result kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
  throw Error(result == kOutOfMemory ? ErrorCode::out_of_memory : ErrorCode::device_failure,
              text(call, " failed: ", words ? words : "unknown error", " (CUDA error ", result, ")"));
}

}  // namespace onepass::cuda
