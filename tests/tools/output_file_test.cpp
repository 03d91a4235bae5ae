// Files appear whole or not at all.
#include "onepass/io/output_file.hpp"

#include "tools/files.hpp"

namespace onepass::test {
namespace {

using Names = std::vector<std::string>;

void write(io::OutputFile& file, const std::string& text) {
  file.write(std::as_bytes(std::span(text.data(), text.size())));
}

TEST(OutputFile, AppearsWithCommit) {
  const Folder folder;
  io::OutputFile file(folder("a"));
  write(file, "hello");
  EXPECT_FALSE(std::filesystem::exists(folder("a")));
  file.commit();
  EXPECT_EQ(folder.read("a"), "hello");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(OutputFile, LeavesNothingWithoutCommit) {
  const Folder folder;
  folder.write("a", "old");
  {
    io::OutputFile file(folder("a"));
    write(file, "hello");
  }
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(OutputFile, FollowsLinks) {
  const Folder folder;
  folder.write("target", "old");
  std::filesystem::create_symlink("target", folder("link"));
  io::OutputFile file(folder("link"));
  write(file, "new");
  file.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder("link")));
  EXPECT_EQ(folder.read("target"), "new");
}

TEST(OutputFile, WritesSpecialFilesDirectly) {
  io::OutputFile file("/dev/null");
  write(file, "hello");
  file.commit();
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(OutputFile, SaysWhyItCannot) {
  const Folder folder;
  EXPECT_EQ(sentence_of([&] { io::OutputFile(folder("none/a")); }),
            "cannot write " + folder("none/a") + ": No such file or directory");
  EXPECT_EQ(sentence_of([&] { io::OutputFile(folder("")); }), "cannot write " + folder("") + ": it is a directory");
  EXPECT_EQ(sentence_of([&] {
              io::OutputFile file("/dev/full");
              write(file, "hello");
            }),
            "cannot write /dev/full: No space left on device");
}

}  // namespace
}  // namespace onepass::test
