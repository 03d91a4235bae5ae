// The decoding family's table: every row compiles, and to the code that was meant, for the devices that take it. Needs
// NVRTC, not a GPU; what compiles is skipped where it is missing.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "cuda/attention/host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/decode/decode.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/host/pretended.hpp"
#include "cuda/mla/mla.hpp"
#include "cuda/target.hpp"
#include "problem/implementation.hpp"
#include "problem/problem.hpp"
#include "sm80_cases.hpp"

namespace onepass {
namespace {

using DecodeCase = Sm80Case;
class Decoding : public testing::TestWithParam<DecodeCase> {};

TEST_P(Decoding, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const auto& [device, line] = GetParam();
  const Problem p = parse_problem(std::string(line) + " cuda");
  const bool hopper = std::string(device.arch) == kHopper.arch;
  const auto few = decode::select_config(p, device.shared_bytes, hopper);
  const decode::DecodeConfig config =
      few ? *few : decode::select_config(p, device.shared_bytes, hopper, decode::Rows::any_fp8).value();
  const ForwardFeatures features = cuda::features_of(p);
  EXPECT_LE(decode::layout_of(features, config).total, device.shared_bytes);
  const cuda::KernelProgram program = decode::program_of(features, config, device.arch, decode::mods_of(p));
  cuda::CodeGate gate = sm80_gate(p, config);
  if (p.entropy && (p.dtype == DType::f32 || p.kv_dtype)) gate.spilled = 32;  // two loads a tile at most
  if (p.precision == Precision::tf32) gate.spilled = 128;  // around a segment's loop over keys, none in it
  // Prompts beside e4m3 keys, 32 of them at d128: up to four loads a block of rows or a tile.
  if (!few && config.row_tiles == 2 && config.block_n == 32) gate.spilled = 32;
  // The number of blocks of rows, read again for each; of three warpgroups more, also between blocks, and a load a
  // tile.
  if (config.wgmma()) gate.spilled = config.warps == decode::kMaxPromptWarps ? 32 : 8;
  gate.threads = config.all_threads();
  if (config.wgmma()) gate.instructions = {"HGMMA", "LDGSTS"};
  const std::string said = cuda::wrong_code(cuda::compile(program), gate);
  // The weights that dropout keeps lie in a stack frame, which no other config has.
  if (p.dropout_p > 0 && said.find(" 0 bytes spill stores, 0 bytes spill loads") != said.npos) return;
  EXPECT_EQ(said, "");
}

// A case of each kind of kernel. The other suites run in ./dev test all: every head dim with one row tile and with
// the most that fit, and the features spread over the devices.
INSTANTIATE_TEST_SUITE_P(
    Table, Decoding,
    testing::Values(
        DecodeCase{
            kHopper,
            "fwd b4 h32/8 s4x8192 d128 bf16 kv=paged:16 seqused mask_mod={doc[k_index] == batch || k_index < 64} "
            "buffer=doc:int32:8192"},
        DecodeCase{kHopper, "fwd b1 h16/2 s1x8192 d512 bf16"},
        DecodeCase{kHopper, "fwd b4 h32/8 s4x8192 d128 bf16 kv=paged:16 seqused causal_bottom_right sinks entropy"},
        DecodeCase{kHopper, "fwd b4 h32/8 s1x8192 d128 bf16 kv=paged:16 seqused batch_invariant"},
        DecodeCase{
            kHopper,
            "fwd h32/8 d128 bf16 varlen=1,8000 seqused=900,8192 kv=paged:16 causal_bottom_right window=900:0 sinks "
            "batch_invariant"},
        DecodeCase{kHopper, "fwd b1 h64/2 s1x8192 d128 bf16 kv_dtype=fp8_e4m3 kv=paged:16 seqused softcap=20 alibi"},
        DecodeCase{kAda, "fwd b1 h32/8 s4096x8192 d128 bf16 kv_dtype=fp8_e4m3 kv=paged:16 seqused causal_bottom_right"},
        DecodeCase{
            kBlackwell,
            "fwd b2 h4 s6x67 d128 bf16 strides=q:80000,400,1601;k:80000,400,-1601;v:80000,400,1601;o:80000,400,1601"}));
INSTANTIATE_TEST_SUITE_P(
    MoreFp8, Decoding,
    testing::Values(
        DecodeCase{kA100,
                   "fwd b1 h32/8 s4096x8192 d128 bf16 kv_dtype=fp8_e4m3 kv=paged:16 seqused causal_bottom_right"},
        DecodeCase{kAmpere, "fwd b1 h32/8 s512x8192 d64 fp16 kv_dtype=fp8_e4m3 causal_bottom_right"},
        DecodeCase{kHopper, "fwd b1 h32/8 s512x8192 d128 bf16 kv_dtype=fp8_e4m3 causal_bottom_right entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s4096 d72 bf16 kv_dtype=fp8_e4m3 causal_bottom_right"},
        DecodeCase{kAmpere,
                   "fwd h32/8 d128 bf16 kv_dtype=fp8_e4m3 varlen=1,4000 seqused=900,8192 kv=paged:16 "
                   "causal_bottom_right window=900:0 softcap=20 sinks"},
        DecodeCase{kAda, "fwd b1 h32/8 s512x8192 d256 fp8_e4m3 softcap=20 causal_bottom_right"},
        DecodeCase{kAda, "fwd b4 h32/8 s1x8192 d128 fp8_e4m3 kv=paged:16 seqused v_mean=bhd"},
        DecodeCase{kA100, "fwd b1 h32/8 s4096 d128 fp8_e4m3 bias=bf16:1hqk mask=b1qk"},
        DecodeCase{kA100, "fwd b1 h32/8 s4096 d59 bf16 kv_dtype=fp8_e4m3 causal_bottom_right"},
        DecodeCase{kHopper, "fwd b1 h32/8 s4096 d111 fp8_e4m3 causal_bottom_right"},
        DecodeCase{kAda, "fwd b1 h32/8 s1x4096 d59 bf16 kv_dtype=fp8_e4m3"},
        DecodeCase{kHopper, "fwd b1 h32/8 s4096 d64 fp8_e4m3 score_mod={score + 0.1f * k_index}"},
        DecodeCase{kHopper, "fwd b1 h32/8 s512 d128 fp8_e4m3 mask_mod={k_index / 512 % 4 == head % 4}"},
        DecodeCase{kHopper, "fwd b1 h32/8 s512x8192 d128 fp8_e4m3 tree=16 causal_bottom_right"},
        DecodeCase{kBlackwell, "fwd b1 h32/8 s4096 d128 fp8_e4m3 q_descale=bhn k_descale=bhn v_descale=bhn"}));
INSTANTIATE_TEST_SUITE_P(
    More, Decoding,
    testing::Values(
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d128 bf16 bias=bf16:bhqk mask=b1qk"},
        DecodeCase{kHopper,
                   "fwd b1 h32/8 s1x8192 d128 bf16 score_mod={score + 0.1f * k_index} mask_mod={k_index % 3 != 1}"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d128 bf16 entropy"},
        DecodeCase{kHopper, "fwd h32/8 d128 bf16 varlen=1,1/128,512 causal_bottom_right"},
        DecodeCase{kHopper, "fwd b4 h32/8 s8x8192 d128 bf16 kv=paged:1 seqused causal_bottom_right batch_invariant"},
        DecodeCase{kHopper,
                   "fwd b4 h32/8 s16x8192 d128 bf16 kv=paged:16 seqused tree=8 batch_invariant causal_bottom_right"},
        DecodeCase{kHopper,
                   "fwd h8/2 d128 bf16 varlen=16,3 seqused=900,77 kv=paged:16 causal_bottom_right alibi sinks row_max "
                   "batch_invariant"},
        DecodeCase{kHopper, "fwd b1 h32/8 s2048x8192 d128 bf16 causal_bottom_right batch_invariant"},
        DecodeCase{kHopper, "fwd b1 h32/8 s512x8192 d128 bf16 causal_bottom_right batch_invariant"},
        DecodeCase{kHopper, "fwd b1 h32/8 s8192 d128 bf16 batch_invariant"},
        DecodeCase{kHopper, "fwd b1 h32/8 s8192 d64 fp16 causal_bottom_right batch_invariant"},
        DecodeCase{kHopper, "fwd b4 h32/8 s8x8192 d128 bf16 kv=paged:16 seqused tree=8 causal_bottom_right"},
        DecodeCase{kA100, "fwd b1 h32/8 s4096 d128 fp8_e4m3 q_descale=bhn alibi v_mean=bhd"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d64 bf16"},
        DecodeCase{kHopper, "fwd b4 h32/8 s16x8192 d128 bf16 kv=paged:16 seqused causal_bottom_right alibi"},
        DecodeCase{kHopper, "fwd b1 h32/8 s16x8192 d128 bf16 causal_bottom_right"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d64 fp16 entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s16x8192 d128 bf16 causal_bottom_right alibi row_max entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s8x8192 d128 bf16 causal_bottom_right out=fp32 sinks row_max entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d256 bf16 bias=bf16:bhqk mask=b1qk entropy"},
        DecodeCase{kHopper, "fwd b1 h16/2 s1x8192 d512 bf16 softcap=20 entropy"},
        DecodeCase{kHopper,
                   "fwd h32/8 d64 bf16 varlen=1,16 seqused=900,512 kv=paged:16 tree=64 causal_bottom_right entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d128 bf16 kv_dtype=fp8_e4m3 kv=paged:16 seqused entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s16x8192 d128 fp16 kv_dtype=fp8_e4m3 causal_bottom_right entropy"},
        DecodeCase{kA100, "fwd b1 h64/2 s2x8192 d256 bf16 kv_dtype=fp8_e4m3 alibi entropy"},
        DecodeCase{kHopper, "fwd b4 h32/8 s1x8192 d128 bf16 kv=paged:16 seqused batch_invariant entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s8x8192 d64 fp16 causal_bottom_right batch_invariant sinks row_max entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s2048x8192 d128 bf16 causal_bottom_right batch_invariant entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s2048x8192 d64 bf16 causal_bottom_right batch_invariant alibi entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d256 bf16 batch_invariant out=fp32 entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s8x8192 d128 fp32 causal_bottom_right batch_invariant entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d128 bf16 kv_dtype=fp8_e4m3 seqused batch_invariant entropy"},
        DecodeCase{kA100, "fwd b1 h32/8 s2048x8192 d128 bf16 causal_bottom_right batch_invariant entropy"},
        DecodeCase{kA100, "fwd b1 h32/8 s1x8192 d128 bf16 entropy"},
        DecodeCase{kAmpere, "fwd b1 h32/8 s1x8192 d256 bf16 entropy"},
        DecodeCase{kBlackwell, "fwd b1 h32/8 s16x8192 d128 fp16 entropy"},
        DecodeCase{kHopper, "fwd b1 h32/8 s8x8192 d128 bf16 causal_bottom_right out=fp32 sinks"},
        DecodeCase{kHopper, "fwd b1 h64/2 s2x8192 d256 bf16 alibi"},
        DecodeCase{kA100, "fwd b1 h16/2 s1x8192 d320 bf16 alibi"},
        DecodeCase{kA100, "fwd b4 h32/8 s1x8192 d128 fp16 kv_dtype=fp8_e4m3 kv=paged:16 seqused"},
        DecodeCase{kAmpere, "fwd b1 h32/8 s1x8192 d256 bf16"}, DecodeCase{kHopper, "fwd b1 h64/1 s1x8192 d64 fp16"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d128 bf16"},
        DecodeCase{kHopper, "fwd b1 h32/8 s4x8192 d128 bf16 causal_bottom_right"},
        DecodeCase{kHopper, "fwd b1 h32/8 s16x8192 d128 bf16 causal_bottom_right alibi"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d128 bf16 softcap=20 sinks window=1000:0"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d256 bf16"},
        DecodeCase{kHopper,
                   "fwd b1 h32/8 s8x8192 d64 bf16 mask_mod={tiles[head, k_index / 128] != 0} buffer=tiles:int32:32x64"},
        DecodeCase{kHopper, "fwd b1 h32/8 s16x8192 d256 bf16 mask_mod={k_index / 512 % 4 == q_index % 4}"},
        DecodeCase{kHopper,
                   "fwd b1 h32/8 s8x8192 d128 bf16 mask_mod={k_index / 512 % 4 == q_index % 4} batch_invariant"},
        DecodeCase{kHopper, "fwd b1 h32/8 s2048x8192 d128 bf16 mask_mod={k_index < q_index * 4} batch_invariant"},
        DecodeCase{kHopper,
                   "fwd b1 h32/8 s8x8192 d128 bf16 kv_dtype=fp8_e4m3 mask_mod={k_index / 512 % 4 == head % 4}"},
        DecodeCase{kHopper,
                   "fwd b1 h32/8 s1x8192 d128 bf16 kv_dtype=fp8_e4m3 mask_mod={k_index / 512 % 4 == head % 4}"},
        DecodeCase{kHopper,
                   "fwd b4 h32/8 s4x8192 d64 bf16 kv_dtype=fp8_e4m3 kv=paged:16 seqused k_descale=bhn v_descale=bhn "
                   "mask_mod={doc[k_index] == batch || k_index < 64} buffer=doc:int32:8192"},
        DecodeCase{kHopper,
                   "fwd b1 h64/2 s1x8192 d256 bf16 kv_dtype=fp8_e4m3 mask_mod={k_index / 512 % 4 == head % 4}"},
        DecodeCase{kHopper,
                   "fwd b1 h32/8 s8x8192 d128 bf16 kv_dtype=fp8_e4m3 mask_mod={k_index / 512 % 4 == head % 4} "
                   "batch_invariant"},
        DecodeCase{kA100,
                   "fwd b1 h32/8 s4x8192 d128 fp16 kv_dtype=fp8_e4m3 mask_mod={k_index / 512 % 4 == head % 4} alibi"},
        DecodeCase{kA100, "fwd b1 h32/8 s4x8192 d128 fp32 mask_mod={abs(k_index - 4096) < 512}"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d192/128 bf16 dropout=0.1"},
        DecodeCase{kHopper, "fwd b1 h32/8 s4x8192 d128 bf16 dropout=0.1 dropout_seed"},
        DecodeCase{kHopper, "fwd b4 h32/8 s1x8192 d128 bf16 kv=paged:16 seqused"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d128 bf16 kv_dtype=fp8_e4m3 seqused k_descale=bhn v_descale=bhn"},
        DecodeCase{kHopper, "fwd b1 h32/8 s16x8192 d128 fp16 kv_dtype=fp8_e4m3 causal_bottom_right"},
        DecodeCase{kHopper, "fwd b1 h32/8 s4x8192 d64 bf16 kv_dtype=fp8_e4m3 kv=paged:1 out=fp32 unified_max=3"},
        DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d128 bf16 unified_max=3 recomputed lse"},
        DecodeCase{kHopper, "fwd b1 h32/8 s4x8192 d128 bf16 causal_bottom_right row_max"},
        DecodeCase{kHopper, "fwd b1 h64/2 s2x8192 d256 bf16 kv_dtype=fp8_e4m3 alibi"},
        DecodeCase{kHopper, "fwd h32/8 d64 bf16 varlen=1,16 seqused=900,512 kv=paged:16 tree=64 causal_bottom_right"},
        DecodeCase{kHopper, "fwd b1 h32/8 s16x8192 d256 bf16 tree=16 causal_bottom_right alibi softcap=20"},
        DecodeCase{kHopper, "fwd b1 h32/8 s16x8192 d128 fp32 tree=16 causal_bottom_right sinks"},
        DecodeCase{kHopper, "fwd b1 h32/8 s2048x8192 d256 bf16 causal_bottom_right batch_invariant alibi"},
        DecodeCase{kHopper,
                   "fwd h32/8 varlen=1,2048 seqused=900,8192 d64 bf16 causal_bottom_right batch_invariant "
                   "kv=paged:16 window=900:0 softcap=20 sinks"},
        DecodeCase{kHopper,
                   "fwd h32/8 varlen=1,2048 seqused=900,8192 d128 bf16 causal_bottom_right batch_invariant "
                   "kv=paged:16 window=900:0 softcap=20 alibi sinks out=fp32 row_max"},
        DecodeCase{kHopper,
                   "fwd h32/8 varlen=1,2048 seqused=900,8192 d128 fp16 causal_bottom_right batch_invariant "
                   "kv=paged:16 tree=16"},
        DecodeCase{kHopper,
                   "fwd h32/8 varlen=1,2048 seqused=900,8192 d128 bf16 causal_bottom_right batch_invariant "
                   "kv=paged:16 window=900:0 softcap=20 alibi sinks"},
        DecodeCase{kHopper,
                   "fwd h32/8 varlen=1,2048 seqused=900,8192 d128 bf16 causal_bottom_right batch_invariant "
                   "kv=paged:16 softcap=20 out=fp32 row_max"},
        DecodeCase{kHopper, "fwd b4 h32/8 s1x8192 d256 bf16 kv=paged:16 seqused softcap=20 sinks batch_invariant"},
        DecodeCase{kHopper, "fwd b4 h32/8 s1x8192 d128 fp32 kv=paged:16 seqused batch_invariant"},
        DecodeCase{kHopper, "fwd b4 h32/8 s1x8192 d128 fp32 precision=tf32 kv=paged:16 seqused batch_invariant"},
        DecodeCase{kA100, "fwd b1 h32/8 s2048x8192 d64 fp32 precision=tf32 causal_bottom_right batch_invariant"},
        DecodeCase{kHopper,
                   "fwd b4 h32/8 s4x8192 d128 bf16 kv_dtype=fp8_e4m3 kv=paged:16 seqused softcap=20 batch_invariant"},
        DecodeCase{kA100, "fwd h32/8 varlen=1,2048/900,8192 d96/80 fp16 causal_bottom_right batch_invariant out=fp32"},
        DecodeCase{kAmpere, "fwd b1 h32/8 s2048x8192 d128 bf16 causal_bottom_right batch_invariant"},
        DecodeCase{kHopper, "fwd b1 h32/8 s2048x8192 d128 fp32 causal_bottom_right batch_invariant"},
        DecodeCase{kHopper, "fwd b1 h32/8 s2048x8192 d128 bf16 bias=bf16:1hqk mask=b1qk batch_invariant"},
        DecodeCase{kHopper,
                   "fwd b1 h32/8 s8x8192 d128 bf16 kv_dtype=fp8_e4m3 kv=paged:16 seqused tree=8 causal_bottom_right"},
        DecodeCase{kA100, "fwd b1 h32/8 s1x8192 d128 bf16"}, DecodeCase{kA100, "fwd b1 h32/8 s16x8192 d256 bf16 sinks"},
        DecodeCase{kAmpere, "fwd b1 h32/8 s1x8192 d128 bf16 window=99:0"},
        DecodeCase{kHopper, "fwd b4 h64/2 s2x8192 d512/300 bf16 kv=paged:16 seqused batch_invariant dropout=0.1"},
        DecodeCase{kHopper, "fwd h16/2 d512 fp16 varlen=1,1/128,512 causal_bottom_right softcap=20 unified_max=3"},
        DecodeCase{kBlackwell, "fwd b1 h32/8 s16x8192 d128 fp16"}));

INSTANTIATE_TEST_SUITE_P(Table32, Decoding,
                         testing::Values(DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d64 fp32"},
                                         DecodeCase{kHopper, "fwd b1 h32/8 s16x8192 d64 fp32 softcap=20 sinks"},
                                         DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d128 fp32"},
                                         DecodeCase{kHopper,
                                                    "fwd b1 h32/8 s16x8192 d128 fp32 causal_bottom_right alibi"},
                                         DecodeCase{kHopper, "fwd b1 h32/8 s1x8192 d256 fp32"},
                                         DecodeCase{kHopper, "fwd b1 h32/8 s16x8192 d64 fp32 softcap=20 entropy"},
                                         DecodeCase{kA100, "fwd b1 h32/8 s1x8192 d128 fp32 entropy"},
                                         DecodeCase{kHopper, "fwd b1 h16/2 s1x8192 d512 fp32 entropy"},
                                         DecodeCase{kHopper, "fwd b1 h32/8 s8x8192 d200/256 fp32 mask=b1qk"},
                                         DecodeCase{kHopper, "fwd b1 h16/2 s1x8192 d512 fp32 mask=b1qk"},
                                         DecodeCase{kA100, "fwd b1 h32/8 s1x8192 d128 fp32 dropout=0.1"},
                                         DecodeCase{kAmpere, "fwd b1 h32/8 s1x8192 d128 fp32"}));

TEST(EvenDecoding, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  for (const auto& [line, hopper] :
       {std::pair{"fwd b1 h32/8 s1x8192 d128 bf16 cuda", false},
        {"fwd b1 h32/8 s1x8192 d128 bf16 cuda", true},  // few tokens: shared tiles and copying warps
        {"fwd b1 h32/8 s1x8192 d128 fp16 softcap=20 sinks kv=paged:16 cuda", true},
        {"fwd b1 h32/8 s4x8192 d64 fp16 sinks kv=paged:16 cuda", false},
        {"fwd b1 h32/8 s1x8192 d256 fp32 cuda", false},
        {"fwd b1 h32/8 s1x8192 d128 bf16 entropy cuda", false},
        {"fwd b1 h32/8 s4x8192 d64 fp16 sinks kv=paged:16 entropy cuda", false}}) {
    const Problem p = parse_problem(line);
    decode::DecodeConfig config = decode::select_config(p, kHopper.shared_bytes, hopper).value();
    EXPECT_EQ(config.copy_warps != 0, hopper) << line;
    ASSERT_TRUE(config.even = decode::may_be_even(p, decode::sharing_of(p, config))) << line;
    const cuda::KernelProgram program = decode::program_of(cuda::features_of(p), config, kHopper.arch);
    cuda::CodeGate gate = sm80_gate(p, config);
    gate.threads = config.all_threads();
    EXPECT_EQ(cuda::wrong_code(cuda::compile(program), gate), "") << line;
  }
}

class LatentDecoding : public testing::TestWithParam<const char*> {};

TEST_P(LatentDecoding, CompilesToTheCodeThatWasMeant) {
  std::string why;
  if (!cuda::nvrtc(&why)) GTEST_SKIP() << why;
  const Problem p = parse_problem(std::string(GetParam()) + " v_in_k cuda");
  const decode::MlaConfig config = decode::select_mla(p).value();
  const cuda::KernelProgram program = decode::mla_program(cuda::features_of(p), config);
  const char* const loads = config.gathers() ? "LDGSTS" : "UTMALDG";
  EXPECT_EQ(cuda::wrong_code(cuda::compile(program), {decode::kMlaThreads, {"HGMMA", loads}}), "");
  const cuda::KernelProgram merge = decode::mla_merge_program(cuda::features_of(p), config, false);
  EXPECT_EQ(cuda::wrong_code(cuda::compile(merge), {2 * decode::kMlaMergeThreads, {}}), "");
}

INSTANTIATE_TEST_SUITE_P(
    Features, LatentDecoding,
    testing::Values(
        "fwd b64 h128/1 s1x4096 d576/512 bf16",
        "fwd b4 h128/1 s4x8192 d576/512 bf16 causal_bottom_right out=fp32 softcap=20 sinks lse",
        "fwd b4 h16/1 s4x8192 d576/512 fp16 causal_bottom_right kv=paged:64 seqused window=1000:0",
        "fwd b4 h16/1 s1x8192 d576/512 fp16 kv=paged:1 seqused scale=-0.1 batch_invariant",
        "fwd b4 h16/1 s8x8192 d576/512 bf16 kv=paged:64 seqused tree=8 causal_bottom_right",
        "fwd b4 h16/1 s8x8192 d576/512 fp16 kv=paged:1 seqused tree=64 causal_bottom_right softcap=20 sinks",
        "fwd b4 h16/1 s1x8192 d576/512 fp16 softcap=40 seqused batch_invariant window=500:0 sinks out=fp32"));

TEST(DecodingTable, RefusesWhatItCannotReadOfAnFp8Cache) {
  const auto refusal = [](const char* line) { return decode::select_config(parse_problem(line), 232448).refusal(); };
  EXPECT_EQ(refusal("fwd h8/2 s1x900 d60/59 fp16 kv_dtype=fp8_e4m3 cuda"),
            "with fp8_e4m3 k and v, rows of v must be 4-byte aligned (alignment is 1)");
  EXPECT_EQ(refusal("fwd h8/2 s1x900 d64 fp32 kv_dtype=fp8_e4m3 cuda"),
            "with an FP8 cache, q must be fp16 or bf16 (got fp32)");
  EXPECT_EQ(refusal("fwd h8/2 s1x900 d64 bf16 kv_dtype=fp8_e4m3 v_mean=bhd cuda"), "does not support v_mean");
}

TEST(LatentDecodingTable, RefusesWithASentence) {
  const auto refusal = [](const std::string& line) {
    return decode::select_mla(parse_problem(line + " cuda")).refusal();
  };
  EXPECT_NE(refusal("h8/1 s1x900 d64 bf16 v_in_k").find("576/512"), std::string::npos);
  EXPECT_NE(refusal("h8/1 s1x900 d576/512 bf16").find("requires v to be a view of k (the first 512 columns"),
            std::string::npos);
  EXPECT_NE(refusal("h8/1 s1x900 d576/512 fp32 v_in_k").find("q is fp32"), std::string::npos);
  EXPECT_NE(refusal("h8/1 s1x900 d576/512 bf16 v_in_k alibi").find("does not support ALiBi slopes"), std::string::npos);
  EXPECT_NE(refusal("h8/1 s1x900 d576/512 bf16 v_in_k align=k:8")
                .find("TMA needs k to start at a multiple of 16 bytes (alignment is 8)"),
            std::string::npos);
  EXPECT_NE(refusal("h8/1 d576/512 bf16 v_in_k varlen=1,2/30,40").find("does not support packed sequences"),
            std::string::npos);
}

TEST(DecodingTable, EveryHeadDimFitsTheDevices) {
  for (const Generation& device : {kHopper, kA100, kAmpere}) {
    for (int qk = 1; qk <= 512; qk += 15) {
      for (int v = 1; v <= 512; v += 15) {
        for (const char* rows : {"h4/1 s1x100 bf16", "h4/1 s16x256 bf16", "h4/1 s1x100 fp32", "h4/1 s16x256 fp32"}) {
          const std::string line = std::string("b1 ") + rows + " cuda d" + std::to_string(qk) + "/" + std::to_string(v);
          const Problem p = parse_problem(line);
          const auto c = decode::select_config(p, device.shared_bytes);
          if (!c) {  // for the prefill kernels
            EXPECT_GT(std::max(qk, v), p.dtype == DType::f32 ? 128 : 256)
                << device.arch << " " << line << ": " << c.refusal();
            EXPECT_TRUE(decode::rows_of(p) > 16 || device.shared_bytes < kA100.shared_bytes)
                << line << ": " << c.refusal();
            continue;
          }
          EXPECT_LE(decode::layout_of(cuda::features_of(p), *c).total, device.shared_bytes)
              << device.arch << " " << line;
          EXPECT_GE(c->block_m(), decode::rows_of(p)) << device.arch << " " << line;
        }
      }
    }
  }
}

// A long batch has 262144 blocks of 64 rows, with up to 4096 tiles each.
TEST(DecodingTable, CountsABlockOfRowsOnceAndNotItsTiles) {
  const auto select = [](const char* line) {
    return decode::select_config(parse_problem(line), kAda.shared_bytes, false, decode::Rows::any_fp8);
  };
  const auto config = select("fwd b4 h32/8 s131072 d128 fp8_e4m3 alibi cuda");
  ASSERT_TRUE(config) << config.refusal();
  EXPECT_EQ(config->rows, 64);
  EXPECT_EQ(config->block_n, 32);
  const std::string refusal = select("fwd b1 h2/1 s400000000x64 d16 fp8_e4m3 cuda").refusal();
  EXPECT_NE(refusal.find("rows per K/V head must be at most 536870911 (got 800000000)"), std::string::npos) << refusal;
}

// Tensors of no query heads have no element to read: slopes, scales of q.
TEST(DecodingTable, CallsWithoutQueryHeadsLaunchNothing) {
  const cuda::PretendedDevice pretended(cuda::typical_device("sm_90"));
  for (const auto& [row, line] : {std::pair{&decode::kImplementation, "b2 h0/1 s1x5 d64 bf16 alibi lse cuda"},
                                  {&decode::kFp8Implementation, "b2 h0/1 s5 d64 fp8_e4m3 q_descale=bhn lse cuda"},
                                  {&decode::kMlaImplementation, "b2 h0/1 s1x5 d576/512 bf16 v_in_k lse cuda"}}) {
    const Decision decision = decide(*row, parse_problem(line));
    ASSERT_TRUE(decision) << line << ": " << decision.refusal;
    EXPECT_EQ(decision.state->workspace_bytes, 0u) << line;
  }
}

TEST(DecodingTable, RefusesWithASentence) {
  const auto refusal = [](const std::string& line, int shared_bytes) {
    return decode::select_config(parse_problem(line + " cuda"), shared_bytes).refusal();
  };
  EXPECT_NE(refusal("b1 h32/8 s17x900 d64 bf16", 232448).find("at most 64 (got 68)"), std::string::npos);
  EXPECT_NE(refusal("b1 h32/8 s16x200 d64 bf16", 232448).find("at least 4 x rows per K/V head"), std::string::npos);
  EXPECT_NE(refusal("b1 h1 s1x9 d576/512 bf16 kv_dtype=fp8_e4m3", 232448).find("576/512"), std::string::npos);
  EXPECT_NE(refusal("b1 h2/1 s32x900 d512 fp32", 232448).find("at most 32 (got 64)"), std::string::npos);
  EXPECT_NE(refusal("b1 h1 s1x9 d512 fp32", 101376).find("head dims 512/512 do not fit 101376 bytes"),
            std::string::npos);
  EXPECT_NE(refusal("b1 h1 s1x9 d256 bf16", 16384).find("16384 bytes"), std::string::npos);
}

}  // namespace
}  // namespace onepass
