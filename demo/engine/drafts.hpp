// Drafts of the tokens that may follow a text, as a tree: what followed its last token when it occurred before.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "decoder.hpp"

namespace engine {

struct Limits {
  std::size_t pages = 60, page_size = 16;
  std::size_t rows = 64;     // of a step
  std::size_t drafts = 6;    // of a sequence in a step, at most 64
  std::size_t branches = 2;  // earlier occurrences that a tree holds the continuations of
};

// A parent comes before its children. It is -1 for a token that may follow the text itself.
class Drafts {
 public:
  Ints tokens{}, parents{}, depths{};
  std::size_t size() const { return tokens.size(); }

  // The child of `parent` that holds this token; -1 if there is none.
  std::int32_t child(std::int32_t parent, std::int32_t token) const {
    for (std::size_t i = 0; i < size(); ++i)
      if (parents[i] == parent && tokens[i] == token) return static_cast<std::int32_t>(i);
    return -1;
  }

  // Continuations of the latest occurrences of the last token, at most `most` tokens. They share their beginnings. Each
  // adds its part of the tokens, and the last one the rest.
  static Drafts of(const Ints& text, std::size_t most, std::size_t branches) {
    Drafts tree;
    auto before = text.rbegin();
    for (std::size_t n = 1; n <= branches; ++n) {
      before = std::find(before + 1, text.rend(), text.back());
      if (before == text.rend()) break;
      std::int32_t at = -1;
      for (auto next = before.base(); next != text.end(); ++next) {
        const std::int32_t there = tree.child(at, *next);
        if (there < 0 && tree.size() == most * n / branches) break;
        at = there < 0 ? tree.add(at, *next) : there;
      }
    }
    return tree;
  }

 private:
  std::int32_t add(std::int32_t parent, std::int32_t token) {
    depths.push_back(parent < 0 ? 0 : depths[static_cast<std::size_t>(parent)] + 1);
    tokens.push_back(token), parents.push_back(parent);
    return static_cast<std::int32_t>(size()) - 1;
  }
};

}  // namespace engine
