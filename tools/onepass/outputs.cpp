#include "outputs.hpp"
#include "base/text.hpp"

#include <filesystem>
#include <utility>
#include <vector>

#include <unistd.h>

#include "onepass/error.hpp"
#include "tools/onepass/io/npy.hpp"
#include "tools/onepass/io/safetensors.hpp"

namespace onepass::cli {
namespace {
namespace fs = std::filesystem;

void check_destination(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::bad_file, text("cannot write ", path, ": ", why));
  };
  std::error_code why, none;
  const fs::file_status status = fs::status(path, why);
  if (!fs::is_directory(folder, none)) fail(folder + " is not a directory");
  if (!fs::status_known(status)) fail(why.message());
  if (fs::is_directory(status)) fail("it is a directory");
  if (!fs::exists(status) && ::access(folder.c_str(), W_OK) != 0) fail(folder + " is not writable");
}

}  // namespace

bool is_safetensors(const std::string& path) { return fs::path(path).extension() == ".safetensors"; }

void check_destinations(const OutputFiles& files) {
  check_destination(files.out);
  if (!files.want_lse) return;
  if (is_safetensors(files.out)) {
    if (files.lse.empty()) return;
    throw Error(ErrorCode::bad_value,
                "--lse must be without a file if --out is a .safetensors file, which then holds the LSE");
  }
  if (files.lse.empty())
    throw Error(ErrorCode::bad_value, "--lse needs a file (--lse FILE.npy) unless --out is a .safetensors file");
  check_destination(files.lse);
  std::error_code none;
  if (fs::weakly_canonical(fs::absolute(files.lse), none) == fs::weakly_canonical(fs::absolute(files.out), none)) {
    throw Error(ErrorCode::bad_value, text("--out and --lse must be different files (both are ", files.out, ")"));
  }
}

WrittenOutputs::WrittenOutputs(const OutputFiles& files, const NamedArrays& arrays,
                               const std::function<void(std::size_t)>& on_write)
    : out_(files.out, on_write) {
  if (is_safetensors(files.out)) {
    io::write_safetensors(out_, arrays);
  } else {
    io::write_npy(out_, *arrays[0].second);
    if (arrays.size() > 1) io::write_npy(lse_.emplace(files.lse, on_write), *arrays[1].second);
  }
  out_.finish();
  if (lse_) lse_->finish();
}

void WrittenOutputs::commit() {
  out_.commit();
  if (lse_) lse_->commit();
}

}  // namespace onepass::cli
