#include "cuda/compile/wgmma_source.hpp"
#include "base/text.hpp"

#include <algorithm>

#include "onepass/error.hpp"

namespace onepass::cuda {
namespace {

struct Width {
  int n;
  std::string element;

  std::string operand(int i) const { return "%" + std::to_string(i); }
  std::string joined(const char* separator, auto&& item) const {
    std::string s;
    for (int i = 0; i < n / 2; ++i) s += (i ? separator : "") + item(i);
    return s;
  }
  // a: the A operand (%k's from n/2 on), b: operand number of B's descriptor, flags: transpositions
  std::string function(const char* name, const char* a_type, const std::string& a, const std::string& a_list, int b,
                       const char* flags) const {
    const std::string d = joined(",", [&](int i) { return operand(i); });
    const std::string outs = joined(", ", [](int i) { return text("\"+f\"(d[", i, "])"); });
    return text("  static DEV void ", name, "(float (&d)[", n / 2, "], ", a_type,
                " a, u64 b, i32 accumulate) {\n    asm volatile(\"{ .reg .pred p; setp.ne.b32 p, ", operand(b + 1),
                ", 0; wgmma.mma_async.sync.aligned.m64n", n, e4m3() ? "k32.f32." : "k16.f32.", element, ".", element,
                " {", d, "}, ", a, ", ", operand(b), ", p, 1, 1", e4m3() ? "" : flags, "; }\"\n        : ", outs, " : ",
                a_list, ", \"l\"(b), \"r\"(accumulate));\n  }\n");
  }
  bool e4m3() const { return element == "e4m3"; }
  std::string definition() const {
    const int at = n / 2;
    const std::string fragment =
        text("{", operand(at), ", ", operand(at + 1), ", ", operand(at + 2), ", ", operand(at + 3), "}");
    const char* const list = "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])";
    return text("template <>\nstruct Wgmma<", n, "> {\n",
                function("shared", "u64", operand(at), "\"l\"(a)", at + 1, ", 0, 0"),
                function("registers_kmajor", "const u32*", fragment, list, at + 4, ", 0"),
                e4m3() ? ""
                       : function("shared_mnmajor", "u64", operand(at), "\"l\"(a)", at + 1, ", 0, 1") +
                             function("registers_mnmajor", "const u32*", fragment, list, at + 4, ", 1"),
                "};\n");
  }
};

}  // namespace

std::string wgmma_source(const std::vector<int>& widths, const std::string& element) {
  std::vector<int> unique = widths;
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  std::string s = "#include \"cuda/device/wgmma.cuh\"\nnamespace onepass {\ntemplate <int N>\nstruct Wgmma;\n";
  for (const int n : unique) s += Width{n, element}.definition();
  return s + "}  // namespace onepass\n";
}

}  // namespace onepass::cuda
