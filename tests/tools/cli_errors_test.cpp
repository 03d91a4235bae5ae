// Errors of the commands: one sentence on stderr, status 2, no output made or touched.
#include "tools/cli.hpp"

namespace onepass::test {
namespace {

struct Wrong {
  std::vector<std::string> arguments;
  std::string words;
};

void expect_sentence(const Result& r, const Wrong& wrong) {
  EXPECT_EQ(r.status, 2) << wrong.words;
  EXPECT_EQ(r.out, "") << wrong.words;
  EXPECT_EQ(r.err.substr(0, 9), "onepass: ");
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  EXPECT_NE(r.err.find(wrong.words), r.err.npos) << "expected: " << wrong.words << "\nsentence: " << r.err;
}

TEST(CliErrors, Usage) {
  const Wrong table[] = {
      {{}, "a command is missing"},
      {{"fly"}, "fly"},
      {{"info", "--fast"}, "--fast"},
      {{"explain"}, "problem is required"},
      {{"explain", "d64z"}, "cannot read 'd64z'"},
      {{"explain", "h3/2"}, "must be a multiple of"},
      {{"explain", "fwd s8 causal"},
       "(docs/reference/problem.md); causal=True of flash-attn is causal_bottom_right; is_causal=True"},
      {{"explain", "fwd s8 softmax_scale=2"}, "softmax_scale of flash-attn is scale=0.125"},
      {{"run", "--causal"}, "causal=True of flash-attn is --mask causal_bottom_right; is_causal=True of PyTorch is"},
      {{"run", "--mask", "causal", "--out", "o.npy"}, "is_causal=True of PyTorch is --mask causal_top_left"},
      {{"run", "--window-size=3", "--out", "o.npy"}, "window_size of flash-attn is --window LEFT:RIGHT"},
      {{"explain", "\x1b[31mred"}, "cannot read"},
      {{"check", "s4", "--distribution", "none"}, "--distribution"},
      {{"check", "s4", "--implementation", "cpu.none"}, "--implementation must be one of "},
      {{"check", "s4", "--seed", "-1"}, "--seed: must be an integer from 0 to 2^64 - 1 (got '-1')"},
      {{"check", "s4", "--seed", "18446744073709551616"}, "2^64 - 1 (got '18446744073709551616')"},
      {{"run", "--out", "o.npy", "--seed", "1.5"}, "--seed: must be an integer from 0 to 2^64 - 1 (got '1.5')"},
      {{"check", "s4", "--threads", "0"}, "--threads"},
      {{"check", "s4 d576/512 cuda"}, "no implementation accepts \"fwd b1 h1 s4 d576/512 fp32 cuda:0\""},
      {{"check", "b1 s1000000000"}, "of memory; this machine has"},
      {{"check", "s8 varlen="}, "varlen"},
      {{"bench", "--problem", "b1 s1000000000"}, "of memory; this machine has"},
      {{"bench", "--problem", "d64z"}, "cannot read 'd64z'"},
      {{"bench", "--suite", "nowhere"}, "'nowhere'"},
      {{"bench", "--device", "gpu", "--problem", "s4 d8"}, "--device must be cpu, cuda or cuda:N (got 'gpu')"},
      {{"check", "s4 d8", "--target", "sm_89"}, "--target needs a problem on a GPU (got 'sm_89' on a CPU)"},
      {{"bench", "--problem", "s4 d8", "--target", "sm_89"},
       "--target needs a problem on a GPU (got 'sm_89' on a CPU)"},
      {{"bench", "--problem", "s4 d8", "--problem", "s4 d8 cuda", "--target", "sm_89"},
       "--target needs one device (got cpu and cuda:0)"},
      {{"prebuild", "d", "--arch", "sm_70", "--tables"}, "arch must be one of sm_"},
      {{"prebuild", "d", "--arch", "sm_90"}, "nothing to compile"},
      {{"prebuild", "d", "--arch", "sm_90", "--suite", "nowhere"}, "the suite 'nowhere' cannot be read"},
      {{"prebuild", "d", "--arch", "sm_90", "--problem", "b600000000 h1 s1 d64 bf16"}, "no kernel supports \"fwd"},
      {{"ladder", "--n", "0"}, "n must be 1 to 8192"},
      {{"ladder", "--n", "64", "--sram", "1"}, "fast memory of 1 bytes"},
      {{"ladder", "--sram", "lots"}, "--sram"},
      {{"run"}, "--out is required"},
      {{"run", "--out", "o.npy"}, "q is missing: give --q FILE.npy, or --in FILE.safetensors with a tensor 'q'"},
      {{"run", "--out", "nowhere/o.npy"}, "cannot write nowhere/o.npy: nowhere is not a directory"},
      {{"run", "--out", "/dev"}, "cannot write /dev: it is a directory"},
      {{"run", "--out", std::string(256, 'a')}, "aaa: File name too long"},
      {{"run", "--out", "o.npy", "--device", "cuda:-1"}, "cuda:N (got 'cuda:-1')"},
      {{"run", "--out", "o.npy", "--device", "cuda:4294967296"},
       "--device must be cpu, cuda or cuda:N (got 'cuda:4294967296')"},
      {{"run", "--out", "o.npy", "--lse"}, "--lse needs a file"},
      {{"run", "--out", "o.npy", "--lse", "o.npy"}, "--out and --lse must be different files (both are"},
      {{"run", "--out", "o.npy", "--lse", "./o.npy"}, "--out and --lse must be different files (both are"},
      {{"run", "--out", "o.safetensors", "--lse", "l.npy"}, "--lse must not name a file"},
      {{"run", "--out", "o.npy", "--row-max"}, "--row-max needs a file"},
      {{"run", "--out", "o.npy", "--lse", "l.npy", "--row-max", "./l.npy"}, "--lse and --row-max must be different"},
      {{"run", "--out", "o.safetensors", "--row-max", "m.npy"}, "--row-max must not name a file"},
      {{"run", "--out", "o.npy", "--mask", "causal"}, "--mask"},
      {{"run", "--out", "o.npy", "--mask", "causal_offset"},
       "--align-offset and --mask causal_offset (or aligned_offset) must"},
      {{"run", "--out", "o.npy", "--align-offset", "3"},
       "--align-offset and --mask causal_offset (or aligned_offset) must"},
      {{"run", "--out", "o.npy", "--layout", "sbhd"}, "--layout"},
      {{"run", "--out", "o.npy", "--threads", "-3"}, "--threads"},
      {{"run", "--out", "o.npy", "--window", "3"}, "--window must be LEFT:RIGHT in keys, -1 for unbounded (got '3')"},
      {{"run", "--out", "o.npy", "--window", "3:"}, "(got '3:')"},
      {{"run", "--out", "o.npy", "--window", "3:4:5"}, "(got '3:4:5')"},
      {{"run", "--out", "o.npy", "--scale", "big"}, "--scale"},
  };
  for (const Wrong& wrong : table) expect_sentence(onepass(wrong.arguments), wrong);
}

TEST(CliErrors, Run) {
  const Tensors t;
  const Folder folder;
  const std::string q = folder.write("q.npy", npy(npy_literal("<f4", "2, 4, 5, 8"), bytes_of(t.q)));
  const std::string k = folder.write("k.npy", npy(npy_literal("<f4", "2, 2, 7, 8"), bytes_of(t.k)));
  const std::string v = folder.write("v.npy", npy(npy_literal("<f4", "2, 2, 7, 6"), bytes_of(t.v)));
  const std::string flat =
      folder.write("flat.npy", npy(npy_literal("<f4", "896"), bytes_of(t.k) + bytes_of(t.v) + std::string(2016, 'x')));
  const std::string cut = folder.write("cut.npy", npy(npy_literal("<f4", "2, 4, 5, 8"), bytes_of(t.q)).substr(0, 500));
  const std::string fp64 = folder.write("fp64.npy", npy(npy_literal("<f8", "2, 4, 5, 4"), bytes_of(t.q)));
  const std::string fp16 = folder.write("fp16.npy", npy(npy_literal("<f2", "2, 4, 5, 8"), std::string(640, 'x')));
  const std::string rank5 = folder.write("rank5.npy", npy(npy_literal("<f4", "1, 2, 4, 5, 8"), bytes_of(t.q)));
  const std::string wide = folder.write("wide.npy", npy(npy_literal("<f4", "0, 2, 7, 1099511627776"), ""));
  const auto cu = [&](const char* name, std::vector<std::int32_t> sums) {
    return folder.write(name, npy(npy_literal("<i4", std::to_string(sums.size()) + ","), bytes_of(sums)));
  };
  const std::string packed = folder.write("packed.npy", npy(npy_literal("<f4", "5, 8, 8"), bytes_of(t.q)));
  const std::string good_cu = cu("cu.npy", {0, 2, 5});
  const std::string lies = folder.write("lies.safetensors", little_endian(1u << 20, 8) + "{}");
  const std::string odd = folder.write(
      "odd.safetensors", safetensors(R"({"mask":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", "x"));
  const std::string old = folder.write("o.npy", "precious"), out = old;
  const std::vector<std::string> before = folder.names();

  const auto run = [&](std::vector<std::string> more, std::string qq, std::string kk, std::string vv) {
    std::vector<std::string> all{
        "run",   "--implementation", "reference", "--q", qq, "--k", kk, "--v", vv, "--out", out,
        "--lse", folder("l.npy")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto varlen = [&](const std::string& sums) {
    return run({"--cu-seqlens-q", sums, "--cu-seqlens-k", good_cu}, packed, packed, packed);
  };
  const Wrong table[] = {
      {run({}, folder("none.npy"), k, v), "none.npy: No such file or directory"},
      {run({}, folder("."), k, v), "is not a regular file"},
      {run({}, cut, k, v), "cut.npy has 372 bytes of data, but its shape [2, 4, 5, 8] of fp32 needs 1280"},
      {run({}, fp64, k, v), "(got '<f8')"},
      {run({}, fp16, k, v), "k must be fp16, as q, or fp8_e4m3 (got fp32)"},
      {run({}, rank5, k, v), "rank5.npy must have 1 to 4 dimensions (got 5)"},
      {run({}, flat, k, v), "q must have shape [batch, heads_q, seq_q, dim_qk] (got [896])"},
      {run({}, q, v, k), "the head dim of k must be 8, as in q (got shape [2, 2, 7, 6])"},
      {run({}, q, k, wide), "the batch of v must be 2, as in q (got shape [0, 2, 7, 1099511627776])"},
      {run({}, q, q, v), "the number of heads of v must be 4, as in k (got shape [2, 2, 7, 6])"},
      {run({"--layout", "bshd"}, q, k, v), "heads_q (5) must be a multiple of heads_kv (7)"},
      {run({"--bias", q}, q, k, v), "dimension 3 of bias must be 7 or 1 (got shape [2, 4, 5, 8])"},
      {run({"--bool-mask", q}, q, k, v), "bool_mask must be bool (got fp32)"},
      {run({"--sinks", q}, q, k, v), "sinks must have shape"},
      {run({"--dropout", "2"}, q, k, v), "dropout_p must be 0 to 1 (got 2)"},
      {run({"--softcap", "-1"}, q, k, v), "softcap must be 0 (none) or positive (got -1)"},
      {run({"--softcap", "nan"}, q, k, v), "softcap must be 0 (none) or positive (got nan)"},
      {run({"--scale", "inf"}, q, k, v), "scale must be -2.3e38 to 2.3e38 (got inf)"},
      {run({"--window", "-2:0"}, q, k, v), "the window's left side must be -1 (unbounded) to 2^60 (got -2)"},
      {run({"--out-dtype", "bf16"}, q, k, v), "out must be fp32, as q (got bf16)"},
      {run({"--cu-seqlens-q", good_cu}, packed, packed, packed), "cu_seqlens_k must be given"},
      {varlen(cu("cu1.npy", {1, 2, 5})), "cu_seqlens_q[0] must be 0 (got 1)"},
      {varlen(cu("cu2.npy", {0, 4, 2})), "cu_seqlens_q[2] must be at least 4, the entry before it (got 2)"},
      {varlen(cu("cu3.npy", {0, 4, 9})), "cu_seqlens_q[2] must be at most 5, the tokens of q (got 9)"},
      {varlen(cu("cu4.npy", {})), "cu_seqlens_q must have batch + 1 entries (got none)"},
      {varlen(q), "cu_seqlens_q must be int32 (got fp32)"},
      {run({"--in", lies}, q, k, v), "its header claims 1048576 bytes, but 2 follow"},
      {run({"--in", odd}, q, k, v),
       "has a tensor 'mask', which is not an input; inputs are q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, "
       "page_table, tree, bias"},
      {run({"--in", q}, q, k, v), "q.npy: its header claims"},
  };
  for (const Wrong& wrong : table) expect_sentence(onepass(wrong.arguments), wrong);
  for (const char* made : {"cu1.npy", "cu2.npy", "cu3.npy", "cu4.npy"}) std::filesystem::remove(folder(made));
  EXPECT_EQ(folder.names(), before);  // no lse, no partial file
  EXPECT_EQ(folder.read("o.npy"), "precious");
}

TEST(CliErrors, FullDisk) {
  const Tensors t;
  const Folder folder;
  folder.write("q.npy", npy(npy_literal("<f4", "2, 4, 5, 8"), bytes_of(t.q)));
  const Result r = onepass({"run", "--implementation", "reference", "--q", folder("q.npy"), "--k", folder("q.npy"),
                            "--v", folder("q.npy"), "--out", "/dev/full"});
  expect_sentence(r, {{}, "cannot write /dev/full: No space left on device"});
}

}  // namespace
}  // namespace onepass::test
