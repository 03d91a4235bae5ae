// The units of a task, one after the other.
namespace onepass::cpu::amx {
namespace {

struct Unit {
  int block = 0;
  std::int64_t key = 0;  // first key, a multiple of kGroup
  int keys = 0;          // a multiple of kGroup; 0: no unit
  bool first = false;    // of its row block, or of a split
  bool joins = false;    // first of a split, after others
};

// Walks blocks of kKeys keys, inside them the row blocks, and leaves out what is visible to no row.
class Units {
 public:
  explicit Units(const AttendTask& t) : t_(t) {
    key_ = t.scratch.blocks[0].first;
    for (int b = 0; b < t.blocks; ++b) {
      key_ = t.scratch.blocks[b].first < key_ ? t.scratch.blocks[b].first : key_;
      end_ = t.scratch.blocks[b].last > end_ ? t.scratch.blocks[b].last : end_;
    }
    key_ = key_ / kKeys * kKeys;
  }
  Unit next() {
    for (; key_ < end_; key_ += kKeys, block_ = 0) {
      while (block_ < t_.blocks) {
        const int block = block_++;
        const RowBlock& rows = t_.scratch.blocks[block];
        std::int64_t from = rows.first > key_ ? rows.first / kGroup * kGroup : key_;
        std::int64_t to = rows.last < key_ + kKeys ? round_up(rows.last, kGroup) : key_ + kKeys;
        if (rows.first >= rows.last) continue;
        while (from < to && hidden(rows, from)) from += kGroup;
        while (from < to && hidden(rows, to - kGroup)) to -= kGroup;
        if (from >= to) continue;
        const std::int64_t split = t_.joins ? key_ / kJoinKeys : 0, before = split_[block];
        split_[block] = split;
        return {block, from, static_cast<int>(to - from), split != before, split != before && before >= 0};
      }
    }
    return {};
  }

 private:
  static bool hidden(const RowBlock& rows, std::int64_t key) {
    return rows.shown && rows.shown[(key - rows.shown_from) / kGroup] == Tile::skip;
  }

  const AttendTask& t_;
  std::int64_t split_[kBlocks] = {-1, -1, -1, -1};  // of the last unit of each row block
  std::int64_t key_ = 0, end_ = 0;
  int block_ = 0;
};

}  // namespace
}  // namespace onepass::cpu::amx
