#include "tools/onepass/bench/device_graph.hpp"

#include <dlfcn.h>

#include "base/text.hpp"
#include "onepass/error.hpp"

namespace onepass::bench {
namespace {

// Driver functions that the library itself does not use.
struct Api {
  cuda::Result (*begin)(cuda::Stream, int mode);
  cuda::Result (*end)(cuda::Stream, Graph**);
  cuda::Result (*instantiate)(Exec**, Graph*, unsigned long long flags);
  cuda::Result (*launch)(Exec*, cuda::Stream);
  cuda::Result (*destroy_exec)(Exec*);
  cuda::Result (*destroy)(Graph*);
};
const Api& api() {
  static const Api all = [] {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](auto& member, const char* name) {
      void* const symbol = library ? dlsym(library, name) : nullptr;
      want(symbol != nullptr, ErrorCode::unsupported, "libcuda.so.1 has no ", name);
      member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(symbol);
    };
    Api a{};
    find(a.begin, "cuStreamBeginCapture_v2");
    find(a.end, "cuStreamEndCapture");
    find(a.instantiate, "cuGraphInstantiateWithFlags");
    find(a.launch, "cuGraphLaunch");
    find(a.destroy_exec, "cuGraphExecDestroy");
    find(a.destroy, "cuGraphDestroy");
    return a;
  }();
  return all;
}

}  // namespace

DeviceGraph::DeviceGraph(cuda::Stream stream, std::size_t count, const std::function<void()>& enqueue)
    : stream_(stream) {
  constexpr int kThisThread = 1;  // whatever others do meanwhile is none of the capture's business
  cuda::check_cuda(api().begin(stream, kThisThread), "cuStreamBeginCapture");
  try {
    for (std::size_t i = 0; i < count; ++i) enqueue();
  } catch (...) {
    if (api().end(stream, &graph_) == 0) api().destroy(graph_);
    throw;
  }
  cuda::check_cuda(api().end(stream, &graph_), "cuStreamEndCapture");
  const cuda::Result made = api().instantiate(&exec_, graph_, 0);
  if (made != 0) api().destroy(graph_);
  cuda::check_cuda(made, "cuGraphInstantiate");
}

DeviceGraph::~DeviceGraph() {
  api().destroy_exec(exec_);
  api().destroy(graph_);
}

void DeviceGraph::run() const { cuda::check_cuda(api().launch(exec_, stream_), "cuGraphLaunch"); }

}  // namespace onepass::bench
