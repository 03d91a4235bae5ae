#include "tools/onepass/outputs.hpp"
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

std::vector<const RowFile*> OutputFiles::wanted_rows() const {
  std::vector<const RowFile*> wanted;
  for (const RowFile* rows : {&lse, &row_max, &entropy})
    if (rows->wanted) wanted.push_back(rows);
  return wanted;
}

void check_destinations(const OutputFiles& files) {
  check_destination(files.out);
  std::vector<std::pair<const char*, const std::string*>> others{{"--out", &files.out}};
  for (const RowFile* rows : files.wanted_rows()) {
    const auto want = [&](bool condition, const auto&... sentence) {
      if (!condition) throw Error(ErrorCode::bad_value, text(rows->option, sentence...));
    };
    if (is_safetensors(files.out)) {
      want(rows->path.empty(), " must not name a file if --out is a .safetensors file, which then holds the rows");
      continue;
    }
    want(!rows->path.empty(), " needs a file (", rows->option, " FILE.npy) unless --out is a .safetensors file");
    check_destination(rows->path);
    std::error_code none;
    const auto canonical = [&](const std::string& path) { return fs::weakly_canonical(fs::absolute(path), none); };
    for (const auto& [option, path] : others) {
      if (canonical(rows->path) != canonical(*path)) continue;
      throw Error(ErrorCode::bad_value,
                  text(option, " and ", rows->option, " must be different files (both are ", *path, ")"));
    }
    others.emplace_back(rows->option, &rows->path);
  }
}

WrittenOutputs::WrittenOutputs(const OutputFiles& files, const NamedArrays& arrays,
                               const std::function<void(std::size_t)>& on_write)
    : out_(files.out, on_write) {
  if (is_safetensors(files.out)) {
    io::write_safetensors(out_, arrays);
  } else {
    io::write_npy(out_, *arrays[0].second);
    const auto rows = files.wanted_rows();
    for (std::size_t i = 0; i < rows.size(); ++i)
      io::write_npy(rows_.emplace_back(rows[i]->path, on_write), *arrays[i + 1].second);
  }
  out_.finish();
  for (io::OutputFile& rows : rows_) rows.finish();
}

void WrittenOutputs::commit() {
  out_.commit();
  for (io::OutputFile& rows : rows_) rows.commit();
}

}  // namespace onepass::cli
