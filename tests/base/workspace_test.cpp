#include "base/workspace.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

namespace onepass {
namespace {

// The same code, run with and without memory: equal numbers of bytes, aligned pieces, none overlapping.
RC_GTEST_PROP(Workspace, CountingEqualsTaking, (const std::vector<std::uint16_t>& sizes)) {
  const auto book = [&](Workspace& w) {
    std::vector<std::byte*> pieces;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      pieces.push_back(i % 2 ? reinterpret_cast<std::byte*>(w.take<double>(sizes[i])) : w.take<std::byte>(sizes[i]));
    }
    return pieces;
  };
  Workspace counting;
  for (const std::byte* piece : book(counting)) RC_ASSERT(piece == nullptr);

  std::vector<std::byte> memory(counting.bytes() + Workspace::kAlign);
  const std::size_t misfit = reinterpret_cast<std::uintptr_t>(memory.data()) % Workspace::kAlign;
  std::byte* const base = memory.data() + (misfit ? Workspace::kAlign - misfit : 0);
  Workspace taking(base);
  const auto pieces = book(taking);
  RC_ASSERT(taking.bytes() == counting.bytes());
  const std::byte* end = base;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    RC_ASSERT(reinterpret_cast<std::uintptr_t>(pieces[i]) % Workspace::kAlign == 0);
    RC_ASSERT(pieces[i] >= end);
    end = pieces[i] + sizes[i] * (i % 2 ? sizeof(double) : 1);
  }
  RC_ASSERT(end <= base + counting.bytes());
}

}  // namespace
}  // namespace onepass
