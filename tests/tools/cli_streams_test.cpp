// Streams that are closed, full or without a reader: a sentence where one can be said, and the documented exit status.
#include "tools/cli.hpp"

namespace onepass::test {
namespace {

constexpr const char* kNoReader[] = {"2>&-", "2>/dev/full"};
constexpr const char* kNoWriter[] = {">&-", ">/dev/full"};

std::string run_words(const Folder& folder) {
  std::string words = "$onepass run";
  for (const std::string& word : Tensors().write(folder)) words += " " + quoted(word);
  return words + " --out " + quoted(folder("o.npy")) + " --lse " + quoted(folder("l.npy")) + " ";
}

void expect_sentence(const Result& r, const std::string& words) {
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.err.substr(0, 9), "onepass: ") << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  EXPECT_NE(r.err.find(words), r.err.npos) << r.err;
}

TEST(CliStreams, StderrThatCannotBeWrittenChangesNothing) {
  const Folder folder;
  const std::string run = run_words(folder);
  ASSERT_EQ(shell(run).status, 0);
  const std::string out = folder.read("o.npy"), lse = folder.read("l.npy");
  for (const std::string nowhere : kNoReader) {
    EXPECT_EQ(shell("$onepass explain nope " + nowhere).status, 2) << nowhere;
    EXPECT_EQ(shell("$onepass fly " + nowhere).status, 2) << nowhere;
    EXPECT_EQ(shell("$onepass explain s4 >&- " + nowhere).status, 2) << nowhere;
    std::filesystem::remove(folder("o.npy"));
    std::filesystem::remove(folder("l.npy"));
    EXPECT_EQ(shell(run + "--progress " + nowhere).status, 0) << nowhere;
    EXPECT_EQ(folder.read("o.npy"), out) << nowhere;
    EXPECT_EQ(folder.read("l.npy"), lse) << nowhere;
  }
}

TEST(CliStreams, ProgressThatCannotBeWrittenChangesNothing) {  // after a second it speaks
  const Result r = shell(std::string("$onepass check '") + kSecondsOfWork +
                         "' --implementation reference --distribution normal --threads 1 "
                         "--progress 2>/dev/full");
  EXPECT_EQ(r.status, 0);
  EXPECT_NE(r.out.find("  right  "), r.out.npos) << r.out;
}

TEST(CliStreams, StdoutThatCannotBeWrittenIsAnError) {
  for (const std::string nowhere : kNoWriter) {
    for (const char* command : {"explain s4", "explain s4 --json", "info", "info --json", "--help", "--version",
                                "ladder --n 64 --d 8", "check 's4 d8' --implementation reference"}) {
      SCOPED_TRACE(std::string(command) + " " + nowhere);
      expect_sentence(shell(std::string("$onepass ") + command + " " + nowhere),
                      nowhere == ">&-" ? "cannot write to standard output: Bad file descriptor"
                                       : "cannot write to standard output: No space left on device");
    }
  }
}

TEST(CliStreams, WhoCannotBeToldGetsNoFiles) {
  const Folder folder;
  const std::string run = run_words(folder);
  folder.write("o.npy", "old");
  const auto before = folder.names();
  for (const std::string nowhere : kNoWriter) {
    for (const char* form : {"", "--json "}) {
      expect_sentence(shell(run + form + nowhere), "cannot write to standard output");
      EXPECT_EQ(folder.names(), before);
      EXPECT_EQ(folder.read("o.npy"), "old");
    }
  }
}

TEST(CliStreams, FilesNeverTakeTheDescriptorsOfClosedStreams) {
  const Folder folder;
  const std::string run = run_words(folder);
  ASSERT_EQ(shell(run).status, 0);
  const std::string out = folder.read("o.npy"), lse = folder.read("l.npy");
  for (const char* closed : {"<&-", "2>&-", "<&- 2>&-"}) {
    std::filesystem::remove(folder("o.npy"));
    const Result r = shell(run + "--progress " + closed);
    EXPECT_EQ(r.status, 0) << closed;
    EXPECT_EQ(r.out.substr(0, 5), "fwd b") << closed;
    EXPECT_EQ(folder.read("o.npy"), out) << closed;
    EXPECT_EQ(folder.read("l.npy"), lse) << closed;
  }
  const auto before = folder.names();
  EXPECT_EQ(shell(run + "<&- >&- 2>&-").status, 2);
  EXPECT_EQ(folder.names(), before);
  EXPECT_EQ(folder.read("o.npy"), out);
}

TEST(CliStreams, BenchKeepsWhatItHasMeasured) {
  const Folder folder;
  const std::string bench = "$onepass bench --problem 's8 d8' --rounds 1 --seconds 0.001 --json ";
  expect_sentence(shell(bench + quoted(folder("b.json")) + " >/dev/full"), "cannot write to standard output: No space");
  EXPECT_EQ(folder.read("b.json").substr(0, 2), "[\n");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"b.json"});
  folder.write("b.json", "old");
  // The limit is 512 or 1024 bytes, as the shell counts; two cells take more.
  const Result r = shell("ulimit -f 1; " + bench + quoted(folder("b.json")) + " --problem 's9 d8' --problem 's7 d8'");
  EXPECT_EQ(r.status, 2);
  EXPECT_NE(r.err.find("cannot write " + folder("b.json") + ": File too large"), r.err.npos) << r.err;
  EXPECT_EQ(folder.names(), std::vector<std::string>{"b.json"});
}

TEST(CliStreams, AFullDiskLeavesTheOldFile) {
  const Folder folder;
  const std::string run = run_words(folder);
  folder.write("o.npy", "old");
  const auto before = folder.names();
  expect_sentence(shell("ulimit -f 1; " + run), "cannot write " + folder("o.npy") + ": File too large");
  EXPECT_EQ(folder.names(), before);
  EXPECT_EQ(folder.read("o.npy"), "old");
}

}  // namespace
}  // namespace onepass::test
