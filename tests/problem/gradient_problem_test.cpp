// Lines and calls of a backward: what they print as, what they refuse, and in which words.
#include <gtest/gtest.h>

#include <functional>

#include "base/text.hpp"
#include "check/check.hpp"
#include "problem/roles.hpp"
#include "reference/reference.hpp"
#include "support/named_params.hpp"
#include "support/sentence.hpp"

namespace onepass {
namespace {

using check::Inputs;

TEST(GradientProblem, LinesPrintAndParse) {
  for (const char* line :
       {"bwd b2 h4/2 s5x6 d8/12 fp32", "bwd b1 h1 s5 d8 bf16 out=fp32 grad=fp32", "bwd b1 h1 s5 d8 fp16 grad=fp32",
        "bwd b1 h2 s5 d8 fp32 bias=fp32:1hqk alibi sinks grads=dq,dk,dv,dbias,dsinks,dalibi_slopes dlse deterministic",
        "bwd b1 h1 s5 d8 fp32 grads=dv", "bwd b3 h2/1 s9x11 d8 fp16 window=4:2 varlen=5,0,9/3,4,11",
        "bwd b2 h2 s5x7 d8 fp32 layout=bshd", "bwd b2 h2 s5x7 d8 fp32 layout=bshd dq_strides=90,8,18",
        "bwd b2 h2 s5x7 d8 fp32 strides=q:80,40,8;k:112,56,8;v:112,56,8;o:100,50,10 dout_strides=0,0,0",
        "bwd b2 h2 s5x7 d8 fp32 dlse dlse_strides=20,10,2 align=dout:4,dk:2"}) {
    EXPECT_EQ(to_string(parse_problem(line)), line);
    EXPECT_EQ(parse_problem(to_string(parse_problem(line))), parse_problem(line)) << line;
  }
  EXPECT_EQ(to_string(parse_problem("bwd s5 d8 grads=dk,dq,dv")), "bwd b1 h1 s5 d8 fp32");  // whatever their order
}

TEST(GradientProblem, GradientsLieAsTheirTensorsDo) {
  const Problem p = parse_problem("bwd b2 h4/2 s5x6 d8/12 fp32 layout=bshd");
  EXPECT_EQ(p.layout.dq, p.layout.q);
  EXPECT_EQ(p.layout.dk, p.layout.k);
  EXPECT_EQ(p.layout.dv, p.layout.v);
  EXPECT_EQ(p.layout.dout, p.layout.out);
  EXPECT_EQ(p.layout.lse, (Dims{20, 5, 1, 0}));
  EXPECT_EQ(p.layout.dlse, Dims{});  // not given
}

TEST(GradientProblem, SaysWhatALineCannotMean) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"fwd s5 grads=dq", "fwd does not support 'grads=dq'"},
      {"fwd s5 deterministic", "fwd does not support 'deterministic'"},
      {"fwd s5 dq_strides=1,2,3", "fwd does not support 'dq_strides=1,2,3'"},
      {"bwd s5 lse", "bwd does not support 'lse'"},
      {"bwd s5 n3", "bwd does not support 'n3'"},
      {"merge n2 s5 dlse", "merge does not support 'dlse'"},
      {"bwd s5 grads=do", "it must be grads= with some of dq, dk, dv, dbias, dsinks and dalibi_slopes, each once"},
      {"bwd s5 grads=dk,dq,dk", "'grads=dk,dq,dk' in"},
      {"bwd s5 grads=", "grads= with some of"},
      {"bwd s5 grads=dbias", "dbias requires bias"},
      {"bwd s5 grads=dsinks", "dsinks requires sinks"},
      {"bwd s5 alibi grads=dq,dbias", "dbias requires bias"},
      {"bwd s5 bf16 grad=fp16", "dq, dk and dv must be bf16, as q, or fp32 (got fp16)"},
      {"bwd fwd s5", "conflicts with"},
      {"bwd b2 h2 s5 alibi alibi_slopes_strides=2,1 grads=dalibi_slopes",
       "dalibi_slopes must have a batch dimension, as alibi_slopes has"},
  };
  for (const auto& [line, sentence] : kWrong)
    test::expect_refused([&line = line] { (void)parse_problem(line); }, sentence);
}

TEST(GradientProblem, AForwardHasNoneOfItsFields) {
  const auto refused = [](const std::function<void(Problem&)>& spoil) {
    Problem p = parse_problem("fwd s5 d8");
    spoil(p);
    EXPECT_THROW(validate(p), Error);
  };
  refused([](Problem& p) { p.gradients.dq = true; });
  refused([](Problem& p) { p.dlse = true; });
  refused([](Problem& p) { p.deterministic = true; });
  refused([](Problem& p) { p.grad_dtype = DType::f16; });
  Problem p = parse_problem("bwd s5 d8");
  p.want_lse = true;
  EXPECT_THROW(validate(p), Error);
  p = parse_problem("bwd s5 d8");
  p.gradients = {};
  EXPECT_THROW(validate(p), Error);
}

struct Refused {
  const char* name;
  const char* line;
  std::function<void(Inputs&)> spoil;
  ErrorCode code;
  const char* sentence;
};
constexpr const char* kAll =
    "bwd b2 h4/2 s5x6 d8/12 fp16 bias=fp32:1hqk alibi sinks dlse grads=dq,dk,dv,dbias,dsinks,dalibi_slopes";
const Refused kRefused[] = {
    {"LseMissing", kAll, [](Inputs& in) { in.tensors.lse = {}; }, ErrorCode::bad_shape, "lse must be given"},
    {"OutMissing", kAll, [](Inputs& in) { in.tensors.out = {}; }, ErrorCode::bad_shape, "out must be given"},
    {"DoutMissing", kAll, [](Inputs& in) { in.tensors.dout = {}; }, ErrorCode::bad_shape, "dout must be given"},
    {"DoutShape", kAll, [](Inputs& in) { in.tensors.dout.shape[3] = 11; }, ErrorCode::bad_shape,
     "the head dim of dout must be 12, as in v (got shape [2, 4, 5, 11])"},
    {"DoutDtype", kAll, [](Inputs& in) { in.tensors.dout.dtype = DType::bf16; }, ErrorCode::bad_dtype,
     "dout must be fp16, as out (got bf16)"},
    {"DlseDtype", kAll, [](Inputs& in) { in.tensors.dlse.dtype = DType::f16; }, ErrorCode::bad_dtype,
     "dlse must be fp32 (got fp16)"},
    {"DqShape", kAll, [](Inputs& in) { in.tensors.dq.shape[2] = 4; }, ErrorCode::bad_shape,
     "the sequence length of dq must be 5, as in q (got shape [2, 4, 4, 8])"},
    {"DkStride", kAll, [](Inputs& in) { in.tensors.dk.stride[3] = 2; }, ErrorCode::bad_stride,
     "the last dimension of dk must have stride 1 (got 2)"},
    {"DvDtype", kAll, [](Inputs& in) { in.tensors.dv.dtype = DType::bf16; }, ErrorCode::bad_dtype,
     "dv must be fp16, as q, or fp32 (got bf16)"},
    {"DtypesDiffer", kAll, [](Inputs& in) { in.tensors.dv.dtype = DType::f32; }, ErrorCode::bad_dtype,
     "dv must be fp16, as dq (got fp32)"},
    {"DbiasShape", kAll, [](Inputs& in) { in.tensors.dbias.shape[1] = 1; }, ErrorCode::bad_shape,
     "dbias must have shape [1, 4, 5, 6], as bias (got [1, 1, 5, 6])"},
    {"DbiasAlone", kAll, [](Inputs& in) { in.tensors.bias = {}; }, ErrorCode::bad_value, "dbias requires bias"},
    {"SlopesRank", kAll,
     [](Inputs& in) { in.tensors.dalibi_slopes = Tensor(in.tensors.dalibi_slopes.data, DType::f32, {2, 4}); },
     ErrorCode::bad_shape, "dalibi_slopes must have shape [4], as alibi_slopes (got [2, 4])"},
    {"DqIsQ", kAll, [](Inputs& in) { in.tensors.dq.data = const_cast<void*>(in.tensors.q.data); }, ErrorCode::bad_value,
     "dq must not share memory with q"},
    {"DqIsOut", "bwd h2 s5 d8", [](Inputs& in) { in.tensors.dq.data = in.tensors.out.data; }, ErrorCode::bad_value,
     "dq must not share memory with out"},
    {"DqIsDv", "bwd h2 s5 d8", [](Inputs& in) { in.tensors.dv.data = in.tensors.dq.data; }, ErrorCode::bad_value,
     "dv must not share memory with dq"},
    {"DsinksIsLse", kAll, [](Inputs& in) { in.tensors.dsinks.data = in.tensors.lse.data; }, ErrorCode::bad_value,
     "dsinks must not share memory with lse"},
    {"OverlapsItself", kAll, [](Inputs& in) { in.tensors.dq.stride[1] = 0; }, ErrorCode::bad_stride,
     "an output must not overlap itself"},
    {"NothingAsked", "bwd h2 s5 d8", [](Inputs& in) { in.tensors.dq = in.tensors.dk = in.tensors.dv = {}; },
     ErrorCode::bad_value, "at least one of dq, dk, dv, dbias, dsinks and dalibi_slopes must be given"},
};

class RefusedGradients : public testing::TestWithParam<Refused> {};
TEST_P(RefusedGradients, SaysSoAndWritesNothing) {
  const Refused& r = GetParam();
  Inputs in = check::make_inputs(parse_problem(r.line));
  in.poison_outputs();
  std::vector<check::Buffer> before;
  for (const check::Buffer& b : in.buffers) before.push_back(b.copy());
  r.spoil(in);
  in.implementation = "reference";
  test::expect_refused([&] { in.attend(); }, r.sentence, r.code);
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(before[i].bytes() == 0 || std::memcmp(before[i].data(), in.buffers[i].data(), before[i].bytes()) == 0)
        << i;
}
INSTANTIATE_TEST_SUITE_P(Arguments, RefusedGradients, testing::ValuesIn(kRefused),
                         [](const auto& test) { return test.param.name; });

TEST(GradientArguments, AnOutputMayShareNothingButInputsMay) {
  Inputs in = check::make_inputs(parse_problem("bwd h2 s5 d8"));
  in.tensors.dout = in.tensors.out;  // read twice
  in.implementation = "reference";
  EXPECT_NO_THROW(in.attend());
}

TEST(GradientArguments, EachCallSaysWhichItIs) {
  const Inputs in = check::make_inputs(parse_problem("bwd h2 s5 d8"));
  EXPECT_NE(
      test::sentence_of([&] { attention(in.tensors); }).find("attention does not accept dout; attention_backward does"),
      std::string::npos);
  Tensors without = in.tensors;
  without.dout = {};
  EXPECT_NE(test::sentence_of([&] { attention_backward(without); }).find("dout must be given"), std::string::npos);
  EXPECT_NE(
      test::sentence_of([&] { attention(without); }).find("attention does not accept dq; attention_backward does"),
      std::string::npos);
}

TEST(GradientArguments, OptionsOfAForwardAloneAreRefused) {
  const Inputs in = check::make_inputs(parse_problem("bwd h2 s5 d8"));
  const auto refused = [&](const Attention& options) {
    return test::sentence_of([&] { attention_backward(in.tensors, options); });
  };
  EXPECT_EQ(refused({.accumulation = Accumulation::fast}), "attention_backward does not support accumulation");
  EXPECT_EQ(refused({.batch_invariant = true}), "attention_backward does not support batch_invariant");
  EXPECT_EQ(refused({.unified_max = 0.0f}), "attention_backward does not support unified_max");
}

// Each role in exactly the operators that its row says.
TEST(GradientRoles, EachOperatorHasItsOwn) {
  const auto names = [](const char* line, auto which) {
    const Problem p = parse_problem(line);
    std::string all;
    for (const RoleRow& row : kRoleTable)
      if (uses(p, row) && which(row, p.op)) all += std::string(all.empty() ? "" : " ") + row.name;
    return all;
  };
  EXPECT_EQ(names("fwd s5 d8 lse", writes), "out lse");
  EXPECT_EQ(names("bwd s5 d8", writes), "dq dk dv");
  EXPECT_EQ(names("bwd s5 d8", reads), "q k v out lse dout");
  EXPECT_EQ(names("bwd s5 d8 dlse sinks grads=dsinks", reads), "q k v out sinks lse dout dlse");
  EXPECT_EQ(names("merge n2 s5 d8 lse", writes), "out lse");
}

}  // namespace
}  // namespace onepass
