// The safetensors reader against files laid out by hand, the writer against the reader, and every kind of damage.
#include "tools/onepass/io/safetensors.hpp"

#include "tools/files.hpp"

namespace onepass::test {
namespace {

const std::vector<float> kSix = {1, 2, 3, 4, 5, 6};
const std::string kData = bytes_of(kSix);

TEST(Safetensors, ReadsAFile) {
  const std::string file = safetensors(
      R"({"__metadata__":{"format":"pt"},"q":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("mask":{"dtype":"BOOL","shape":[4],"data_offsets":[16,20]},"ids":{"dtype":"U8","shape":[4],"data_offsets":[20,24]}}   )",
      kData);
  const auto from = source(file);
  const io::Safetensors s(from);
  EXPECT_EQ(s.entries().size(), 3u);
  EXPECT_TRUE(s.has("q") && s.has("mask") && s.has("ids") && !s.has("__metadata__"));
  const io::Array q = s.read("q");
  EXPECT_EQ(q.dtype(), DType::f32);
  EXPECT_EQ(q.shape(), (io::Shape{2, 2}));
  EXPECT_EQ(std::memcmp(q.data(), kSix.data(), 16), 0);
  EXPECT_EQ(s.read("mask").dtype(), DType::boolean);
  EXPECT_EQ(std::memcmp(s.read("mask").data(), &kSix[4], 4), 0);
  EXPECT_EQ(sentence_of([&] { s.read("k"); }), "x: it has no tensor 'k'; it has ids, mask, q");
  EXPECT_EQ(sentence_of([&] { s.read("ids"); }),
            "x: tensor 'ids' must be F32, F16, BF16, F8_E4M3, BOOL, I32 or I64 (got U8)");
}

TEST(Safetensors, ReadsEveryDtype) {
  const std::pair<const char*, DType> table[] = {{"F32", DType::f32},      {"F16", DType::f16},
                                                 {"BF16", DType::bf16},    {"F8_E4M3", DType::f8e4m3},
                                                 {"BOOL", DType::boolean}, {"I32", DType::i32}};
  for (const auto& [name, dtype] : table) {
    const std::string end = std::to_string(2 * size_of(dtype));
    const std::string file =
        safetensors(std::string(R"({"a":{"dtype":")") + name + R"(","shape":[2],"data_offsets":[0,)" + end + "]}}",
                    std::string(2 * size_of(dtype), '\1'));
    const auto from = source(file);
    EXPECT_EQ(io::Safetensors(from).read("a").dtype(), dtype) << name;
  }
}

TEST(Safetensors, EmptyOnesAndScalars) {
  const std::string file = safetensors(
      R"({"none":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},"one":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
      "\1\2\3\4");
  const auto from = source(file);
  EXPECT_EQ(io::Safetensors(from).read("none").bytes(), 0u);
  EXPECT_EQ(io::Safetensors(from).read("one").bytes(), 4u);
  const std::string empty = safetensors("{}", "");
  const auto nothing = source(empty);
  EXPECT_EQ(sentence_of([&] { io::Safetensors(nothing).read("q"); }), "x: it has no tensor 'q'; it has none");
}

TEST(Safetensors, RoundTrip) {
  const Folder folder;
  io::Array a("a", DType::bf16, {3, 5}), b("b", DType::f32, {2, 0}), c("c", DType::f32, {2, 3, 4});
  for (const io::Array* array : {&a, &b, &c}) {
    for (std::size_t i = 0; i < array->bytes(); ++i) array->data()[i] = static_cast<std::byte>(i % 251);
  }
  {
    io::OutputFile file(folder("x"));
    io::write_safetensors(
        file, std::vector<std::pair<std::string, const io::Array*>>{{"out", &a}, {"quote\"d", &b}, {"lse", &c}});
    file.commit();
  }
  EXPECT_EQ((folder.read("x").size() - a.bytes() - c.bytes()) % 8, 0u);  // the data is aligned, as the format wants
  const io::FileSource file(folder("x"));
  const io::Safetensors s(file);
  for (const auto& [name, array] : {std::pair{"out", &a}, {"quote\"d", &b}, {"lse", &c}}) {
    const io::Array back = s.read(name);
    EXPECT_EQ(back.dtype(), array->dtype());
    EXPECT_EQ(back.shape(), array->shape());
    EXPECT_EQ(std::memcmp(back.data(), array->data(), array->bytes()), 0);
  }
}

std::string with_tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return safetensors(R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
                     kData);
}
std::string header(const std::string& json) { return safetensors(json, kData); }

struct Damage {
  std::string file, words;
};

TEST(Safetensors, EveryDamageHasItsSentence) {
  const std::string a = R"("a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]})", good = header("{" + a + "}");
  const auto two = [](const std::string& first, const std::string& second) {
    return header(R"({"a":{"dtype":"U8","shape":[12],"data_offsets":)" + first +
                  R"(},"b":{"dtype":"U8","shape":[12],"data_offsets":)" + second + "}}");
  };
  const Damage table[] = {
      {"", "x is truncated: it ends at byte 0, but bytes 0 to 8 are needed"},
      {good.substr(0, 7), "x is truncated"},
      {good.substr(0, 40), "x: its header claims 55 bytes, but 32 follow"},
      {good.substr(0, good.size() - 1), "x: tensor 'a' ends at byte 24 of the data, which has 23"},
      {good + "!", "x: bytes 24 to 25 of the data belong to no tensor"},
      {little_endian(UINT64_MAX, 8) + good, "x: its header claims 18446744073709551615 bytes, but 87 follow"},
      {little_endian(10, 8) + good.substr(8), "is damaged: it is not JSON at byte 11"},
      {little_endian(60, 8) + good.substr(8), "is damaged: it is not JSON at byte 55"},
      {header(""), "is damaged: it is not JSON"},
      {header("[]"), "a list is unexpected"},
      {header("7"), "the number 7 is unexpected"},
      {header("{" + a + "," + a + "}"), "is damaged: it has tensor 'a' twice"},
      {header(R"({"a":{"dtype":"F32","dtype":"F16","shape":[6],"data_offsets":[0,24]}})"),
       "tensor 'a' has 'dtype' twice"},
      {header(R"({"a":{"dtype":"F32","shape":[6],"offsets":[0,24]}})"), "tensor 'a' has the unknown key 'offsets'"},
      {header(R"({"a":{"dtype":"F32","shape":[6]}})"), "tensor 'a' lacks dtype, shape or data_offsets"},
      {header(R"({"a":[[[[)"), "a list is unexpected, at 'a'"},
      {header(R"({"a":null})"), "null is unexpected, at 'a'"},
      {header(R"({"a":{"dtype":{"x":1}}})"), "an object is unexpected"},
      {header(R"({"a":{"dtype":"F32","shape":{"x":1}}})"), "an object is unexpected"},
      {header(R"({"__metadata__":{"n":1}})"), "the number 1 is unexpected"},
      {header(R"({"__metadata__":{},"__metadata__":{}})"), "it has __metadata__ twice"},
      {header("{\"\xff\":1}"), "is damaged: it is not JSON at byte"},
      {with_tensor("F33", "[6]", "[0,24]"), "x: tensor 'a' has the unknown dtype 'F33'"},
      {with_tensor("F32", "[7]", "[0,24]"),
       "x: tensor 'a' of shape [7] and dtype F32 does not fit the 24 bytes it has"},
      {with_tensor("F32", "[4611686018427387904]", "[0,24]"), "does not fit the 24 bytes"},  // times 4 is 0 in 64 bits
      {with_tensor("F32", "[4294967296,4294967296]", "[0,0]"), "more than 2^62 elements"},
      {with_tensor("F32", "[9223372036854775808]", "[0,24]"), "the number 9223372036854775808 is unexpected"},
      {with_tensor("F32", "[99999999999999999999]", "[0,24]"), "is unexpected"},
      {with_tensor("F32", "[-6]", "[0,24]"), "the number -6 is unexpected"},
      {with_tensor("F32", "[6.0]", "[0,24]"), "the number 6.0 is unexpected"},
      {with_tensor("F32", "6", "[0,24]"), "the number 6 is unexpected"},
      {with_tensor("F32", "[6]", "[24,0]"), "x: tensor 'a' ends at byte 0, before it begins at 24"},
      {with_tensor("F32", "[6]", "[0,24,48]"), "the number 48 is unexpected"},
      {with_tensor("F32", "[6]", "[24]"), "data_offsets of tensor 'a' are not a pair"},
      {with_tensor("F32", "[6]", "[]"), "data_offsets of tensor 'a' are not a pair"},
      {with_tensor("F32", "[6]", "[1,25]"), "x: tensor 'a' ends at byte 25 of the data, which has 24"},
      {with_tensor("F32", "[6]", "[18446744073709551600,18446744073709551624]"), "is unexpected"},
      {with_tensor("F32", "[5]", "[4,24]"), "x: bytes 0 to 4 of the data belong to no tensor"},
      {with_tensor("F32", "[5]", "[0,20]"), "x: bytes 20 to 24 of the data belong to no tensor"},
      {two("[0,12]", "[8,20]"), "x: tensor 'b' begins at byte 8, inside the tensor before it, which ends at 12"},
      {two("[0,12]", "[0,12]"), "x: tensor 'b' begins at byte 0, inside"},
  };
  for (const Damage& d : table) {
    const auto from = source(d.file);
    const std::string sentence = sentence_of([&] { io::Safetensors{from}; });
    EXPECT_NE(sentence.find(d.words), sentence.npos) << "expected: " << d.words << "\nsentence: " << sentence;
  }
}

TEST(Safetensors, HeaderOfOver100MB) {
  const std::string big = safetensors(std::string(100'000'001, ' '), "");
  const auto from = source(big);
  EXPECT_EQ(sentence_of([&] { io::Safetensors{from}; }),
            "x: its header must have at most 100000000 bytes (got 100000001)");
}

TEST(Safetensors, DeepNestingEndsAtOnce) {
  const std::string deep = header(R"({"a":)" + std::string(10'000'000, '['));
  const auto from = source(deep);
  EXPECT_NE(sentence_of([&] { io::Safetensors{from}; }).find("a list is unexpected"), std::string::npos);
}

// Whatever single bit of the file is wrong, and wherever it ends: a sentence or tensors, never anything else.
TEST(Safetensors, NoBitAndNoEndBreaksIt) {
  const std::string good = header(R"({"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}})");
  for (std::size_t end = 0; end < good.size(); ++end) {
    const std::string cut = good.substr(0, end);
    const auto from = source(cut);
    EXPECT_NE(sentence_of([&] { io::Safetensors{from}; }), "") << end;
  }
  for (std::size_t at = 0; at < good.size() - 24; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
      const auto from = source(bad);
      sentence_of([&] {
        const io::Safetensors s(from);
        for (const auto& [name, entry] : s.entries()) s.read(name);
      });
    }
  }
}

}  // namespace
}  // namespace onepass::test
