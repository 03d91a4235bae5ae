#include "cuda/compile/cubin_cache.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include "cuda/compile/sha256.hpp"
#include "cuda/compile/trusted_file.hpp"
#include "cuda/driver/api.hpp"
#include "onepass/error.hpp"

namespace onepass::cuda {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[] = "onepass cubin 2", kEnding[] = ".cubin";

// A text header: magic, key, compiler, sizes of log and cubin, then the SHA-256 of these and the body. The body is the
// log and the cubin.
std::string header(const std::string& key, const std::string& compiler, std::size_t log, std::size_t cubin) {
  return text(kMagic, "\n", key, "\n", compiler, "\n", log, " ", cubin, "\n");
}

struct Entry {
  std::string compiler;
  Cubin cubin;
};

// `why`: what is wrong with it.
std::optional<Entry> parse(const std::string& bytes, const std::string& key, std::string& why) {
  std::istringstream lines(bytes.substr(0, std::min<std::size_t>(bytes.size(), 1024)));
  std::string magic, its_key, compiler, sizes, digest;
  for (std::string* line : {&magic, &its_key, &compiler, &sizes, &digest}) {
    if (std::getline(lines, *line) && !lines.eof()) continue;
    why = "it is truncated or not a kernel";
    return std::nullopt;
  }
  if (magic != kMagic || its_key != key) {
    why = magic != kMagic ? "another version of the library wrote it" : "it holds a different kernel";
    return std::nullopt;
  }
  std::size_t log = 0, cubin = 0;
  std::istringstream(sizes) >> log >> cubin;
  const std::string front = header(key, compiler, log, cubin);
  const std::string body = bytes.substr(static_cast<std::size_t>(lines.tellg()));
  if (!bytes.starts_with(front) || log > body.size() || cubin != body.size() - log ||
      Sha256().add(front).add(body).hex() != digest) {
    why = "it is damaged: its contents do not match its digest";
    return std::nullopt;
  }
  return Entry{compiler, {body.substr(log), body.substr(0, log)}};
}

std::optional<Entry> read_entry(const TrustedDirectory& from, const fs::path& directory, const std::string& key,
                                std::string& why) {
  const auto bytes = from.read(key + kEnding, kMaxCubinBytes, why);
  if (!bytes) return std::nullopt;
  auto entry = parse(*bytes, key, why);
  if (!entry) why = text((directory / (key + kEnding)).string(), " is not used: ", why);
  return entry;
}

}  // namespace

std::string compiler_version() {
  const Nvrtc* api = nvrtc();
  return api ? text(api->major, ".", api->minor) : std::string();
}

fs::path prebuilt_directory() { return from_environment("ONEPASS_PREBUILT"); }

std::optional<Cubin> read_cubin(const fs::path& directory, const std::string& key, const std::string& compiler,
                                std::string* why) {
  std::string unasked;
  std::string& reason = why ? *why : unasked;
  const TrustedDirectory from(directory, reason);
  if (!from) return std::nullopt;
  auto entry = read_entry(from, directory, key, reason);
  if (!entry || (!compiler.empty() && entry->compiler != compiler)) return std::nullopt;
  return std::move(entry->cubin);
}

bool write_cubin(const fs::path& directory, const std::string& key, const std::string& compiler, const Cubin& cubin,
                 std::string* why) {
  std::string unasked;
  std::string& reason = why ? *why : unasked;
  make_directories(directory);
  const TrustedDirectory into(directory, reason);
  if (!into) {
    if (reason.empty()) reason = text(directory.string(), " cannot be created");
    return false;
  }
  const std::string front = header(key, compiler, cubin.log.size(), cubin.bytes.size()), body = cubin.log + cubin.bytes;
  return into.write(key + kEnding, front + Sha256().add(front).add(body).hex() + "\n" + body, reason);
}

CubinDirectory look_through(const fs::path& directory) {
  CubinDirectory found;
  const TrustedDirectory from(directory, found.refusal);
  if (!from) return found;
  std::error_code error;
  std::vector<std::string> keys;
  for (const fs::directory_entry& file : fs::directory_iterator(directory, error)) {
    if (file.path().extension() == kEnding) keys.push_back(file.path().stem().string());
  }
  std::sort(keys.begin(), keys.end());
  for (const std::string& key : keys) {
    std::string why;
    if (read_entry(from, directory, key, why))
      ++found.kernels;
    else if (!why.empty())
      found.refusals.push_back(why);
  }
  return found;
}

Cubin cubin_for(const KernelProgram& program) {
  const std::string key = key_of(program), compiler = compiler_version();
  std::string refusals;
  const auto look = [&](const fs::path& directory, const std::string& made_by) {
    std::string why;
    auto found = directory.empty() ? std::nullopt : read_cubin(directory, key, made_by, &why);
    if (!why.empty()) refusals += "; " + why;
    return found;
  };
  if (auto found = look(prebuilt_directory(), "")) return std::move(*found);
  const fs::path cache = cache_directory();
  if (auto found = look(cache, compiler)) return std::move(*found);
  try {
    Cubin made = compile(program);
    if (!cache.empty()) write_cubin(cache, key, compiler, made);  // not kept is not wrong
    return made;
  } catch (const Error& e) {
    if (refusals.empty() || !compiler.empty()) throw;
    throw Error(e.code(), e.what() + refusals);
  }
}

}  // namespace onepass::cuda
