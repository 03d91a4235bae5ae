// Pages, and the choice of the rows of each step: single tokens with their drafts first, then chunks of prompts.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "decoder.hpp"

namespace engine {

struct Sequence {
  Ints tokens;  // the prompt and the tokens that were chosen
  std::size_t prompt, wanted;
  Ints pages{};
  std::size_t cached = 0;  // tokens whose keys and values are in the pages
  Numbers logits{};        // of the tokens that were chosen

  std::size_t length() const { return prompt + wanted; }
  bool finished() const { return tokens.size() == length(); }
};

// The rows of a sequence in a step: `own` of its tokens from `cached` on, then drafts of the tokens that may follow.
struct Rows {
  Sequence* of;
  std::size_t own;
  Ints drafts{};
  std::size_t count() const { return own + drafts.size(); }
};

struct Limits {
  std::size_t pages = 60, page_size = 16;
  std::size_t rows = 64;   // of a step
  std::size_t drafts = 3;  // of a sequence in a step
};

class Scheduler {
 public:
  explicit Scheduler(const Limits& limits) : limits_(limits), free_(limits.pages) {
    if (limits.rows == 0 || limits.page_size == 0) throw std::invalid_argument("rows and page size must be at least 1");
    std::iota(free_.begin(), free_.end(), 0);
  }
  void add(Sequence& s) {
    if (pages_of(s) > limits_.pages) throw std::invalid_argument("the pool is smaller than one sequence");
    waiting_.push_back(&s);
  }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  std::size_t free_pages() const { return free_.size(); }
  std::size_t drafted() const { return drafted_; }
  std::size_t accepted() const { return accepted_; }

  // Sequences join while there are pages for all that they will be. A sequence without room
  // in this step has no rows in it.
  std::vector<Rows> next() {
    while (!waiting_.empty() && pages_of(*waiting_.front()) <= free_.size()) {
      Sequence& s = *waiting_.front();
      waiting_.pop_front();
      const auto first = free_.end() - static_cast<std::ptrdiff_t>(pages_of(s));
      s.pages.assign(first, free_.end());
      free_.erase(first, free_.end());
      running_.push_back(&s);
    }
    std::vector<Rows> step;
    std::size_t room = limits_.rows;
    for (const bool single : {true, false}) {
      for (Sequence* s : running_) {
        const std::size_t left = s->tokens.size() - s->cached, own = std::min(left, room);
        if ((left == 1) != single || own == 0) continue;
        room -= own;
        step.push_back({s, own});
      }
    }
    for (Rows& r : step) {
      if (r.of->cached + r.own < r.of->tokens.size()) continue;  // the middle of a prompt
      r.drafts = drafts_of(*r.of, std::min({limits_.drafts, room, r.of->length() - r.of->tokens.size() - 1}));
      room -= r.drafts.size();
      drafted_ += r.drafts.size();
    }
    return step;
  }

  // Chooses tokens by the logits [rows][words] of the step. The row of a draft counts if the draft is the token that
  // the row before it chose. Keys of other drafts are behind the sequence's end, where later tokens overwrite them.
  void take(const std::vector<Rows>& step, const Numbers& logits) {
    const float* row = logits.data();
    for (const Rows& r : step) {
      Sequence& s = *r.of;
      const float* last = row + (r.own - 1) * kWords;
      row += r.count() * kWords;
      s.cached += r.own;
      if (s.cached < s.tokens.size()) continue;
      for (std::size_t i = 0;; ++i, last += kWords) {
        s.tokens.push_back(static_cast<std::int32_t>(std::max_element(last, last + kWords) - last));
        s.logits.insert(s.logits.end(), last, last + kWords);
        if (s.finished() || i == r.drafts.size() || r.drafts[i] != s.tokens.back()) break;
        s.cached += 1;
        accepted_ += 1;
      }
      if (s.finished()) free_.insert(free_.end(), s.pages.begin(), s.pages.end());
    }
    std::erase_if(running_, [](const Sequence* s) { return s->finished(); });
  }

 private:
  std::size_t pages_of(const Sequence& s) const { return (s.length() + limits_.page_size - 1) / limits_.page_size; }
  // The tokens that followed the last token when it last occurred.
  static Ints drafts_of(const Sequence& s, std::size_t most) {
    const auto before = std::find(s.tokens.rbegin() + 1, s.tokens.rend(), s.tokens.back());
    if (before == s.tokens.rend()) return {};
    const auto first = before.base();
    return {first, first + std::min<std::ptrdiff_t>(s.tokens.end() - first, static_cast<std::ptrdiff_t>(most))};
  }

  Limits limits_;
  Ints free_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;
  std::size_t drafted_ = 0, accepted_ = 0;
};

}  // namespace engine
