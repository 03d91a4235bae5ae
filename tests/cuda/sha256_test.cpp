// The examples of FIPS 180-4 and of its test vectors.
#include "cuda/compile/sha256.hpp"

#include <gtest/gtest.h>

namespace onepass::cuda {
namespace {

TEST(Sha256, GivesTheStandardsExamples) {
  EXPECT_EQ(Sha256().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256().add("abc").hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256().add("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq").hex(),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256()
                .add("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
                     "mnopqrstnopqrstu")
                .hex(),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(Sha256().add(std::string(1000000, 'a')).hex(),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotCareHowTheBytesCome) {
  const std::string bytes(200, 'x');
  for (std::size_t n = 0; n <= bytes.size(); ++n) {
    const std::string whole = Sha256().add(bytes.substr(0, n)).hex();
    for (std::size_t cut = 0; cut <= n; cut += 7)
      EXPECT_EQ(Sha256().add(bytes.substr(0, cut)).add(bytes.substr(cut, n - cut)).hex(), whole);
  }
}

}  // namespace
}  // namespace onepass::cuda
