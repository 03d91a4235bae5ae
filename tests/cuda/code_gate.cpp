#include "code_gate.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>

#include <gtest/gtest.h>
#include <unistd.h>

#include "onepass/error.hpp"

namespace onepass::cuda {
namespace {

namespace fs = std::filesystem;

std::string disassembled(const std::string& bytes) {
  std::string path = (fs::temp_directory_path() / "onepass-cubin-XXXXXX").string();
  const int fd = mkstemp(path.data());
  if (fd < 0) return "";
  close(fd);
  std::ofstream(path, std::ios::binary) << bytes;
  std::string sass;
  if (std::FILE* pipe = popen(text("'", ONEPASS_NVDISASM, "' -c '", path, "'").c_str(), "r")) {
    std::array<char, 65536> part;
    while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe)) sass.append(part.data(), n);
    pclose(pipe);
  }
  fs::remove(path);
  return sass;
}

// ` UTMALDG.4D ...`: a mnemonic stands behind a blank and before a dot or a blank.
int count(const std::string& sass, const std::string& instruction) {
  int found = 0;
  for (std::size_t at = sass.find(" " + instruction); at != sass.npos; at = sass.find(" " + instruction, at + 1)) {
    const char after = sass[at + 1 + instruction.size()];
    found += after == '.' || after == ' ';
  }
  return found;
}
bool has(const std::string& sass, const std::string& instruction) { return count(sass, instruction) > 0; }

void skip_instructions() {
  if (!testing::Test::IsSkipped())
    GTEST_SKIP() << "nvdisasm is not installed, so that no instruction was looked at: ./dev build all installs it";
}

}  // namespace

bool can_disassemble() { return *ONEPASS_NVDISASM != '\0'; }

std::string wrong_code(const Cubin& cubin, const CodeGate& gate) {
  const std::string& log = cubin.log;
  std::smatch frame;
  if (!gate.calls &&
      (!std::regex_search(log, frame, std::regex("(\\d+) bytes stack frame, (\\d+) bytes spill stores")) ||
       std::max(std::stoi(frame[1].str()), std::stoi(frame[2].str())) > gate.spilled))
    return "there is a stack or a spill:\n" + log;
  // C7510 to C7514, C7515, C7520: ptxas waits after every wgmma, or ignores setmaxnreg.
  for (const char* serialised : {"instructions are serialized", "C7515", "C7520"}) {
    if (log.find(serialised) != log.npos) return "wgmma is serialised:\n" + log;
  }
  std::smatch used;
  if (!std::regex_search(log, used, std::regex("Used (\\d+) registers"))) return "ptxas reports no registers:\n" + log;
  const int most = std::min(255, 65536 / gate.threads / 8 * 8);
  if (std::stoi(used[1]) > most) return text(used[1].str(), " registers of ", most);
  if (!can_disassemble()) return skip_instructions(), "";
  const std::string sass = disassembled(cubin.bytes);
  if (!has(sass, "EXIT")) return "nvdisasm cannot read the cubin";
  // ptxas counts the bytes of a kernel and of what it calls as one: with a call, its own words are counted here.
  const std::string own = gate.calls ? sass.substr(0, sass.find(" CALL.")) : sass;
  for (const char* local : {"LDL", "STL"}) {
    const int words = count(own, local);
    if (gate.calls ? 4 * words > gate.spilled : gate.spilled == 0 && words > 0)
      return text("local memory is touched: ", words, " ", local);
  }
  for (const std::string& wanted : gate.instructions) {
    if (!has(sass, wanted)) return text("there is no ", wanted);
  }
  return "";
}

}  // namespace onepass::cuda
