// Ranks compare what their calls must have in common, before one of them waits for another.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "onepass/error.hpp"
#include "onepass/transport.hpp"

namespace onepass::inline v0::context_parallel {

struct Fact {
  std::string name, value;
};

// Throws the same Error on every rank if one has a complaint, or if their facts differ. All ranks that have no
// complaint have facts of the same names. once: equal facts are compared in the first call only.
void agree(Transport& transport, const std::optional<Error>& complaint, const std::vector<Fact>& facts, bool once);

}  // namespace onepass::inline v0::context_parallel
