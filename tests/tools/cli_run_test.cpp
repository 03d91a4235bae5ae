// `onepass run`: every kind of file, every option, forward and gradients.
#include <nlohmann/json.hpp>

#include "algebra/numerics.hpp"
#include "cuda/driver/api.hpp"
#include "onepass/attention.hpp"
#include "plan/plan.hpp"
#include "tools/cli.hpp"
#include "tools/onepass/io/npy.hpp"
#include "tools/onepass/io/safetensors.hpp"

namespace onepass::test {
namespace {

using nlohmann::json;

class CliRun : public ::testing::Test {
 protected:
  void SetUp() override {
    folder.write("q.npy", npy(npy_literal("<f4", "2, 4, 5, 8"), bytes_of(t.q)));
    folder.write("k.npy", npy(npy_literal("<f4", "2, 2, 7, 8"), bytes_of(t.k)));
    folder.write("v.npy", npy(npy_literal("<f4", "2, 2, 7, 6"), bytes_of(t.v)));
  }
  Result run(std::vector<std::string> more, std::vector<std::string> first = {}) {
    std::vector<std::string> all{"run", "--implementation", "reference"};
    if (first.empty()) first = {"--q", folder("q.npy"), "--k", folder("k.npy"), "--v", folder("v.npy")};
    all.insert(all.end(), first.begin(), first.end());
    all.insert(all.end(), more.begin(), more.end());
    return onepass(all);
  }
  // The library's result for the same numbers.
  std::vector<float> expected(const Attention& described, std::vector<float>* lse = nullptr,
                              const onepass::Tensors& beside = {}) {
    std::vector<float> out(2 * 4 * 5 * 6);
    onepass::Tensors tensors = beside;
    tensors.q = Tensor(t.q.data(), DType::f32, {2, 4, 5, 8});
    tensors.k = Tensor(t.k.data(), DType::f32, {2, 2, 7, 8});
    tensors.v = Tensor(t.v.data(), DType::f32, {2, 2, 7, 6});
    tensors.out = Tensor(out.data(), DType::f32, {2, 4, 5, 6});
    if (lse) {
      lse->resize(2 * 4 * 5);
      tensors.lse = Tensor(lse->data(), DType::f32, {2, 4, 5});
    }
    attention(tensors, described, {}, "reference");
    return out;
  }
  Tensors t;
  Folder folder;
};

TEST_F(CliRun, NpyToNpy) {
  const Result r = run({"--out", folder("o.npy")});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err, "");  // no progress: no terminal, and it was fast
  EXPECT_EQ(r.out.substr(0, r.out.find('\n')), "fwd b2 h4/2 s5x7 d8/6 fp32");
  EXPECT_NE(r.out.find("\nreference: "), r.out.npos);
  EXPECT_EQ(folder.read("o.npy"), npy(npy_literal("<f4", "2, 4, 5, 6"), bytes_of(expected({}))));
}

TEST_F(CliRun, RowMaximaAloneAndBesideTheLse) {
  std::vector<float> lse, row_max(2 * 4 * 5);
  onepass::Tensors beside;
  beside.row_max = Tensor(row_max.data(), DType::f32, {2, 4, 5});
  expected({}, &lse, beside);
  const std::string maxima = npy(npy_literal("<f4", "2, 4, 5"), bytes_of(row_max));
  ASSERT_EQ(run({"--out", folder("o.npy"), "--row-max", folder("m.npy")}).status, 0);
  EXPECT_EQ(folder.read("m.npy"), maxima);
  const Result r = run({"--out", folder("o.npy"), "--row-max", folder("both.npy"), "--lse", folder("l.npy"), "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("\"row_max\": "), r.out.npos) << r.out;
  EXPECT_EQ(folder.read("both.npy"), maxima);
  EXPECT_EQ(folder.read("l.npy"), npy(npy_literal("<f4", "2, 4, 5"), bytes_of(lse)));
  ASSERT_EQ(run({"--out", folder("o.safetensors"), "--row-max"}).status, 0);
  EXPECT_NE(folder.read("o.safetensors").find("\"row_max\""), std::string::npos);
}

TEST_F(CliRun, Entropies) {
  std::vector<float> entropy(2 * 4 * 5);
  onepass::Tensors beside;
  beside.entropy = Tensor(entropy.data(), DType::f32, {2, 4, 5});
  expected({}, nullptr, beside);
  const std::string file = npy(npy_literal("<f4", "2, 4, 5"), bytes_of(entropy));
  ASSERT_EQ(run({"--out", folder("o.npy"), "--entropy", folder("h.npy")}).status, 0);
  EXPECT_EQ(folder.read("h.npy"), file);
  // A loss of the entropies alone: the forward that the gradients need makes them.
  folder.write("dout.npy", npy(npy_literal("<f4", "2, 4, 5, 6"), std::string(2 * 4 * 5 * 6 * 4, '\0')));
  const Result r = run({"--dout", folder("dout.npy"), "--dentropy", folder("h.npy"), "--out", folder("g.safetensors")});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find(" entropy "), r.out.npos) << r.out;
  EXPECT_NE(r.out.find("dentropy"), r.out.npos) << r.out;
}

TEST_F(CliRun, OnADeviceOrAReasonWhyNot) {
  const auto halves = [](const std::vector<float>& numbers) {
    std::string bytes(2 * numbers.size(), '\0');
    for (std::size_t i = 0; i < numbers.size(); ++i)
      store_element(bytes.data(), DType::f16, static_cast<std::int64_t>(i), numbers[i]);
    return bytes;
  };
  folder.write("q.npy", npy(npy_literal("<f2", "2, 5, 4, 8"), halves(t.q)));  // [batch, seq, heads, dim]
  folder.write("k.npy", npy(npy_literal("<f2", "2, 7, 2, 8"), halves(t.k)));
  folder.write("v.npy", npy(npy_literal("<f2", "2, 7, 2, 8"), halves(t.k)));
  const std::vector<std::string> call = {"run",  "--q",           folder("q.npy"), "--k",           folder("k.npy"),
                                         "--v",  folder("v.npy"), "--out",         folder("o.npy"), "--layout",
                                         "bshd", "--out-dtype",   "fp32"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), call.begin(), call.end());
    return onepass(more);
  };
  ASSERT_EQ(with({}).status, 0);
  const std::string on_cpu = folder.read("o.npy");
  const Result r = with({"--device", "cuda"});
  if (!cuda::driver()) {
    EXPECT_EQ(r.status, 2);
    EXPECT_TRUE(r.err.starts_with("onepass: CUDA is not available: ")) << r.err;
    EXPECT_EQ(folder.read("o.npy"), on_cpu);
    return;
  }
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out.substr(0, r.out.find('\n')), "fwd b2 h4/2 s5x7 d8 fp16 out=fp32 layout=bshd cuda:0");
  const std::string on_device = folder.read("o.npy");
  ASSERT_EQ(on_device.size(), on_cpu.size());
  const std::size_t header = on_cpu.size() - 4 * t.q.size();
  for (std::size_t i = 0; i < t.q.size(); ++i) {
    EXPECT_NEAR(load_element(on_device.data() + header, DType::f32, static_cast<std::int64_t>(i)),
                load_element(on_cpu.data() + header, DType::f32, static_cast<std::int64_t>(i)), 3e-3);
  }
}

TEST_F(CliRun, Expressions) {
  const std::vector<float> table = Tensors::numbers(4, 5);
  folder.write("table.npy", npy(npy_literal("<f4", "4,"), bytes_of(table)));
  const Result r = run({"--out", folder("o.npy"), "--score-mod", "score + t[head]", "--mask-mod", "k_index != q_index",
                        "--buffer", "t=" + folder("table.npy")});
  Attention o;
  o.score_mod = "score + t[head]";
  o.mask_mod = "k_index != q_index";
  const onepass::AttentionTensors beside{.mod_buffers = {{"t", ConstTensor(table.data(), DType::f32, {4})}}};
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(folder.read("o.npy"), npy(npy_literal("<f4", "2, 4, 5, 6"), bytes_of(expected(o, nullptr, beside))));
  EXPECT_NE(run({"--out", folder("p.npy"), "--score-mod", "score", "--buffer", "t"}).err.find("NAME=FILE.npy"),
            r.err.npos);
}

TEST_F(CliRun, EveryOptionReachesTheLibrary) {
  const std::vector<float> bias = Tensors::numbers(5 * 7, 4), slopes = Tensors::numbers(4, 5),
                           sinks = Tensors::numbers(4, 6);
  std::vector<std::uint8_t> mask(7, 1);
  mask[2] = 0;
  folder.write("bias.npy", npy(npy_literal("<f4", "1, 1, 5, 7"), bytes_of(bias)));
  folder.write("mask.npy", npy(npy_literal("|b1", "1, 1, 1, 7"), bytes_of(mask)));
  folder.write("slopes.npy", npy(npy_literal("<f4", "4,"), bytes_of(slopes)));
  folder.write("sinks.npy", npy(npy_literal("<f4", "4,"), bytes_of(sinks)));
  const Result r = run({"--out",          folder("o.npy"),
                        "--lse",          folder("l.npy"),
                        "--bias",         folder("bias.npy"),
                        "--bool-mask",    folder("mask.npy"),
                        "--alibi-slopes", folder("slopes.npy"),
                        "--sinks",        folder("sinks.npy"),
                        "--mask",         "causal_top_left",
                        "--window",       "3:-1",
                        "--scale",        "0.5",
                        "--softcap",      "20",
                        "--dropout",      "0.25",
                        "--seed",         "7",
                        "--threads",      "2"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out.substr(0, r.out.find('\n')),
            "fwd b2 h4/2 s5x7 d8/6 fp32 causal_top_left window=3:-1 scale=0.5 softcap=20 bias=fp32:11qk mask=111k "
            "alibi sinks dropout=0.25 seed=7 lse");
  Attention o;
  o.band = {true, Align::top_left, 3, -1};
  o.scale = 0.5;
  o.softcap = 20;
  o.dropout_p = 0.25;
  o.seed = 7;
  const onepass::AttentionTensors beside{.bias = {bias.data(), DType::f32, {1, 1, 5, 7}},
                                         .bool_mask = {mask.data(), DType::boolean, {1, 1, 1, 7}},
                                         .alibi_slopes = {slopes.data(), DType::f32, {4}},
                                         .sinks = {sinks.data(), DType::f32, {4}}};
  std::vector<float> lse;
  EXPECT_EQ(folder.read("o.npy"), npy(npy_literal("<f4", "2, 4, 5, 6"), bytes_of(expected(o, &lse, beside))));
  EXPECT_EQ(folder.read("l.npy"), npy(npy_literal("<f4", "2, 4, 5"), bytes_of(lse)));
}

TEST_F(CliRun, AnOffsetOfTheDiagonal) {
  const Result r = run({"--out", folder("o.npy"), "--mask", "causal_offset", "--align-offset", "-3"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out.substr(0, r.out.find('\n')), "fwd b2 h4/2 s5x7 d8/6 fp32 causal_offset=-3");
  Attention o;
  o.band = {.causal = true, .align = Align::offset, .offset = -3};
  EXPECT_EQ(folder.read("o.npy"), npy(npy_literal("<f4", "2, 4, 5, 6"), bytes_of(expected(o, nullptr))));
}

TEST_F(CliRun, OptionsWithANegativeValue) {
  EXPECT_EQ(run({"--out", folder("a.npy"), "--window", "-1:0"}).status, 0);
  EXPECT_EQ(run({"--out", folder("b.npy"), "--window=-1:0"}).status, 0);
  EXPECT_EQ(folder.read("a.npy"), folder.read("b.npy"));
  EXPECT_EQ(run({"--out", folder("c.npy"), "--scale", "-0.25"}).status, 0);
  const Result r = onepass({"run", "--q", folder("q.npy"), "--k", folder("k.npy"), "--v", folder("v.npy"), "--out",
                            folder("d.npy"), "--unified-max", "-2.5"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out.substr(0, r.out.find('\n')), "fwd b2 h4/2 s5x7 d8/6 fp32 unified_max=-2.5");
}

TEST_F(CliRun, SafetensorsToSafetensors) {
  const std::string header =
      R"({"l0.q":{"dtype":"F32","shape":[2,4,5,8],"data_offsets":[0,1280]},"l0.k":{"dtype":"F32","shape":[2,2,7,8],"data_offsets":[1280,2176]},)"
      R"("l0.v":{"dtype":"F32","shape":[2,2,7,6],"data_offsets":[2176,2848]},"l1.other":{"dtype":"U8","shape":[1],"data_offsets":[2848,2849]}})";
  folder.write("in.safetensors", safetensors(header, bytes_of(t.q) + bytes_of(t.k) + bytes_of(t.v) + "x"));
  const Result r =
      run({"--out", folder("o.safetensors"), "--lse"}, {"--in", folder("in.safetensors"), "--prefix", "l0."});
  ASSERT_EQ(r.status, 0) << r.err;
  std::vector<float> lse;
  const std::vector<float> out = expected({}, &lse);
  const io::FileSource file(folder("o.safetensors"));
  const io::Safetensors s(file);
  ASSERT_EQ(s.entries().size(), 2u);
  EXPECT_EQ(s.read("out").shape(), (io::Shape{2, 4, 5, 6}));
  EXPECT_EQ(std::memcmp(s.read("out").data(), out.data(), out.size() * 4), 0);
  EXPECT_EQ(s.read("lse").shape(), (io::Shape{2, 4, 5}));
  EXPECT_EQ(std::memcmp(s.read("lse").data(), lse.data(), lse.size() * 4), 0);
}

TEST_F(CliRun, BshdIsTheSameTransposed) {
  const auto transposed = [](const std::vector<float>& x, std::size_t b, std::size_t h, std::size_t s,
                             std::size_t d) {  // [b,h,s,d] -> [b,s,h,d]
    std::vector<float> y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = i % d, token = i / d % s, head = i / d / s % h, batch = i / d / s / h;
      y[((batch * s + token) * h + head) * d + c] = x[i];
    }
    static_cast<void>(b);
    return y;
  };
  folder.write("qt.npy", npy(npy_literal("<f4", "2, 5, 4, 8"), bytes_of(transposed(t.q, 2, 4, 5, 8))));
  folder.write("kt.npy", npy(npy_literal("<f4", "2, 7, 2, 8"), bytes_of(transposed(t.k, 2, 2, 7, 8))));
  folder.write("vt.npy", npy(npy_literal("<f4", "2, 7, 2, 6"), bytes_of(transposed(t.v, 2, 2, 7, 6))));
  const Result r = run({"--out", folder("o.npy"), "--lse", folder("l.npy")},
                       {"--layout", "bshd", "--q", folder("qt.npy"), "--k", folder("kt.npy"), "--v", folder("vt.npy")});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("layout=bshd"), r.out.npos);
  std::vector<float> lse;
  const std::vector<float> out = transposed(expected({}, &lse), 2, 4, 5, 6);
  EXPECT_EQ(folder.read("o.npy"), npy(npy_literal("<f4", "2, 5, 4, 6"), bytes_of(out)));
  EXPECT_EQ(folder.read("l.npy"), npy(npy_literal("<f4", "2, 5, 4"), bytes_of(transposed(lse, 2, 4, 5, 1))));
}

TEST_F(CliRun, SentencesShowTheShapesOfTheFiles) {
  folder.write("kt.npy", npy(npy_literal("<f4", "2, 7, 2, 8"), bytes_of(t.k)));
  folder.write("vt.npy", npy(npy_literal("<f4", "2, 6, 2, 6"), bytes_of(t.v).substr(0, 2 * 6 * 2 * 6 * 4)));
  folder.write("qt.npy", npy(npy_literal("<f4", "2, 5, 4, 8"), bytes_of(t.q)));
  const Result r = run({"--out", folder("o.npy")},
                       {"--layout", "bshd", "--q", folder("qt.npy"), "--k", folder("kt.npy"), "--v", folder("vt.npy")});
  EXPECT_EQ(r.status, 2);
  EXPECT_NE(r.err.find("(got shape [2, 6, 2, 6])"), r.err.npos) << r.err;
}

TEST_F(CliRun, Bf16OfMlDtypes) {
  const auto narrow = [](const std::vector<float>& x) {
    std::vector<bf16> y;
    y.reserve(x.size());
    for (float value : x) y.push_back(from_float<bf16>(value));
    return bytes_of(y);
  };
  folder.write("q16.npy", npy(npy_literal("<V2", "2, 4, 5, 8"), narrow(t.q)));
  folder.write("k16.npy", npy(npy_literal("<V2", "2, 2, 7, 8"), narrow(t.k)));
  folder.write("v16.npy", npy(npy_literal("<V2", "2, 2, 7, 6"), narrow(t.v)));
  const std::vector<std::string> in{"--dtype", "bf16",           "--q", folder("q16.npy"), "--k", folder("k16.npy"),
                                    "--v",     folder("v16.npy")};
  ASSERT_EQ(run({"--out", folder("o.npy")}, in).status, 0);
  EXPECT_EQ(folder.read("o.npy"), npy(npy_literal("<V2", "2, 4, 5, 6"), narrow(expected({}))));
  ASSERT_EQ(run({"--out", folder("o.npy"), "--out-dtype", "fp32"}, in).status, 0);  // and an existing file is replaced
  EXPECT_EQ(folder.read("o.npy"), npy(npy_literal("<f4", "2, 4, 5, 6"), bytes_of(expected({}))));
}

TEST_F(CliRun, PackedSequences) {
  const std::vector<std::int32_t> cu_q{0, 2, 5}, cu_k{0, 4, 7};
  folder.write("q.npy",
               npy(npy_literal("<f4", "5, 4, 8"), bytes_of(std::vector<float>(t.q.begin(), t.q.begin() + 160))));
  folder.write("k.npy",
               npy(npy_literal("<f4", "7, 2, 8"), bytes_of(std::vector<float>(t.k.begin(), t.k.begin() + 112))));
  folder.write("v.npy",
               npy(npy_literal("<f4", "7, 2, 6"), bytes_of(std::vector<float>(t.v.begin(), t.v.begin() + 84))));
  folder.write("cu_q.npy", npy(npy_literal("<i4", "3,"), bytes_of(cu_q)));
  folder.write("cu_k.npy", npy(npy_literal("<i4", "3,"), bytes_of(cu_k)));
  const Result r = run({"--out", folder("o.npy"), "--lse", folder("l.npy"), "--cu-seqlens-q", folder("cu_q.npy"),
                        "--cu-seqlens-k", folder("cu_k.npy")});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out.substr(0, r.out.find('\n')), "fwd b2 h4/2 s3x4 d8/6 fp32 lse varlen=2,3/4,3");
  EXPECT_EQ(io::read_npy(io::FileSource(folder("o.npy"))).shape(), (io::Shape{5, 4, 6}));
  EXPECT_EQ(io::read_npy(io::FileSource(folder("l.npy"))).shape(), (io::Shape{4, 5}));
}

// dout makes it a backward; out and lse are computed on the way, or read from the file.
TEST_F(CliRun, Gradients) {
  const std::vector<float> dout(240, 1.0f);
  folder.write("do.npy", npy(npy_literal("<f4", "2, 4, 5, 6"), bytes_of(dout)));
  Result r = run({"--out", folder("g.safetensors"), "--dout", folder("do.npy"), "--grads", "dq,dv"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out.substr(0, r.out.find('\n')), "bwd b2 h4/2 s5x7 d8/6 fp32 grads=dq,dv");
  const io::FileSource source(folder("g.safetensors"));
  io::Safetensors file(source);
  EXPECT_FALSE(file.has("dk"));
  const io::Array dq = file.read("dq"), dv = file.read("dv");
  EXPECT_EQ(dq.shape(), (io::Shape{2, 4, 5, 8}));
  EXPECT_EQ(dv.shape(), (io::Shape{2, 2, 7, 6}));
  double sum = 0;  // the weights of a row add up to 1
  for (int i = 0; i < 2 * 2 * 7 * 6; ++i) sum += static_cast<double>(static_cast<const float*>(dv.view().data)[i]);
  EXPECT_NEAR(sum, 240, 1e-4);

  // Nothing that is given is left out without a word.
  const std::string none = folder("do.npy"), result = folder("none.safetensors"), done = folder("done.safetensors");
  ASSERT_EQ(run({"--out", done, "--lse"}).status, 0);
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--out", folder("g.npy"), "--dout", none}, "gradients need --out FILE.safetensors"},
      {{"--out", result, "--dout", none, "--grads", "dq,dz"}, "--grads must be a comma-separated list of dq, dk, dv"},
      {{"--out", result, "--dout", none, "--grads", "dbias"}, "--grads asks for dbias, but bias is missing"},
      {{"--out", result, "--dout", none, "--grads", "dq b7 dropout=0.5"},
       "--grads must be a comma-separated list of dq, dk, dv"},
      {{"--out", result, "--dout", none, "--seqused-k", none}, "--seqused-k is not supported with dout"},
      {{"--out", result, "--dout", none, "--v-descale", none}, "--v-descale is not supported with dout"},
      {{"--out", result, "--dout", none, "--out-dtype", "fp16"}, "dq must be fp32, as q (got fp16)"},
      {{"--out", result, "--dout", none, "--in", done, "--unified-max", "1"},
       "--unified-max is not supported with out and lse"},
      {{"--out", result, "--dout", none, "--in", done, "--batch-invariant"},
       "--batch-invariant is not supported with out"},
      {{"--out", result, "--dlse", none}, "--dlse needs dout: give --dout"},
      {{"--out", result, "--grads", "dq"}, "--grads needs dout: give --dout"},
      {{"--out", result, "--deterministic"}, "--deterministic needs dout: give --dout"},
  };
  for (const auto& [arguments, sentence] : wrong) {
    r = run(arguments);
    EXPECT_EQ(r.status, 2) << sentence;
    EXPECT_NE(r.err.find(sentence), r.err.npos) << r.err;
  }
  EXPECT_FALSE(std::filesystem::exists(result));
}

TEST_F(CliRun, Json) {
  const Result r =
      run({"--out", folder("o.npy"), "--lse", folder("l.npy"), "--json", "--repeat", "3", "--threads", "1"});
  const json j = json::parse(r.out);
  EXPECT_EQ(j["problem"], "fwd b2 h4/2 s5x7 d8/6 fp32 lse");
  EXPECT_EQ(j["implementation"], "reference");
  EXPECT_EQ(j["threads"], 1);
  EXPECT_EQ(j["repeat"], 3);
  EXPECT_GT(j["seconds"], 0.0);
  EXPECT_EQ(j["out"], folder("o.npy"));
  EXPECT_EQ(j["lse"], folder("l.npy"));
}

}  // namespace
}  // namespace onepass::test
