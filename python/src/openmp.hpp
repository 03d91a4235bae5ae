// PyTorch's own CPU threads as an executor. They wait for work by spinning for a while, so threads of another library's
// would have to share the cores with them whenever attention follows one of PyTorch's operators.
#pragma once
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "interfaces/task_loop.hpp"
#include "onepass/executor.hpp"

namespace onepass::python {

// The function that compilers call for `#pragma omp parallel`: fn(data) in `threads` threads, of which the caller is
// one. libgomp has it, and LLVM's and Intel's libraries under the same name.
using OpenMpParallel = void (*)(void (*fn)(void*), void* data, unsigned threads, unsigned flags);

// The same of the OpenMP library loaded from a path that starts with `place`; nullptr: there is none.
inline OpenMpParallel openmp_at(const std::string& place) {
  struct Search {
    const std::string& place;
    std::string path;
  } search{place, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        Search& s = *static_cast<Search*>(data);
        const std::string_view path = info->dlpi_name ? info->dlpi_name : "";
        const std::string_view name = path.substr(path.rfind('/') + 1);
        if (path.starts_with(s.place) && (name.starts_with("libgomp") || name.starts_with("libiomp5"))) s.path = path;
        return s.path.empty() ? 0 : 1;
      },
      &search);
  void* const library = search.path.empty() ? nullptr : dlopen(search.path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  return library ? reinterpret_cast<OpenMpParallel>(dlsym(library, "GOMP_parallel")) : nullptr;
}

// Its threads are lost in a child of fork(), which must use another executor. Always asks for the same number, since
// another one than that of PyTorch's operators would end and start threads.
class OpenMp final : public Executor {
 public:
  OpenMp(OpenMpParallel parallel, int threads) : parallel_(parallel), threads_(threads) {}

  int workers() const override { return threads_; }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    TaskLoop loop(tasks, body, context);
    if (tasks == 1 || threads_ == 1)
      loop.run();
    else
      parallel_([](void* data) { static_cast<TaskLoop*>(data)->run(); }, &loop, static_cast<unsigned>(threads_), 0);
  }

 private:
  OpenMpParallel parallel_;
  int threads_;
};

}  // namespace onepass::python
