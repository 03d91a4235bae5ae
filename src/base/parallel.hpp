// An executor's loop over a callable: body(task, worker).
#pragma once
#include <cstdint>
#include <type_traits>

#include "onepass/executor.hpp"

namespace onepass {

template <class F>
void parallel(Executor& executor, std::int64_t tasks, F&& body) {
  executor.parallel_for(
      tasks, [](void* f, std::int64_t t, int worker) { (*static_cast<std::remove_reference_t<F>*>(f))(t, worker); },
      &body);
}

}  // namespace onepass
