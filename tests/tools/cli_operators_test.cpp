// `onepass run softmax`, `softmax_bwd`, `flat_gemm` and `linear`: files in, files out.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tools/cli.hpp"
#include "tools/onepass/io/safetensors.hpp"

namespace onepass::test {
namespace {

using Floats = std::vector<float>;

Floats floats_of(const std::string& npy_file) {
  const std::size_t header =
      10 + static_cast<unsigned char>(npy_file[8]) + 256 * static_cast<unsigned char>(npy_file[9]);
  Floats x((npy_file.size() - header) / 4);
  std::memcpy(x.data(), npy_file.data() + header, 4 * x.size());
  return x;
}
void expect_near(const Floats& x, const Floats& expected) {
  ASSERT_EQ(x.size(), expected.size());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], expected[i], 1e-5 * (1 + std::abs(expected[i]))) << i;
}

class CliOperators : public testing::Test {
 protected:
  CliOperators() {
    write("x", "2, 3", x);
    write("w", "4, 3", w);
    write("bias", "4,", bias);
    folder.write("mask.npy", npy(npy_literal("|b1", "3,"), std::string("\1\1\0", 3)));
  }
  void write(const std::string& name, const char* shape, const Floats& values) {
    folder.write(name + ".npy", npy(npy_literal("<f4", shape), bytes_of(values)));
  }
  std::string file(const std::string& name) const { return folder(name + ".npy"); }
  Floats result(const std::string& name) const { return floats_of(folder.read(name + ".npy")); }
  Result run(std::vector<std::string> words) const {
    words.insert(words.begin(), "run");
    return onepass(words);
  }
  std::string refusal(const std::vector<std::string>& words) const {
    const Result r = run(words);
    EXPECT_EQ(r.status, 2) << r.out;
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"bias.npy", "mask.npy", "w.npy", "x.npy"}));
    return r.err;
  }

  const Folder folder;
  const Floats x{1, 2, 3, -1, 0, 5}, w{1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1}, bias{10, 20, 30, 40};
};

TEST_F(CliOperators, Softmax) {
  const Result masked = run({"softmax", "--x", file("x"), "--bool-mask", file("mask"), "--scale", "2", "--out",
                             file("y"), "--lse", file("lse")});
  ASSERT_EQ(masked.status, 0) << masked.err;
  EXPECT_EQ(masked.out.find("softmax b1 h1 s2x3 fp32 scale=2 mask=111k lse\n"), 0u) << masked.out;
  const float low = 1 / (1 + std::exp(2.0f));
  expect_near(result("y"), {low, 1 - low, 0, low, 1 - low, 0});
  expect_near(result("lse"), {std::log(std::exp(2.0f) + std::exp(4.0f)), std::log(std::exp(-2.0f) + 1)});

  const Result both = run({"softmax", "--x", file("x"), "--log", "--out", folder("both.safetensors"), "--lse"});
  ASSERT_EQ(both.status, 0) << both.err;
  const io::FileSource source(folder("both.safetensors"));
  const io::Safetensors all(source);
  const io::Array y = all.read("y"), lse = all.read("lse");
  const auto number = [](const io::Array& a, int i) { return reinterpret_cast<const float*>(a.data())[i]; };
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(number(y, i), x[static_cast<std::size_t>(i)] - number(lse, i / 3), 1e-5);

  // A piece by the LSE of the whole row, and the gradient of what was written first.
  const Result piece = run({"softmax", "--x", file("x"), "--row-lse", file("lse"), "--scale", "2", "--bool-mask",
                            file("mask"), "--out", file("again")});
  ASSERT_EQ(piece.status, 0) << piece.err;
  expect_near(result("again"), result("y"));
  const Result gradient =
      run({"softmax_bwd", "--y", file("y"), "--dy", file("x"), "--scale", "2", "--out", file("dx")});
  ASSERT_EQ(gradient.status, 0) << gradient.err;
  const float slope = 2 * low * (1 - low);
  expect_near(result("dx"), {-slope, slope, 0, -slope, slope, 0});
}

TEST_F(CliOperators, FlatGemmAndLinear) {
  for (const char* op : {"flat_gemm", "linear"}) {
    const Result r = run({op, "--x", file("x"), "--w", file("w"), "--column-bias", file("bias"), "--out", file("y")});
    ASSERT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out.find(std::string(op) + " m2 n4 k3 fp32 column_bias\n"), 0u) << r.out;
    expect_near(result("y"), {11, 22, 33, 46, 9, 20, 35, 44});
  }
}

TEST_F(CliOperators, RefusalsAreSentencesAndWriteNothing) {
  EXPECT_EQ(refusal({"linear", "--x", file("x"), "--out", file("y")}),
            "onepass: w is missing: give --w FILE.npy, or --in FILE.safetensors with a tensor 'w'\n");
  EXPECT_EQ(refusal({"flat_gemm", "--x", file("x"), "--w", file("bias"), "--out", file("y")}),
            "onepass: w must have shape [n, k] (got [4])\n");
  EXPECT_EQ(refusal({"softmax", "--x", file("x"), "--out-dtype", "bf16", "--out", file("y")}),
            "onepass: y must be fp32, as x (got bf16)\n");
  EXPECT_NE(
      refusal({"softmax", "--x", file("x"), "--mask", "causal_top_left", "--out", file("y")}).find("not expected"),
      std::string::npos);
  EXPECT_EQ(refusal({"--q", file("x"), "softmax", "--x", file("x"), "--out", file("y")}),
            "onepass: --q stands in front of softmax; its options stand behind it\n");
  EXPECT_EQ(refusal({"softmax", "--x", file("x")}), "onepass: --out is required (see onepass --help)\n");
}

}  // namespace
}  // namespace onepass::test
