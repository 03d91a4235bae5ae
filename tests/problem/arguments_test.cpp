// Refusals of calls and their words; a refused call does not write a byte.
#include "problem/attention/arguments.hpp"

#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <limits>

#include "check/check.hpp"
#include "support/named_params.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

using check::Inputs;

struct Refused {
  const char* name;
  const char* line;                    // a valid problem,
  std::function<void(Inputs&)> spoil;  // spoilt,
  ErrorCode code;                      // gives this
  const char* sentence;                // and this, as a part
};

ConstTensor& q(Inputs& in) { return in.tensors.q; }
ConstTensor& k(Inputs& in) { return in.tensors.k; }
ConstTensor& v(Inputs& in) { return in.tensors.v; }
Tensor& out(Inputs& in) { return in.tensors.out; }
std::int32_t* cu_q(Inputs& in) { return Inputs::writable<std::int32_t>(in.tensors.cu_seqlens_q); }
std::int32_t* cu_k(Inputs& in) { return Inputs::writable<std::int32_t>(in.tensors.cu_seqlens_k); }

constexpr const char* kSeeded = "h4/2 s5x6 d8 dropout=0.5 dropout_seed";
constexpr const char* kPlain = "b2 h4/2 s5x6 d8/12 fp32 lse bias=fp32:bhqk mask=b1qk alibi sinks";
constexpr const char* kModded = "b2 h4/2 s5x6 d8/12 fp32 lse score_mod={score + t[k_index]} buffer=t:fp32:6";
constexpr const char* kPacked = "h4/2 d8 fp32 varlen=3,2/4,5 packed=7:9 lse";

const Refused kRefused[] = {
    // Given at all
    {"QMissing", kPlain, [](Inputs& in) { q(in) = {}; }, ErrorCode::bad_shape, "q must be given"},
    {"OutMissing", kPlain, [](Inputs& in) { out(in) = {}; }, ErrorCode::bad_shape, "out must be given"},
    {"KNull", kPlain, [](Inputs& in) { k(in).data = nullptr; }, ErrorCode::bad_value,
     "k must have data for shape [2, 2, 6, 8] (got a null pointer)"},
    {"LseNull", kPlain, [](Inputs& in) { in.tensors.lse.data = nullptr; }, ErrorCode::bad_value,
     "lse must have data for shape [2, 4, 5] (got a null pointer)"},
    {"QBetweenElements", kPlain,
     [](Inputs& in) {
       q(in).device = {DeviceKind::cuda, 0};
       q(in).data = static_cast<const char*>(q(in).data) + 2;
     },
     ErrorCode::bad_value, "the data of q must be aligned to its elements of 4 bytes (got an address 2 beyond)"},
    {"NegativeSize", kPlain, [](Inputs& in) { v(in).shape[2] = -6; }, ErrorCode::bad_shape,
     "the sizes of v must be 0 or more (got [2, 2, -6, 12])"},
    // Values that are none of an enum's or a rank's
    {"QRankBeyond", kPlain, [](Inputs& in) { q(in).rank = 77; }, ErrorCode::bad_shape,
     "q must have 1 to 4 dimensions (got 77)"},
    {"OutRankNegative", kPlain, [](Inputs& in) { out(in).rank = -1; }, ErrorCode::bad_shape,
     "out must have 1 to 4 dimensions (got -1)"},
    {"LseRankBeyond", kPlain, [](Inputs& in) { in.tensors.lse.rank = 5; }, ErrorCode::bad_shape,
     "lse must have 1 to 4 dimensions (got 5)"},
    {"BiasRankNegative", kPlain, [](Inputs& in) { in.tensors.bias.rank = INT_MIN; }, ErrorCode::bad_shape,
     "bias must have 1 to 4 dimensions (got -2147483648)"},
    {"CuRankBeyond", kPacked, [](Inputs& in) { in.tensors.cu_seqlens_k.rank = 1000000; }, ErrorCode::bad_shape,
     "cu_seqlens_k must have 1 to 4 dimensions (got 1000000)"},
    {"BufferRankBeyond", kModded, [](Inputs& in) { in.tensors.mod_buffers[0].tensor.rank = 9; }, ErrorCode::bad_shape,
     "mod buffer t must have 1 to 4 dimensions (got 9)"},
    {"QDtypeUnknown", kPlain, [](Inputs& in) { q(in).dtype = DType{77}; }, ErrorCode::bad_dtype,
     "the dtype of q must be a value of DType (got 77)"},
    {"AllDtypesUnknown", kPlain, [](Inputs& in) { q(in).dtype = k(in).dtype = v(in).dtype = out(in).dtype = DType{7}; },
     ErrorCode::bad_dtype, "the dtype of q must be a value of DType (got 7)"},
    {"LseDtypeUnknown", kPlain, [](Inputs& in) { in.tensors.lse.dtype = DType{255}; }, ErrorCode::bad_dtype,
     "the dtype of lse must be a value of DType (got 255)"},
    {"BufferDtypeUnknown", kModded, [](Inputs& in) { in.tensors.mod_buffers[0].tensor.dtype = DType{7}; },
     ErrorCode::bad_dtype, "the dtype of mod buffer t must be a value of DType (got 7)"},
    {"DeviceUnknown", kPlain, [](Inputs& in) { q(in).device.kind = DeviceKind{9}; }, ErrorCode::bad_device,
     "the device kind of q must be a value of DeviceKind (got 9)"},
    {"AlignUnknown", kPlain, [](Inputs& in) { in.attention.band.align = Align{9}; }, ErrorCode::bad_value,
     "the band's align must be a value of Align (got 9)"},
    // Shared memory
    {"OutIsQ", kPlain, [](Inputs& in) { out(in).data = Inputs::writable<void>(q(in)); }, ErrorCode::bad_value,
     "out must not share memory with q"},
    {"OutIsK", kPlain, [](Inputs& in) { out(in).data = Inputs::writable<void>(k(in)); }, ErrorCode::bad_value,
     "out must not share memory with k"},
    {"OutEndsInV", kPlain, [](Inputs& in) { out(in).data = Inputs::writable<float>(v(in)) - 479; },
     ErrorCode::bad_value, "out must not share memory with v"},
    {"OutIsBias", kPlain, [](Inputs& in) { out(in).data = Inputs::writable<void>(in.tensors.bias); },
     ErrorCode::bad_value, "out must not share memory with bias"},
    {"OutIsMask", kPlain, [](Inputs& in) { out(in).data = Inputs::writable<void>(in.tensors.bool_mask); },
     ErrorCode::bad_value, "out must not share memory with bool_mask"},
    {"LseIsQ", kPlain, [](Inputs& in) { in.tensors.lse.data = Inputs::writable<void>(q(in)); }, ErrorCode::bad_value,
     "lse must not share memory with q"},
    {"LseIsOut", kPlain, [](Inputs& in) { in.tensors.lse.data = out(in).data; }, ErrorCode::bad_value,
     "lse must not share memory with out"},
    {"LseIsSlopes", kPlain, [](Inputs& in) { in.tensors.lse.data = Inputs::writable<void>(in.tensors.alibi_slopes); },
     ErrorCode::bad_value, "lse must not share memory with alibi_slopes"},
    {"LseIsSinks", kPlain, [](Inputs& in) { in.tensors.lse.data = Inputs::writable<void>(in.tensors.sinks); },
     ErrorCode::bad_value, "lse must not share memory with sinks"},
    {"OutIsCuQ", kPacked, [](Inputs& in) { out(in).data = Inputs::writable<void>(in.tensors.cu_seqlens_q); },
     ErrorCode::bad_value, "out must not share memory with cu_seqlens_q"},
    {"LseIsCuK", kPacked, [](Inputs& in) { in.tensors.lse.data = Inputs::writable<void>(in.tensors.cu_seqlens_k); },
     ErrorCode::bad_value, "lse must not share memory with cu_seqlens_k"},
    {"LseIsABuffer", kModded,
     [](Inputs& in) { in.tensors.lse.data = Inputs::writable<void>(in.tensors.mod_buffers[0].tensor); },
     ErrorCode::bad_value, "lse must not share memory with mod buffer t"},
    // Ranks and shapes
    {"QRank", kPlain, [](Inputs& in) { q(in) = ConstTensor(q(in).data, DType::f32, {8, 5, 8}); }, ErrorCode::bad_shape,
     "q must have shape [batch, heads_q, seq_q, dim_qk] (got [8, 5, 8])"},
    {"KBatch", kPlain, [](Inputs& in) { k(in).shape[0] = 1; }, ErrorCode::bad_shape,
     "the batch of k must be 2, as in q (got shape [1, 2, 6, 8])"},
    {"KDim", kPlain, [](Inputs& in) { k(in).shape[3] = 7; }, ErrorCode::bad_shape,
     "the head dim of k must be 8, as in q (got shape [2, 2, 6, 7])"},
    {"VHeads", kPlain, [](Inputs& in) { v(in).shape[1] = 1; }, ErrorCode::bad_shape,
     "the number of heads of v must be 2, as in k (got shape [2, 1, 6, 12])"},
    {"VSeq", kPlain, [](Inputs& in) { v(in).shape[2] = 5; }, ErrorCode::bad_shape,
     "the sequence length of v must be 6, as in k (got shape [2, 2, 5, 12])"},
    {"OutHeads", kPlain, [](Inputs& in) { out(in).shape[1] = 2; }, ErrorCode::bad_shape,
     "the number of heads of out must be 4, as in q (got shape [2, 2, 5, 12])"},
    {"OutSeq", kPlain, [](Inputs& in) { out(in).shape[2] = 4; }, ErrorCode::bad_shape,
     "the sequence length of out must be 5, as in q (got shape [2, 4, 4, 12])"},
    {"OutDim", kPlain, [](Inputs& in) { out(in).shape[3] = 8; }, ErrorCode::bad_shape,
     "the head dim of out must be 12, as in v (got shape [2, 4, 5, 8])"},
    {"HeadRatio", kPlain,
     [](Inputs& in) {
       q(in).shape[1] = out(in).shape[1] = 3;
       in.tensors = AttentionTensors{.q = q(in), .k = k(in), .v = v(in), .out = out(in)};
     },
     ErrorCode::bad_shape, "heads_q (3) must be a multiple of heads_kv (2)"},
    {"DimTooLarge", kPlain, [](Inputs& in) { q(in).shape[3] = k(in).shape[3] = 600; }, ErrorCode::bad_shape,
     "dim_qk must be 1 to 512, or 576 (got 600)"},
    // Strides, dtypes, devices
    {"QLastStride", kPlain, [](Inputs& in) { q(in).stride[3] = 2; }, ErrorCode::bad_stride,
     "the last dimension of q must have stride 1 (got 2)"},
    {"OutLastStride", kPlain, [](Inputs& in) { out(in).stride[3] = 0; }, ErrorCode::bad_stride,
     "the last dimension of out must have stride 1 (got 0)"},
    {"OutOverlaps", kPlain, [](Inputs& in) { out(in).stride[1] = 0; }, ErrorCode::bad_stride,
     "an output must not overlap itself (out has stride 0 in dimension 1 of [2, 4, 5, 12])"},
    {"OutOverlapsInPart", kPlain, [](Inputs& in) { out(in).stride[2] = 11; }, ErrorCode::bad_stride,
     "an output must not overlap itself (out has stride 11 in dimension 2 of [2, 4, 5, 12])"},
    {"OutOverlapsBackwards", kPlain, [](Inputs& in) { out(in).stride[1] = -59; }, ErrorCode::bad_stride,
     "an output must not overlap itself (out has stride -59 in dimension 1 of [2, 4, 5, 12])"},
    {"LseOverlaps", kPlain, [](Inputs& in) { in.tensors.lse.stride[0] = 0; }, ErrorCode::bad_stride,
     "an output must not overlap itself (lse has stride 0 in dimension 0"},
    {"QDtype", kPlain, [](Inputs& in) { q(in).dtype = DType::i32; }, ErrorCode::bad_dtype,
     "q must be fp32, fp16, bf16 or fp8_e4m3 (got int32)"},
    {"KDtype", kPlain, [](Inputs& in) { k(in).dtype = DType::i32; }, ErrorCode::bad_dtype,
     "k must be fp32, fp16, bf16 or fp8_e4m3 (got int32)"},
    {"KDtypeBesideFp16", "b2 h4/2 s5x6 d8/12 fp16", [](Inputs& in) { k(in).dtype = DType::bf16; }, ErrorCode::bad_dtype,
     "k must be fp16, as q, or fp8_e4m3 (got bf16)"},
    {"VDtype", kPlain, [](Inputs& in) { v(in).dtype = DType::f16; }, ErrorCode::bad_dtype,
     "v must be fp32, as k (got fp16)"},
    {"OutDtype", kPlain, [](Inputs& in) { out(in).dtype = DType::f16; }, ErrorCode::bad_dtype,
     "out must be fp32, as q (got fp16)"},
    {"LseDtype", kPlain, [](Inputs& in) { in.tensors.lse.dtype = DType::bf16; }, ErrorCode::bad_dtype,
     "lse must be fp32 (got bf16)"},
    {"KDevice", kPlain, [](Inputs& in) { k(in).device = {DeviceKind::cuda, 1}; }, ErrorCode::bad_device,
     "k must be on cpu, as q (got cuda:1)"},
    {"BiasDevice", kPlain, [](Inputs& in) { in.tensors.bias.device = {DeviceKind::cuda, 0}; }, ErrorCode::bad_device,
     "bias must be on cpu, as q (got cuda:0)"},
    // Bias, mask, slopes, sinks, lse
    {"BiasShape", kPlain, [](Inputs& in) { in.tensors.bias.shape[3] = 5; }, ErrorCode::bad_shape,
     "dimension 3 of bias must be 6 or 1 (got shape [2, 4, 5, 5])"},
    {"BiasRank", kPlain, [](Inputs& in) { in.tensors.bias.rank = 2; }, ErrorCode::bad_shape,
     "bias must have shape [batch|1, heads_q|1, seq_q|1, seq_k|1] (got [2, 4])"},
    {"BiasDtype", kPlain, [](Inputs& in) { in.tensors.bias.dtype = DType::boolean; }, ErrorCode::bad_dtype,
     "bias must be fp32, fp16 or bf16 (got bool)"},
    {"MaskShape", kPlain, [](Inputs& in) { in.tensors.bool_mask.shape[2] = 6; }, ErrorCode::bad_shape,
     "dimension 2 of bool_mask must be 5 or 1 (got shape [2, 1, 6, 6])"},
    {"MaskDtype", kPlain, [](Inputs& in) { in.tensors.bool_mask.dtype = DType::f32; }, ErrorCode::bad_dtype,
     "bool_mask must be bool (got fp32)"},
    {"SlopesLength", kPlain, [](Inputs& in) { in.tensors.alibi_slopes.shape[0] = 3; }, ErrorCode::bad_shape,
     "the number of heads of alibi_slopes must be 4, as in q (got shape [3])"},
    {"SlopesRank", kPlain, [](Inputs& in) { in.tensors.alibi_slopes.rank = 3; }, ErrorCode::bad_shape,
     "alibi_slopes must have shape [heads_q] or [batch, heads_q] (got [4, 1, 1])"},
    {"SinksLength", kPlain, [](Inputs& in) { in.tensors.sinks.shape[0] = 2; }, ErrorCode::bad_shape,
     "the number of heads of sinks must be 4, as in q (got shape [2])"},
    {"SinksDtype", kPlain, [](Inputs& in) { in.tensors.sinks.dtype = DType::bf16; }, ErrorCode::bad_dtype,
     "sinks must be fp32 (got bf16)"},
    {"LseShape", kPlain, [](Inputs& in) { in.tensors.lse.shape[2] = 6; }, ErrorCode::bad_shape,
     "the sequence length of lse must be 5, as in q (got shape [2, 4, 6])"},
    {"LseRank", kPlain, [](Inputs& in) { in.tensors.lse.rank = 2; }, ErrorCode::bad_shape,
     "lse must have shape [batch, heads_q, seq_q] (got [2, 4])"},
    // Options
    {"WindowLeft", kPlain, [](Inputs& in) { in.attention.band.left = -2; }, ErrorCode::bad_value,
     "the window's left side must be -1 (unbounded) to 2^60 (got -2)"},
    {"WindowRight", kPlain, [](Inputs& in) { in.attention.band.right = -7; }, ErrorCode::bad_value,
     "the window's right side must be -1 (unbounded) to 2^60 (got -7)"},
    {"Offset", kPlain, [](Inputs& in) { in.attention.band.offset = 3; }, ErrorCode::bad_value,
     "the band's offset must be 0 unless its align is Align::offset (got 3)"},
    {"OffsetTooFar", kPlain, [](Inputs& in) { in.attention.band = {.align = Align::offset, .offset = INT64_MIN}; },
     ErrorCode::bad_value, "the band's offset must be -2^60 to 2^60 (got -9223372036854775808)"},
    {"Softcap", kPlain, [](Inputs& in) { in.attention.softcap = -1; }, ErrorCode::bad_value,
     "softcap must be 0 (none) or positive (got -1)"},
    {"Dropout", kPlain, [](Inputs& in) { in.attention.dropout_p = 2; }, ErrorCode::bad_value,
     "dropout_p must be 0 to 1 (got 2)"},
    {"SeedTwice", kSeeded, [](Inputs& in) { in.attention.seed = 7; }, ErrorCode::bad_value,
     "seed must be 0 with dropout_seed (got 7)"},
    {"SeedDtype", kSeeded, [](Inputs& in) { in.tensors.dropout_seed.dtype = DType::i32; }, ErrorCode::bad_dtype,
     "dropout_seed must be int64 (got int32)"},
    {"SeedShape", kSeeded, [](Inputs& in) { in.tensors.dropout_seed.shape[0] = 2; }, ErrorCode::bad_shape,
     "dropout_seed must have shape [1] (got [2])"},
    {"SeedRank", kSeeded, [](Inputs& in) { in.tensors.dropout_seed.rank = 2; }, ErrorCode::bad_shape,
     "dropout_seed must have shape [1] (got [1, 1])"},
    {"SeedDevice", kSeeded, [](Inputs& in) { in.tensors.dropout_seed.device = {DeviceKind::cuda}; },
     ErrorCode::bad_device, "dropout_seed must be on cpu, as q (got cuda:0)"},
    {"Scale", kPlain, [](Inputs& in) { in.attention.scale = std::numeric_limits<double>::infinity(); },
     ErrorCode::bad_value, "scale must be -2.3e38 to 2.3e38 (got inf)"},
    {"Unknown", kPlain, [](Inputs& in) { in.implementation = "cpu.magic"; }, ErrorCode::bad_value,
     "implementation must be one of "},
    // Variable lengths
    {"PackedRank", kPacked, [](Inputs& in) { q(in).rank = 4; }, ErrorCode::bad_shape,
     "q must have shape [total_q, heads_q, dim_qk] with cu_seqlens (got [7, 4, 8, 1])"},
    {"PackedTokens", kPacked, [](Inputs& in) { v(in).shape[0] = 8; }, ErrorCode::bad_shape,
     "the number of tokens of v must be 9, as in k (got shape [8, 2, 8])"},
    {"CuMissing", kPacked, [](Inputs& in) { in.tensors.cu_seqlens_k = {}; }, ErrorCode::bad_shape,
     "cu_seqlens_k must be given"},
    {"CuDtype", kPacked, [](Inputs& in) { in.tensors.cu_seqlens_q.dtype = DType::f32; }, ErrorCode::bad_dtype,
     "cu_seqlens_q must be int32 (got fp32)"},
    {"CuRank", kPacked, [](Inputs& in) { in.tensors.cu_seqlens_q.rank = 2; }, ErrorCode::bad_shape,
     "cu_seqlens_q must have shape [batch + 1] (got [3, 1])"},
    {"CuLength", kPacked, [](Inputs& in) { in.tensors.cu_seqlens_k.shape[0] = 2; }, ErrorCode::bad_shape,
     "the length of cu_seqlens_k must be 3, as in cu_seqlens_q (got shape [2])"},
    {"CuEmpty", kPacked, [](Inputs& in) { in.tensors.cu_seqlens_q.shape[0] = 0; }, ErrorCode::bad_shape,
     "cu_seqlens_q must have batch + 1 entries"},
    {"CuDevice", kPacked, [](Inputs& in) { in.tensors.cu_seqlens_q.device = {DeviceKind::cuda, 0}; },
     ErrorCode::bad_device, "cu_seqlens_q must be on cpu, as q (got cuda:0)"},
    {"CuStart", kPacked, [](Inputs& in) { cu_q(in)[0] = 1; }, ErrorCode::bad_value,
     "cu_seqlens_q[0] must be 0 (got 1)"},
    {"CuDecreasing", kPacked, [](Inputs& in) { cu_k(in)[2] = 3; }, ErrorCode::bad_value,
     "cu_seqlens_k[2] must be at least 4, the entry before it (got 3)"},
    {"CuNegative", kPacked, [](Inputs& in) { cu_q(in)[1] = -5; }, ErrorCode::bad_value,
     "cu_seqlens_q[1] must be at least 0, the entry before it (got -5)"},
    {"CuBeyond", kPacked, [](Inputs& in) { cu_k(in)[2] = 10; }, ErrorCode::bad_value,
     "cu_seqlens_k[2] must be at most 9, the tokens of k (got 10)"},
    {"MaxSeqlenBelow", kPacked, [](Inputs& in) { in.attention.max_seqlen_k = 4; }, ErrorCode::bad_value,
     "max_seqlen_k must be at least 5, the length of the longest sequence (got 4)"},
    {"MaxSeqlenNegative", kPacked, [](Inputs& in) { in.attention.max_seqlen_q = -1; }, ErrorCode::bad_value,
     "max_seqlen_q must be 0 (unknown) or more (got -1)"},
    {"MaxSeqlenDense", kPlain, [](Inputs& in) { in.attention.max_seqlen_q = 9; }, ErrorCode::bad_value,
     "max_seqlen_q must be 0 if the tensors are not packed (got 9)"},
    {"PackedLse", kPacked, [](Inputs& in) { in.tensors.lse.shape[1] = 5; }, ErrorCode::bad_shape,
     "the number of tokens of lse must be 7, as in q (got shape [4, 5])"},
};

class Refuses : public testing::TestWithParam<Refused> {};

TEST_P(Refuses, InASentenceWithOutputsUntouched) {
  const Refused& c = GetParam();
  Inputs in = check::make_inputs(parse_problem(c.line));
  in.implementation = "reference";
  ASSERT_NO_THROW(in.attend());
  in.poison_outputs();
  c.spoil(in);
  test::expect_refused([&] { in.attend(); }, c.sentence, c.code);
  for (const Role role : {Role::out, Role::lse})
    EXPECT_TRUE(in.buffer(role).all_poison()) << row_of(role).name << " was written";
}
INSTANTIATE_TEST_SUITE_P(Tensors, Refuses, testing::ValuesIn(kRefused), [](const auto& c) { return c.param.name; });

TEST(Tensors, ProblemOfATypicalCall) {
  Inputs in = check::make_inputs(parse_problem(kPlain));
  EXPECT_EQ(to_string(problem_of(in.tensors, in.attention)), to_string(parse_problem(kPlain)));
}

TEST(Tensors, BshdIsAView) {
  float x[2 * 3 * 4 * 8] = {};
  const Tensor t = Tensor(x, DType::f32, {2, 3, 4, 8}).permuted({0, 2, 1, 3});
  EXPECT_EQ(to_string(problem_of(AttentionTensors{.q = t, .k = t, .v = t, .out = t}, {})),
            "fwd b2 h4 s3 d8 fp32 v_in_k layout=bshd");
}

TEST(Tensors, SizesOfZero) {
  const Tensor none(nullptr, DType::f32, {2, 4, 0, 8}), some(none.data, DType::f32, {0, 4, 5, 8});
  EXPECT_EQ(problem_of(AttentionTensors{.q = none, .k = none, .v = none, .out = none}, {}).seq_q, 0);
  EXPECT_EQ(problem_of(AttentionTensors{.q = some, .k = some, .v = some, .out = some}, {}).batch, 0);
  const Tensor no_heads(nullptr, DType::f32, {2, 0, 3, 8});
  EXPECT_EQ(problem_of(AttentionTensors{.q = no_heads, .k = no_heads, .v = no_heads, .out = no_heads}, {}).heads_q, 0);
}

TEST(Sequences, ComeFromThePrefixSums) {
  Inputs in = check::make_inputs(parse_problem(kPacked));
  const Sequence s = sequence_of(in.problem, in.tensors, 1);
  EXPECT_EQ(s.q_begin, 3);
  EXPECT_EQ(s.seq_q, 2);
  EXPECT_EQ(s.k_begin, 4);
  EXPECT_EQ(s.seq_k, 5);
  EXPECT_EQ(s.batch, 1);
}

TEST(Sequences, BandsPerSequence) {
  const Problem p = parse_problem("b1 h1 s3x7 d8 causal_bottom_right window=4:0");
  const BandMask m = band_mask(p, 3, 7);
  EXPECT_EQ(m.shift, 4);
  EXPECT_EQ(m.left, 4);
  EXPECT_EQ(m.right, 0);  // causal
  EXPECT_EQ(band_mask(parse_problem("b1 h1 s3x7 d8 causal_top_left"), 3, 7).shift, 0);
  EXPECT_EQ(band_mask(parse_problem("b1 h1 s3x7 d8 window=1:2"), 3, 7).shift, 4);
  EXPECT_EQ(band_mask(parse_problem("b1 h1 s3x7 d8 window=1:2"), 3, 7).right, 2);
  EXPECT_EQ(band_mask(parse_problem("b1 h1 s3x7 d8 causal_offset=-2"), 3, 7).shift, -2);
  EXPECT_EQ(band_mask(parse_problem("b1 h1 s3x7 d8 aligned_offset=9 window=1:2"), 2, 5).shift, 9);
}

// The keys that a single row sees are those of its band, which has no right side where it ends with the last key.
TEST(Sequences, BandsOfSingleRowsHideNothingOnTheRight) {
  for (const char* words : {"causal_bottom_right", "causal_bottom_right window=4:0", "window=4:2", "window=-1:0"}) {
    const Problem p = parse_problem(std::string("b1 h1 s1x7 d8 ") + words);
    for (std::int64_t keys = 0; keys <= 7; ++keys) {
      const BandMask m = band_mask(p, 1, keys);
      const BandMask asked{1, keys, keys - 1, p.band.left, p.band.causal ? 0 : p.band.right};
      EXPECT_EQ(m.right, -1) << words;
      for (std::int64_t key = 0; key < keys; ++key)
        EXPECT_EQ(m.visible(0, key), asked.visible(0, key)) << words << ", key " << key << " of " << keys;
    }
  }
  EXPECT_EQ(band_mask(parse_problem("b1 h1 s1x7 d8 causal_top_left"), 1, 7).right, 0);
  EXPECT_EQ(band_mask(parse_problem("b1 h1 s1x7 d8 causal_offset=3"), 1, 7).right, 0);
  EXPECT_EQ(band_mask(parse_problem("b1 h1 s1x7 d8 tree=4 causal_bottom_right"), 1, 7).right, 0);
  EXPECT_EQ(band_mask(parse_problem("h1 d8 varlen=1,2/7,7 causal_bottom_right"), 1, 7).right, 0);
}

// q, k, v and out in the four slots of one buffer, and lse behind them: ordinary use.
TEST(Tensors, SlotsOfOneBufferAreAccepted) {
  constexpr std::int64_t b = 2, s = 5, h = 4, d = 8;
  std::vector<float> buffer(b * s * 4 * h * d + b * h * s), apart(b * h * s * d);
  for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<float>(i * 37 % 101) / 50;
  const auto slot = [&](std::int64_t i) {
    return Tensor(buffer.data() + i * h * d, DType::f32, {b, s, h, d}, {s * 4 * h * d, 4 * h * d, d, 1})
        .permuted({0, 2, 1, 3});
  };
  const auto into = [&](const Tensor& out) {
    const Tensor lse(buffer.data() + b * s * 4 * h * d, DType::f32, {b, h, s});
    attention({.q = slot(0), .k = slot(1), .v = slot(2), .out = out, .lse = lse});
  };
  into(Tensor(apart.data(), DType::f32, {b, h, s, d}));
  into(slot(3));
  EXPECT_EQ(buffer[static_cast<std::size_t>(3 * h * d)], apart[0]);
  EXPECT_THROW(into(slot(2)), Error);
}

}  // namespace
}  // namespace onepass
