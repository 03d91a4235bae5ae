// Ranks compare what their calls must have in common, before one of them waits for another.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onepass/context_parallel_attention.hpp"
#include "onepass/error.hpp"
#include "onepass/transport.hpp"

namespace onepass::inline v0::context_parallel {

struct Fact {
  std::string name, value;
};

// Throws the same Error on every rank if one has a complaint, or if their facts differ. All ranks that have no
// complaint have facts of the same names. once: equal facts are compared in the first call only.
void agree(Transport& transport, const std::optional<Error>& complaint, const std::vector<Fact>& facts, bool once);

// All ranks of a mesh as one group, which agrees on a call and hears of failures: nothing else goes through it.
class MeshRanks final : public Transport {
 public:
  explicit MeshRanks(const MeshTransport& mesh) : mesh_(mesh) { agreed.swap(mesh_.within.agreed); }
  ~MeshRanks() override { agreed.swap(mesh_.within.agreed); }

  int rank() const override { return mesh_.between.rank() * mesh_.within.ranks() + mesh_.within.rank(); }
  int ranks() const override { return mesh_.between.ranks() * mesh_.within.ranks(); }
  void all_to_all(std::span<const ConstBlock> send, std::span<const Block> receive, void* stream) override;
  void all_gather(ConstBlock mine, Block all) override;
  void fail(std::string_view sentence) noexcept override;

 private:
  const MeshTransport mesh_;
};

}  // namespace onepass::inline v0::context_parallel
