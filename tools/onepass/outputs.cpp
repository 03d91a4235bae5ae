#include "outputs.hpp"

#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include <unistd.h>

#include "onepass/error.hpp"
#include "onepass/io/npy.hpp"
#include "onepass/io/safetensors.hpp"

namespace onepass::cli {
namespace {
namespace fs = std::filesystem;

bool is_safetensors(const std::string& path) { return fs::path(path).extension() == ".safetensors"; }

void check_destination(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::bad_file, text("cannot write ", path, ": ", why));
  };
  if (!fs::is_directory(folder)) fail(folder + " is no directory");
  if (fs::is_directory(path)) fail("it is a directory");
  if (!fs::exists(path) && ::access(folder.c_str(), W_OK) != 0) fail(folder + " is not writable");
}

}  // namespace

void check_destinations(const OutputFiles& files) {
  check_destination(files.out);
  if (!files.want_lse) return;
  if (is_safetensors(files.out)) {
    if (files.lse.empty()) return;
    throw Error(ErrorCode::bad_value,
                "--lse takes no file here: with --out FILE.safetensors the LSE is written beside out");
  }
  if (files.lse.empty())
    throw Error(ErrorCode::bad_value, "--lse needs a file, --lse FILE.npy, unless --out is a .safetensors file");
  check_destination(files.lse);
  std::error_code none;
  if (fs::weakly_canonical(fs::absolute(files.lse), none) == fs::weakly_canonical(fs::absolute(files.out), none)) {
    throw Error(ErrorCode::bad_value, text("--out and --lse are the same file, ", files.out));
  }
}

void save(const OutputFiles& files, const io::Array& out, const io::Array* lse, Progress& progress) {
  const auto total = static_cast<std::int64_t>(out.bytes() + (lse ? lse->bytes() : 0));
  std::int64_t done = 0;
  const auto count = [&](std::size_t bytes) { progress.at(done += static_cast<std::int64_t>(bytes), total); };
  io::OutputFile out_file(files.out, count);
  std::optional<io::OutputFile> lse_file;
  if (is_safetensors(files.out)) {
    std::vector<std::pair<std::string, const io::Array*>> arrays{{"out", &out}};
    if (lse) arrays.emplace_back("lse", lse);
    io::write_safetensors(out_file, arrays);
  } else {
    io::write_npy(out_file, out);
    if (lse) io::write_npy(lse_file.emplace(files.lse, count), *lse);
  }
  out_file.commit();
  if (lse_file) lse_file->commit();
}

}  // namespace onepass::cli
