#include "onepass/tensor.hpp"
#include "base/text.hpp"

#include <gtest/gtest.h>

#include <climits>
#include <vector>

#include "onepass/error.hpp"
#include "onepass/view.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

TEST(Tensor, RowMajorByDefault) {
  const Tensor t(nullptr, DType::f16, {2, 3, 4, 5});
  EXPECT_EQ(t.stride, (Dims{60, 20, 5, 1}));
  EXPECT_EQ(t.elements(), 120);
  EXPECT_EQ(shape_text(t), "[2, 3, 4, 5]");
  EXPECT_TRUE(t.given());
  EXPECT_FALSE(Tensor().given());
  EXPECT_EQ(Tensor().elements(), 0);
  EXPECT_EQ(Tensor(nullptr, DType::f32, {4, 0, 3}).elements(), 0);
}

TEST(Tensor, ShapesMayBeVectors) {
  const std::vector<std::int64_t> shape{2, 3}, stride{1, 2}, many{1, 1, 1, 1, 1};
  float data[6];
  EXPECT_EQ(view(data, shape).stride, Tensor(data, DType::f32, {2, 3}).stride);
  EXPECT_EQ(view(data, shape).shape, Tensor(data, DType::f32, {2, 3}).shape);
  EXPECT_EQ(View<float>(data, shape, stride).stride, (Dims{1, 2}));
  EXPECT_THROW(view(data, many), Error);
  EXPECT_THROW(View<float>(data, shape, many), Error);
}

TEST(Tensor, AViewHasTheDtypeOfItsElements) {
  bfloat16 data[6];
  const View<const bfloat16> input(data, {2, 3}, {1, 2});
  const ConstTensor t = input;
  EXPECT_EQ(t.dtype, DType::bf16);
  EXPECT_EQ(t.data, data);
  EXPECT_EQ(t.stride, (Dims{1, 2}));
  const Tensor out = view(data, {6});
  EXPECT_EQ(out.dtype, DType::bf16);
  EXPECT_EQ(out.rank, 1);
  float16 half[1];
  float8_e4m3 narrow[1];
  bool visible[1];
  std::int32_t lengths[1];
  float single[1];
  EXPECT_EQ(view(half, {1}).dtype, DType::f16);
  EXPECT_EQ(view(narrow, {1}).dtype, DType::f8e4m3);
  EXPECT_EQ(view(visible, {1}).dtype, DType::boolean);
  EXPECT_EQ(view(lengths, {1}).dtype, DType::i32);
  EXPECT_EQ(view(single, {1}, {DeviceKind::cuda, 1}).device.index, 1);
}

TEST(Tensor, PermutedIsAView) {
  const Tensor t = Tensor(nullptr, DType::f32, {2, 3, 4, 5}).permuted({0, 2, 1, 3});
  EXPECT_EQ(t.shape, (Dims{2, 4, 3, 5}));
  EXPECT_EQ(t.stride, (Dims{60, 5, 20, 1}));
}

TEST(Tensor, ErrorsSayWhat) {
  const Tensor t(nullptr, DType::f32, {2, 3});
  EXPECT_EQ(test::sentence_of([&] { (void)t.permuted({0}); }), "a permutation must name all 2 dimensions (got 1)");
  EXPECT_EQ(test::sentence_of([&] { (void)t.permuted({0, 0}); }),
            "a permutation must name each dimension from 0 to 1 once (got 0)");
  EXPECT_EQ(test::sentence_of([&] { (void)t.permuted({0, 2}); }),
            "a permutation must name each dimension from 0 to 1 once (got 2)");
  EXPECT_EQ(test::sentence_of([&] { (void)t.permuted({-1, 0}); }),
            "a permutation must name each dimension from 0 to 1 once (got -1)");
  EXPECT_EQ(test::sentence_of([&] { Tensor(nullptr, DType::f32, {1, 1, 1, 1, 1}); }),
            "a tensor must have at most 4 dimensions (got 5)");
  EXPECT_EQ(test::sentence_of([&] { Tensor(nullptr, DType::f32, {1, 2}, {1}); }),
            "a tensor must have one stride for each of its 2 sizes (got 1)");
  EXPECT_EQ(test::sentence_of([&] { (void)dtype_from_name("float"); }),
            "dtype must be fp32, fp16, bf16, fp8_e4m3, bool, int32 or int64 (got 'float')");
}

TEST(DTypes, NamesAndSizes) {
  for (DType d : {DType::f32, DType::f16, DType::bf16, DType::f8e4m3, DType::boolean, DType::i32, DType::i64})
    EXPECT_EQ(dtype_from_name(name_of(d)), d);
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::f8e4m3), 1u);
  EXPECT_EQ(size_of(DType::boolean), 1u);
  EXPECT_EQ(size_of(DType::i32), 4u);
}

// Enumerators cast from any number: nothing is read beyond a table or a shape.
TEST(Tensor, ValuesThatAreNoneSaySo) {
  const auto said = [](auto f) {
    const auto [code, sentence] = test::said_by(f);
    return text(static_cast<int>(code), ": ", sentence);
  };
  const std::string shape = text(static_cast<int>(ErrorCode::bad_shape)),
                    dtype = text(static_cast<int>(ErrorCode::bad_dtype));
  for (int value : {7, 77, 255}) {
    const auto d = static_cast<DType>(value);
    const std::string sentence = text(dtype, ": dtype must be a value of DType, 0 to 6 (got ", value, ")");
    EXPECT_EQ(said([&] { (void)size_of(d); }), sentence);
    EXPECT_EQ(said([&] { (void)name_of(d); }), sentence);
  }
  EXPECT_EQ(said([&] { (void)to_string(Device{DeviceKind{5}, 0}); }),
            text(static_cast<int>(ErrorCode::bad_device), ": the device kind must be cpu or cuda (got 5)"));
  for (int rank : {5, 77, -1, INT_MIN}) {
    Tensor t(nullptr, DType::f32, {2, 3});
    t.rank = rank;
    const std::string sentence = text(shape, ": a tensor must have 0 to 4 dimensions (got ", rank, ")");
    EXPECT_EQ(said([&] { (void)t.elements(); }), sentence);
    EXPECT_EQ(said([&] { (void)shape_text(t); }), sentence);
    EXPECT_EQ(said([&] { (void)t.permuted({0, 1, 2, 3, 4}); }), sentence);
  }
}

}  // namespace
}  // namespace onepass
