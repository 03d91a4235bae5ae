// The .npy reader against files laid out by hand, the writer against the reader, and every kind of damage.
#include "tools/onepass/io/npy.hpp"

#include "tools/files.hpp"

namespace onepass::test {
namespace {

const std::vector<float> kSix = {1, 2, 3, 4, 5, 6};

TEST(Npy, ReadsEveryVersion) {
  for (const int version : {1, 2, 3}) {
    const std::string file = npy(npy_literal("<f4", "2, 3"), bytes_of(kSix), version);
    const io::Array a = io::read_npy(source(file));
    EXPECT_EQ(a.dtype(), DType::f32);
    EXPECT_EQ(a.shape(), (io::Shape{2, 3}));
    EXPECT_EQ(std::memcmp(a.data(), kSix.data(), 24), 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 64, 0u);
  }
}

TEST(Npy, ReadsEveryDtype) {
  const auto dtype = [](const char* descr, int size, std::optional<DType> void2 = {}) {
    return io::read_npy(source(npy(npy_literal(descr, "4,"), std::string(4 * size, '\1'))), void2).dtype();
  };
  EXPECT_EQ(dtype("<f4", 4), DType::f32);
  EXPECT_EQ(dtype("<f2", 2), DType::f16);
  EXPECT_EQ(dtype("<i4", 4), DType::i32);
  EXPECT_EQ(dtype("|b1", 1), DType::boolean);
  EXPECT_EQ(dtype("bfloat16", 2), DType::bf16);
  EXPECT_EQ(dtype("<V2", 2, DType::bf16), DType::bf16);
  EXPECT_EQ(dtype("|V2", 2, DType::bf16), DType::bf16);
}

TEST(Npy, ReadsTheFormsOfAHeader) {
  const auto shape = [](const std::string& literal, std::size_t bytes) {
    return io::read_npy(source(npy(literal, std::string(bytes, '\0')))).shape();
  };
  EXPECT_EQ(shape(npy_literal("<f4", ""), 4), io::Shape{});  // a scalar
  EXPECT_EQ(shape(npy_literal("<f4", "3,"), 12), io::Shape{3});
  EXPECT_EQ(shape(npy_literal("<f4", "3,", true), 12), io::Shape{3});  // one dimension has no order
  EXPECT_EQ(shape(npy_literal("<f4", "0, 5"), 0), (io::Shape{0, 5}));
  EXPECT_EQ(shape(R"({"shape":(1,2),"descr":"<f4","fortran_order":False})", 8), (io::Shape{1, 2}));  // other writers
}

TEST(Npy, ViewIsRowMajor) {
  const Tensor t = io::read_npy(source(npy(npy_literal("<f4", "1, 2, 3, 1"), bytes_of(kSix)))).view();
  EXPECT_EQ(t.rank, 4);
  EXPECT_EQ(t.shape, (Dims{1, 2, 3, 1}));
  EXPECT_EQ(t.stride, (Dims{6, 3, 1, 1}));
  const auto rank = [](const std::string& shape) {
    return sentence_of([&] { io::read_npy(source(npy(npy_literal("<f4", shape), std::string(4, '\0')))).view(); });
  };
  EXPECT_EQ(rank(""), "x must have 1 to 4 dimensions (got 0)");
  EXPECT_EQ(rank("1, 1, 1, 1, 1"), "x must have 1 to 4 dimensions (got 5)");
}

TEST(Npy, HeaderIsNumpys) {  // byte for byte what numpy.save writes
  EXPECT_EQ(io::npy_header(DType::f32, {2, 3}), npy(npy_literal("<f4", "2, 3"), ""));
  EXPECT_EQ(io::npy_header(DType::f16, {7}), npy(npy_literal("<f2", "7,"), ""));
  EXPECT_EQ(io::npy_header(DType::bf16, {}), npy(npy_literal("<V2", ""), ""));
  EXPECT_EQ(sentence_of([] { io::npy_header(DType::f8e4m3, {1}); }), "NumPy has no dtype for fp8_e4m3");
}

TEST(Npy, RoundTrip) {
  const Folder folder;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::boolean, DType::i32}) {
    for (const io::Shape& shape : {io::Shape{}, {5}, {0}, {2, 0, 3}, {3, 4}, {2, 3, 4, 5}, {1, 1, 1, 1, 2}}) {
      io::Array a("a", dtype, shape);
      for (std::size_t i = 0; i < a.bytes(); ++i) a.data()[i] = static_cast<std::byte>(i % 251);
      {
        io::OutputFile file(folder("a.npy"));
        io::write_npy(file, a);
        file.commit();
      }
      const io::Array b = io::read_npy(io::FileSource(folder("a.npy")), DType::bf16);
      EXPECT_EQ(b.dtype(), dtype);
      EXPECT_EQ(b.shape(), shape);
      ASSERT_EQ(b.bytes(), a.bytes());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0);
    }
  }
}

struct Damage {
  std::string file, words;
};

TEST(Npy, EveryDamageHasItsSentence) {
  const std::string data = bytes_of(kSix), good = npy(npy_literal("<f4", "2, 3"), data);
  std::string version4 = good, version11 = good, long_header = good,
              negative_length = npy(npy_literal("<f4", "2, 3"), data, 2);
  version4[6] = 4;
  version11[7] = 1;
  long_header[8] = '\xff', long_header[9] = '\x7f';
  for (int i = 8; i < 12; ++i) negative_length[i] = '\xff';
  const auto header = [&](const std::string& literal) { return npy(literal, data); };
  const Damage table[] = {
      {"", "x is not an .npy file"},
      {"\x93NUMP", "x is not an .npy file"},
      {"PK\3\4 an .npz is a zip", "x is not an .npy file"},
      {good.substr(0, 6), "x is truncated: it ends at byte 6, but bytes 0 to 10 are needed"},
      {good.substr(0, 9), "x is truncated"},
      {good.substr(0, 60), "x is truncated: it ends at byte 60, but bytes 10 to 128 are needed"},
      {npy(npy_literal("<f4", "2, 3"), data, 2).substr(0, 11),
       "x is truncated: it ends at byte 11, but bytes 0 to 12 are needed"},
      {version4, "x must have the .npy version 1.0, 2.0 or 3.0 (got 4.0)"},
      {version11, "x must have the .npy version 1.0, 2.0 or 3.0 (got 1.1)"},
      {long_header, "x is truncated"},
      {negative_length, "the .npy header of x must have at most"},
      {good.substr(0, good.size() - 1), "x has 23 bytes of data, but its shape [2, 3] of fp32 needs 24"},
      {good + "!", "x has 25 bytes of data"},
      {header(npy_literal(">f4", "2, 3")), "x must be little-endian (got '>f4')"},
      {header(npy_literal("<f8", "1, 3")),
       "x must have the dtype '<f4', '<f2', '<V2' (bf16), '|b1', '<i4' or '<i8' (got '<f8')"},
      {header(npy_literal("|O", "3,")), "(got '|O')"},
      {header(npy_literal("<V2", "12,")), "give --dtype bf16"},
      {header(npy_literal("<f4", "2, 3", true)),
       "x must be in C order, as numpy.ascontiguousarray makes it (got Fortran order)"},
      {header(npy_literal("<f4", "2, -3")), "x has a negative size in [2, -3]"},
      {header(npy_literal("<f4", "99999999999999999999")), "a size of its shape does not fit 64 bits"},
      {header(npy_literal("<f4", "4611686018427387904, 4")), "more than 2^62 elements"},
      {header(npy_literal("<f4", "4611686018427387904")), "x has 24 bytes of data"},  // times 4 does not fit 64 bits
      {header(npy_literal("<f4", "0, 4611686018427387904, 4611686018427387904")), "more than 2^62 elements"},
      {header(npy_literal("<f4", "1000000000, 1000")),
       "x has 24 bytes of data, but its shape [1000000000, 1000] of fp32 needs 4000000000000"},
      {header(npy_literal("<f4", "2.0, 3")), "is damaged: ')' is expected before the rest"},
      {header(npy_literal("<f4", "two, 3")), "is damaged: integers are expected in its shape"},
      {header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }"),
       "x must be an array of numbers (got a structured dtype)"},
      {header("{'descr': '<f4', 'fortran_order': False}"), "descr, fortran_order and shape are expected in it"},
      {header("{'descr': '<f4', 'descr': '<f4'}"), "is damaged: it has 'descr' twice"},
      {header("{'descr': '<f4', 'colour': 'red'}"), "is damaged: 'colour' is not a key of it"},
      {header("{'descr': '<f4', 'fortran_order': Maybe}"), "True or False is expected"},
      {header("{'descr': '<f4"), "is damaged: a plain string is expected"},
      {header("{'descr': '\\x3cf4'}"), "is damaged: a plain string is expected"},
      {header("{'descr'"), "is damaged: ':' is expected at its end"},
      {header("{}"), "descr, fortran_order and shape are expected in it"},
      {header(""), "is damaged: '{' is expected at its end"},
      {header(npy_literal("<f4", "2, 3") + " import os"), "nothing but spaces is expected after it"},
  };
  for (const Damage& d : table) {
    const std::string sentence = sentence_of([&] { io::read_npy(source(d.file)); });
    EXPECT_NE(sentence.find(d.words), sentence.npos) << "expected: " << d.words << "\nsentence: " << sentence;
  }
}

// Whatever single byte of the header is wrong, and wherever the file ends: a sentence or an array, never anything else.
TEST(Npy, NoByteAndNoEndBreaksIt) {
  const std::string good = npy(npy_literal("<f4", "2, 3"), bytes_of(kSix));
  for (std::size_t end = 0; end < good.size(); ++end) {
    EXPECT_NE(sentence_of([&] { io::read_npy(source(good.substr(0, end))); }), "") << end;
  }
  for (std::size_t at = 0; at < 128; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
      sentence_of([&] { io::read_npy(source(bad)); });
    }
  }
}

TEST(Npy, FilesThatCannotBeRead) {
  const Folder folder;
  EXPECT_EQ(sentence_of([&] { io::FileSource(folder("none")); }),
            "cannot open " + folder("none") + ": No such file or directory");
  EXPECT_EQ(sentence_of([&] { io::FileSource(folder("")); }), folder("") + " is not a regular file");
  EXPECT_EQ(sentence_of([&] { io::FileSource("/dev/null"); }), "/dev/null is not a regular file");
}

}  // namespace
}  // namespace onepass::test
