// The tables of options and tensors agree with the structs, with problem lines and with docs/reference/problem.md.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <regex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include "interfaces/c_convert.hpp"
#include "problem/attention/options.hpp"
#include "problem/grammar/words.hpp"
#include "problem/operator.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

// Another value than the default.
template <class T>
T other() {
  if constexpr (std::is_same_v<T, std::string>)
    return "1 < 2";
  else if constexpr (Choice<T>)
    return static_cast<T>(1);
  else if constexpr (std::is_same_v<T, Band>)
    return {.causal = true, .align = Align::offset, .left = 7, .right = 0, .offset = -3};
  else if constexpr (std::is_same_v<T, std::array<std::uint32_t, 4>>)
    return {1, 2, 3, 4};
  else if constexpr (std::is_arithmetic_v<T>)
    return T{1};
  else
    return 0.5;
}

TEST(Options, AreWordsThatReadBack) {
  for_each_option([&](const OptionRow& row, auto option) {
    if (!row.word) return;
    for (const bool backward : {false, true}) {
      if (!takes_option(row, backward)) continue;
      const bool of_fp8 = std::string_view(row.word) == "accumulation";
      const std::string plain = backward ? "bwd s4 d8 fp32" : of_fp8 ? "fwd s4 d8 fp8_e4m3" : "fwd s4 d8 fp32";
      Problem p = parse_problem(plain);
      p.*option = other<OptionType<decltype(option)>>();
      if (p.seed != 0) p.dropout_p = 0.5f;
      if (p.mask_tile_q != 0 || p.mask_tile_k != 0) p.block_mask.emplace();
      const std::string line = to_string(p);
      EXPECT_EQ(parse_problem(line), p) << row.name << ": " << line;
      EXPECT_NE(line, to_string(parse_problem(plain))) << row.name;
    }
  });
}

// An operator has no use for the options of another.
TEST(Options, OfOnePassAreRefusedInTheOther) {
  int refused = 0;
  for_each_option([&](const OptionRow& row, auto) {
    for (const Op op : {Op(kForward), Op(kBackward)}) {
      if (!row.word || std::string_view(row.word) == "band") continue;
      EXPECT_EQ(speaks_of(op, row.word), takes_option(row, op == kBackward)) << row.word;
      refused += !speaks_of(op, row.word);
    }
    EXPECT_TRUE(row.forward || row.backward) << row.name;
  });
  EXPECT_GE(refused, 4);
}

// The defaults of the C struct are those of C++.
TEST(Options, OfAnInitialisedCStructAreTheDefaults) {
  onepass_options o;
  ASSERT_EQ(onepass_options_init(&o, sizeof o), ONEPASS_OK);
  Attention a;
  for (const OptionRow& row : kAttentionOptions) {
    if (row.from_c) row.from_c(o, a);
  }
  EXPECT_EQ(a, Attention{});
}

// Each row reads a field of its own.
TEST(Options, EachHasItsFieldOfTheCStruct) {
  onepass_options o;
  ASSERT_EQ(onepass_options_init(&o, sizeof o), ONEPASS_OK);
  o.has_scale = o.deterministic = o.batch_invariant = o.partial = o.fast_accumulation = o.tf32 = o.has_unified_max = 1;
  o.scale = 2;
  o.softcap = 3;
  o.dropout_p = 0.25f;
  o.seed = 5;
  std::iota(o.dropout_start, o.dropout_start + 4, 1u);
  o.score_mod = "score";
  o.mask_mod = "true";
  o.mask_tile_q = 6;
  o.mask_tile_k = 7;
  o.max_seqlen_q = 8;
  o.max_seqlen_k = 9;
  o.unified_max = 10;
  Attention a;
  for (const OptionRow& row : kAttentionOptions) {
    if (row.from_c) row.from_c(o, a);
  }
  EXPECT_EQ(a, (Attention{.band = {},
                          .scale = 2,
                          .softcap = 3,
                          .dropout_p = 0.25f,
                          .seed = 5,
                          .dropout_start = {1, 2, 3, 4},
                          .score_mod = "score",
                          .mask_mod = "true",
                          .mask_tile_q = 6,
                          .mask_tile_k = 7,
                          .max_seqlen_q = 8,
                          .max_seqlen_k = 9,
                          .deterministic = true,
                          .batch_invariant = true,
                          .partial = true,
                          .accumulation = Accumulation::fast,
                          .precision = Precision::tf32,
                          .unified_max = 10}));
  EXPECT_FALSE(std::ranges::any_of(kAttentionOptions, [&](const OptionRow& row) {
    return !std::holds_alternative<Band Attention::*>(row.member) && same_option(row, a, {});
  }));
}

// A tensor of attention that C cannot pass, or two that one field would pass.
TEST(Tensors, OfAttentionHaveFieldsOfTheirOwnInC) {
  int alone = 0;
  for (const RoleRow& row : kRoleTable) {
    if (row.forward == Use::none && row.backward == Use::none && row.jvp == Use::none && row.backward_jvp == Use::none)
      continue;
    if (!row.c) {
      EXPECT_TRUE(row.role <= Role::out) << row.name;
      continue;
    }
    for (const RoleRow& other : kRoleTable)
      EXPECT_EQ(other.c == row.c, &other == &row) << row.name << " and " << other.name;
    ++alone;
  }
  EXPECT_EQ(alone, 43);
}

TEST(Tensors, ThatMayBeLeftOutSayWhetherTheyAreGiven) {
  for (const RoleRow& row : kRoleTable) {
    bool optional = false;
    for (const Operator* op : kOperators) optional = optional || is_optional(row, *op);
    EXPECT_EQ(optional, row.given != nullptr || row.flag != nullptr) << row.name;
  }
}

// Every subject of the grammar.
TEST(Words, AreInTheReference) {
  std::ifstream file(ONEPASS_GRAMMAR);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  std::set<std::string, std::less<>> known;
  const std::regex word("`([^`\n]+)`");
  for (std::sregex_iterator w(page.begin(), page.end(), word), end; w != end; ++w) {
    const std::string found = (*w)[1];
    known.emplace(subject_of(found));
  }
  EXPECT_GT(known.size(), 40u);
  const auto is_known = [&](std::string_view subject) {
    EXPECT_TRUE(known.contains(subject)) << subject << " is not in docs/reference/problem.md";
  };
  for (const OptionRow& option : kAttentionOptions)
    if (option.word && std::string_view(option.word) != "band") is_known(option.word);
  for (const RoleRow& tensor : kRoleTable)
    if (tensor.word) is_known(tensor.word);
  for (const Operator* op : kOperators)
    for (const std::string_view subject : op->words)
      if (subject != "n" && subject != "m" && subject != "k") is_known(subject);  // together, as m8 n4096 k4096
}

}  // namespace
}  // namespace onepass
