// `onepass ladder`: from softmax to FlashDecoding++, every rung run, metered and compared with the oracle.
#include "base/text.hpp"
#include "ladder/table.hpp"

#include <optional>

#include <fmt/format.h>

#include "tools/onepass/command.hpp"
#include "tools/onepass/progress.hpp"

namespace onepass::cli {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 40;

struct Flags {
  std::int64_t n = 1024, d = 64;
  std::optional<std::uint64_t> sram, fast;
  std::string dtype = "fp32";
  bool causal = false, paper = false, fp8 = false, json = false, progress = false;
};

nlohmann::ordered_json counts_json(const ladder::Counts& c) {
  return {{"matmul_flops", c.matmul_flops},
          {"pointwise_flops", c.pointwise_flops},
          {"exponentials", c.exponentials},
          {"flops", c.flops()},
          {"bytes_read", c.bytes_read},
          {"bytes_written", c.bytes_written},
          {"bytes", c.bytes()}};
}

std::int64_t bytes_of(const std::optional<std::uint64_t>& given, std::int64_t otherwise) {
  if (!given) return otherwise;
  if (*given > kMaxBytes) {
    throw Error(ErrorCode::bad_value, text("the fast memory must be at most ", kMaxBytes, " bytes (got ", *given, ")"));
  }
  return static_cast<std::int64_t>(*given);
}

void table(const Flags& f) {
  const std::int64_t sram = bytes_of(f.sram, 100 * 1024);
  Progress progress("climbing the ladder", f.progress);
  ladder::MeasureOptions options{f.causal, dtype_from_name(f.dtype),
                                 [&](Index done, Index all) { progress.at(done, all); }};
  const std::vector<ladder::Row> rows = ladder::measure(f.n, f.d, sram, options);
  if (!f.json) {
    fmt::print("one head, n = {}, d = {}, {}{}, fast memory {} bytes\n\n{}", f.n, f.d, f.dtype,
               f.causal ? ", causal" : "", sram, ladder::table_text(rows));
    return;
  }
  nlohmann::ordered_json j{{"n", f.n}, {"d", f.d}, {"dtype", f.dtype}, {"causal", f.causal}, {"sram_bytes", sram}};
  for (const ladder::Row& r : rows) {
    nlohmann::ordered_json item{{"group", r.group}, {"rung", r.rung}};
    item.update(counts_json(r.counts));
    item.update(
        {{"extra_bytes", r.extra_bytes}, {"fast_bytes", r.fast_bytes}, {"max_error", r.error}, {"note", r.note}});
    j["rungs"].push_back(std::move(item));
  }
  print_json(j);
}

void paper(const Flags& f) {
  Progress progress("metering the paper's row", f.progress);
  ladder::PaperOptions options;
  options.sram_bytes = bytes_of(f.sram, options.sram_bytes);
  options.fast_bytes = bytes_of(f.fast, options.fast_bytes);
  options.progress = [&](Index done, Index all) { progress.at(done, all); };
  const std::vector<ladder::PaperRow> rows = ladder::measure_paper(options);
  if (!f.json) {
    fmt::print(
        "GPT-2 medium: N = 1024, d = 64, 16 heads, batch 64, fp16, forward and backward, mask and dropout;\n"
        "M = {} KiB for the tiles, {} KiB to hold everything (docs/derivation.md)\n\n{}",
        options.sram_bytes / 1024, options.fast_bytes / 1024, ladder::paper_text(rows));
    return;
  }
  nlohmann::ordered_json j{{"sram_bytes", options.sram_bytes}, {"fast_bytes", options.fast_bytes}};
  for (const ladder::PaperRow& r : rows) {
    nlohmann::ordered_json item{{"rung", r.name}};
    item.update(counts_json(r.counts));
    item.update({{"extra_bytes_per_head", r.extra_bytes},
                 {"gflops_as_in_paper", r.gflops_as_in_paper()},
                 {"paper_gflops", r.paper_gflops},
                 {"paper_gbytes", r.paper_gbytes}});
    j["rows"].push_back(std::move(item));
  }
  print_json(j);
}

void fp8(const Flags& f) {
  Progress progress("measuring FP8", f.progress);
  const ladder::Fp8Study study = ladder::measure_fp8([&](Index done, Index all) { progress.at(done, all); });
  if (!f.json) {
    fmt::print("{}", ladder::fp8_text(study));
    return;
  }
  nlohmann::ordered_json j;
  for (const auto& r : study.rmse) j["rmse"].push_back({{"how", r.how}, {"here", r.here}, {"in_paper", r.in_paper}});
  for (const auto& l : study.loss) {
    j["loss"].push_back(
        {{"keys", l.keys}, {"narrow", l.narrow}, {"emptied", l.emptied}, {"fp32", l.wide}, {"h100", l.h100}});
  }
  print_json(j);
}

}  // namespace

void add_ladder(const Command& app) {
  const Command command =
      app.subcommand("ladder", "Run every step from softmax to FlashAttention and print what it computes and moves");
  auto flags = std::make_shared<Flags>();
  command.option("--n", flags->n, "Number of queries and of keys").shows_default();
  command.option("--d", flags->d, "Head dim").shows_default();
  command.option("--sram", flags->sram, "Size of the fast memory, in bytes or with a unit; default: 100KiB").bytes();
  command.option("--dtype", flags->dtype, "Dtype of the matrices: fp32, fp16 or bf16").shows_default();
  command.flag("--causal", flags->causal, "Mask the keys after each query");
  const Option paper_flag = command.flag(
      "--paper", flags->paper, "Show the GPT-2 row of the FlashAttention paper beside the paper's numbers instead");
  command
      .option("--fast", flags->fast,
              "With --paper: memory that must hold everything (default: 448KiB); --sram (192KiB) sets the tiles")
      .bytes()
      .needs(paper_flag);
  command.flag("--fp8", flags->fp8, "Show the error of FP8 and the effect of each remedy instead").excludes(paper_flag);
  command.flag("--json", flags->json, "Print JSON");
  add_progress_flag(command, flags->progress);
  command.on_run([flags] { flags->paper ? paper(*flags) : flags->fp8 ? fp8(*flags) : table(*flags); });
}

}  // namespace onepass::cli
