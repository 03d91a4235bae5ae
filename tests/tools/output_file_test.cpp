// Files appear whole or not at all.
#include "tools/onepass/io/output_file.hpp"

#include <memory>

#include "tools/files.hpp"
#include "tools/onepass/io/partial_files.hpp"

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

// In containers process numbers repeat: a file that an earlier process left behind does not matter.
TEST(OutputFile, IsNotHinderedByLeftovers) {
  const Folder folder;
  const std::string leftover = "a.partial-" + std::to_string(::getpid());
  folder.write(leftover, "half");
  io::OutputFile first(folder("a")), second(folder("a"));
  write(first, "first");
  write(second, "second");
  second.commit();
  EXPECT_EQ(folder.read("a"), "second");
  first.commit();
  EXPECT_EQ(folder.read("a"), "first");
  EXPECT_EQ(folder.names(), (Names{"a", leftover}));
  EXPECT_EQ(folder.read(leftover), "half");
}

TEST(OutputFile, MayHaveTheLongestName) {
  const Folder folder;
  const std::string longest(255, 'a');
  io::OutputFile file(folder(longest));
  write(file, "hello");
  file.commit();
  EXPECT_EQ(folder.names(), Names{longest});
  EXPECT_EQ(sentence_of([&] { io::OutputFile(folder(longest + "a")); }),
            "cannot write " + folder(longest + "a") + ": File name too long");
}

// The function that a signal handler calls.
TEST(OutputFile, PartialFilesCanBeRemovedAllAtOnce) {
  const Folder folder;
  folder.write("a", "old");
  {
    io::OutputFile done(folder("b"));
    done.commit();
    io::OutputFile a(folder("a")), c(folder("c"));
    write(a, "new");
    EXPECT_EQ(folder.names().size(), 4u);
    io::remove_partials();
    EXPECT_EQ(folder.names(), (Names{"a", "b"}));
    EXPECT_EQ(sentence_of([&] { a.commit(); }), "cannot write " + folder("a") + ": No such file or directory");
  }
  EXPECT_EQ(folder.read("a"), "old");
  std::vector<std::unique_ptr<io::OutputFile>> many;  // more than the table holds: the rest are files like any other
  for (int i = 0; i < 20; ++i) many.push_back(std::make_unique<io::OutputFile>(folder("m" + std::to_string(i))));
  for (auto& file : many) file->commit();
  EXPECT_EQ(folder.names().size(), 22u);
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
