// Random mask_mods of the buffers doc [n], ids [batch, n], table [heads, 17] of numbers, flags [5] and limit [batch].
#pragma once
#include <cstdint>
#include <random>
#include <string>

namespace onepass::test {

class RandomMask {
 public:
  explicit RandomMask(std::mt19937& random) : random_(random) {}
  std::string mask(int depth) {
    switch (pick(depth > 0 ? 9 : 3)) {
      case 0: return "flags[" + integer(depth - 1) + "]";
      case 1: return integer(depth - 1) + comparison() + integer(depth - 1);
      case 2: return number(depth - 1) + comparison() + number(depth - 1);
      case 3: return "(" + mask(depth - 1) + " && " + mask(depth - 1) + ")";
      case 4: return "(" + mask(depth - 1) + " || " + mask(depth - 1) + ")";
      case 5: return "((" + mask(depth - 1) + ") ^ (" + mask(depth - 1) + "))";
      case 6: return "!(" + mask(depth - 1) + ")";
      case 7: return "(" + mask(depth - 1) + " ? " + mask(depth - 1) + " : " + mask(depth - 1) + ")";
      default: return "bool(" + (pick(2) ? integer(depth - 1) : number(depth - 1)) + ")";
    }
  }

 private:
  std::uint32_t pick(std::uint32_t n) { return static_cast<std::uint32_t>(random_()) % n; }
  std::string comparison() {
    const char* const all[] = {" < ", " <= ", " > ", " >= ", " == ", " != "};
    return all[pick(6)];
  }
  std::string integer(int depth) {
    const char* const leaves[] = {"q_index",      "k_index",      "head",        "batch",
                                  "doc[q_index]", "doc[k_index]", "limit[batch]"};
    if (depth <= 0) {
      if (pick(3) > 0) return leaves[pick(7)];
      return std::to_string(pick(12) == 0 ? 2000000000 : static_cast<int>(pick(40)));
    }
    const char* const both[] = {" + ", " - ", " * ", " / ", " % ", " & ", " | ", " ^ ", " << ", " >> "};
    switch (pick(8)) {
      case 0: return "-(" + integer(depth - 1) + ")";
      case 1: return "abs(" + integer(depth - 1) + ")";
      case 2: return (pick(2) ? "min(" : "max(") + integer(depth - 1) + ", " + integer(depth - 1) + ")";
      case 3: return "~(" + integer(depth - 1) + ")";
      case 4: return "ids[" + integer(depth - 1) + ", " + integer(depth - 1) + "]";
      case 5: return pick(2) ? "int(" + number(depth - 1) + ")" : "int(" + mask(depth - 1) + ")";
      default: return "(" + integer(depth - 1) + both[pick(10)] + integer(depth - 1) + ")";
    }
  }
  std::string number(int depth) {
    if (depth <= 0) return pick(2) ? "float(" + integer(0) + ")" : pick(8) == 0 ? "INFINITY" : "1.5f";
    const char* const both[] = {" + ", " - ", " * ", " / "};
    const char* const one[] = {"abs(", "-(", "floor(", "ceil(", "sqrt(", "tanh(", "cos("};
    switch (pick(6)) {
      case 0: return "table[" + integer(depth - 1) + ", " + integer(depth - 1) + "]";
      case 1: return one[pick(7)] + number(depth - 1) + ")";
      case 2: return (pick(2) ? "min(" : "max(") + number(depth - 1) + ", " + number(depth - 1) + ")";
      case 3: return "(" + mask(0) + " ? " + number(depth - 1) + " : " + number(depth - 1) + ")";
      default: return "(" + number(depth - 1) + both[pick(4)] + number(depth - 1) + ")";
    }
  }
  std::mt19937& random_;
};

}  // namespace onepass::test
