#include "distributed/attention/agree.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>

#include "base/text.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

// A rank's statement as text: the code of its complaint and the sentence, or its facts, each ended by '\0'.
std::string statement(const std::optional<Error>& complaint, const std::vector<Fact>& facts) {
  std::string all;
  const auto say = [&](const std::string& word) { all.append(word).push_back('\0'); };
  say(complaint ? std::to_string(static_cast<int>(complaint->code())) : "");
  if (complaint) say(complaint->what());
  for (const Fact& fact : facts) {
    if (!complaint) say(fact.name), say(fact.value);
  }
  return all;
}
std::vector<std::string> words_of(const std::string& all) {
  std::vector<std::string> words;
  for (std::size_t at = 0, end = 0; at < all.size(); at = end + 1) {
    end = std::min(all.find('\0', at), all.size());
    words.push_back(all.substr(at, end - at));
  }
  return words;
}

std::uint64_t hash_of(const std::string& all) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : all) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

struct Digest {
  std::uint64_t hash = 0, bytes = 0, complains = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
};

template <class T>
std::vector<T> gathered_values(Transport& transport, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(transport.ranks()));
  transport.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

// The statements of all ranks, padded to the longest.
std::vector<std::vector<std::string>> statements(Transport& transport, std::string mine, std::size_t bytes) {
  mine.resize(bytes, '\0');
  std::string all(bytes * static_cast<std::size_t>(transport.ranks()), '\0');
  transport.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::vector<std::vector<std::string>> found;
  for (std::size_t at = 0; at < all.size(); at += bytes) found.push_back(words_of(all.substr(at, bytes)));
  return found;
}

// Kinds of calls that are remembered. A call with a new seed is a new kind, so there may be one in each step of
// training. All ranks make the same calls, so all forget at once.
constexpr std::size_t kMostAgreed = 4096;

std::string shortened(const std::string& value) { return value.size() <= 200 ? value : value.substr(0, 198) + ".."; }

// said: the words of each rank's statement, and perhaps empty ones behind them.
[[noreturn]] void refuse(const std::vector<std::vector<std::string>>& said, std::size_t facts) {
  for (std::size_t r = 0; r < said.size(); ++r) {
    if (!said[r][0].empty())
      throw Error(static_cast<ErrorCode>(std::stoi(said[r][0])), text("rank ", r, ": ", said[r][1]));
  }
  for (std::size_t i = 1; i < 1 + 2 * facts; i += 2) {
    for (std::size_t r = 1; r < said.size(); ++r) {
      want(said[r][i + 1] == said[0][i + 1], ErrorCode::bad_value, said[0][i],
           " must be the same on all ranks (rank 0 has ", shortened(said[0][i + 1]), ", rank ", r, " has ",
           shortened(said[r][i + 1]), ")");
    }
  }
  throw Error(ErrorCode::bad_value, "all ranks must make the same call");
}

}  // namespace

void agree(Transport& transport, const std::optional<Error>& complaint, const std::vector<Fact>& facts, bool once) {
  const std::string mine = statement(complaint, facts);
  const Digest digest{hash_of(mine), mine.size(), complaint ? 1u : 0u};
  std::vector<std::uint64_t>& agreed = transport.agreed;
  if (once && !complaint && std::find(agreed.begin(), agreed.end(), digest.hash) != agreed.end()) return;
  const std::vector<Digest> all = gathered_values(transport, digest);
  if (!complaint && std::all_of(all.begin(), all.end(), [&](const Digest& d) { return d == digest; })) {
    if (!once) return;
    if (agreed.size() == kMostAgreed) agreed.clear();
    agreed.push_back(digest.hash);
    return;
  }
  std::uint64_t bytes = 0;
  for (const Digest& d : all) bytes = std::max(bytes, d.bytes);
  refuse(statements(transport, mine, bytes), facts.size());
}

void MeshRanks::all_to_all(std::span<const ConstBlock>, std::span<const Block>, void*) {
  throw Error(ErrorCode::internal, "a mesh exchanges within nodes or between them");
}
void MeshRanks::all_gather(ConstBlock mine, Block all) {
  std::vector<std::byte> node(mine.size() * static_cast<std::size_t>(mesh_.within.ranks()));
  try {
    mesh_.within.all_gather(mine, node);
    mesh_.between.all_gather(node, all);
  } catch (const std::exception& error) {  // ranks of the other group may have agreed, and wait for this one
    fail(error.what());
    throw;
  }
}
void MeshRanks::fail(std::string_view sentence) noexcept {
  mesh_.within.fail(sentence);
  mesh_.between.fail(sentence);
}

}  // namespace onepass::inline v0::context_parallel
