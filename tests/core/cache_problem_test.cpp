// The words of a problem line about a cache.
#include <gtest/gtest.h>

#include <string>

#include "onepass/error.hpp"
#include "onepass/problem.hpp"

namespace onepass {
namespace {

TEST(Problem, ACacheHasLengthsOfItsOwnAndPages) {
  const Problem p = parse_problem("h4/2 s1x100 d16 kv=paged:16 seqused=3,100,0");
  EXPECT_EQ(to_string(p), "fwd b3 h4/2 s1x100 d16 fp32 kv=paged:16 seqused=3,100,0");
  EXPECT_EQ(p.max_pages, 7);
  EXPECT_EQ(p.pages, 21);
  EXPECT_EQ(p.layout.k, (Dims{16 * 2 * 16, 16, 2 * 16, 1}));  // page, head, token
  const Problem packed = parse_problem("h2 d8 varlen=3x2,1 seqused=4,0,9 kv=paged:4:10:5 batch_invariant");
  EXPECT_EQ(packed.seq_k, 9);
  EXPECT_EQ(packed.total_q, 7);
  EXPECT_EQ(packed.total_k, 0);
  EXPECT_EQ(to_string(packed), "fwd b3 h2 s3x9 d8 fp32 varlen=3x2,1 kv=paged:4:10:5 seqused=4,0,9 batch_invariant");
}

TEST(Problem, WrongWordsOfACacheAreNamed) {
  const struct {
    const char *line, *sentence;
  } wrong[] = {{"s4 kv=paged:0", "kv=paged:page_size[:pages:pages of a sequence] is expected"},
               {"s4 kv=flat:3", "kv=paged:page_size[:pages:pages of a sequence] is expected"},
               {"s4x9 kv=paged:4:9:2", "seq_k is 9 but 2 pages of 4 hold 8 keys"},
               {"s4x0 kv=paged:4:9:2", "seq_k is 0 but a sequence has 2 pages"},
               {"varlen=2/3 seqused", "varlen= has lengths of keys beside a cache, whose lengths are seqused="},
               {"bwd s4 seqused", "'seqused' says nothing about bwd"},
               {"s4 seqused=5", "a length of k is 5; 0 to 4 is accepted"}};
  for (const auto& [line, sentence] : wrong) {
    try {
      (void)parse_problem(line);
      ADD_FAILURE() << line;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(sentence), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace onepass
