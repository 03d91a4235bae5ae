// A signal ends the tool at once and says so to the waiting process; no unfinished file is left.
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/cli.hpp"

namespace onepass::test {
namespace {

constexpr int kSignals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU};

// The tool as a child of this process; every signal has its default action in it but `ignored`.
class Child {
 public:
  Child(std::vector<std::string> arguments, const std::string& out, int ignored = 0) {
    arguments.insert(arguments.begin(), ONEPASS_CLI);
    std::vector<char*> words;
    for (std::string& a : arguments) words.push_back(a.data());
    words.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    for (int number : kSignals) std::signal(number, SIG_DFL);
    std::signal(SIGPIPE, SIG_DFL);
    if (ignored) std::signal(ignored, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
    ::dup2(::open((out + ".err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDERR_FILENO);
    ::execv(words[0], words.data());
    std::_Exit(127);
  }
  void send(int number) const { ::kill(pid_, number); }
  int wait() const {  // as waitpid says it
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }

 private:
  pid_t pid_ = 0;
};

void wait_until(const std::function<bool()>& holds) {  // or a minute has gone
  for (int i = 0; i < 6000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// A run that has written o.npy's partial file and waits for a reader of the LSE's pipe.
struct WaitingRun {
  explicit WaitingRun(int ignored = 0) {
    words = Tensors().write(folder);
    words.insert(words.begin(), "run");
    words.insert(words.end(), {"--out", folder("o.npy"), "--lse", folder("pipe")});
    ::mkfifo(folder("pipe").c_str(), 0666);
    before = folder.names();
    child.emplace(words, streams("out"), ignored);
    wait_until([&] { return folder.names() != before; });
    partial = folder.names() != before && !std::filesystem::exists(folder("o.npy"));
  }
  Folder folder, streams;
  std::vector<std::string> words, before;
  std::optional<Child> child;
  bool partial = false;
};

TEST(CliSignals, LeaveNoPartialFile) {
  for (int number : kSignals) {
    const WaitingRun run;
    ASSERT_TRUE(run.partial);
    run.child->send(number);
    const int status = run.child->wait();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << number << ": " << status;
    EXPECT_EQ(run.folder.names(), run.before) << number;
    EXPECT_EQ(run.streams.read("out"), "") << number;
  }
}

TEST(CliSignals, WhatTheCallerIgnoresStaysIgnored) {  // nohup
  const WaitingRun run(SIGHUP);
  ASSERT_TRUE(run.partial);
  run.child->send(SIGHUP);
  const std::string lse = run.folder.read("pipe");  // lets it go on
  EXPECT_EQ(run.child->wait(), 0);
  EXPECT_EQ(lse.substr(1, 5), "NUMPY");
  EXPECT_EQ(run.folder.read("o.npy").substr(1, 5), "NUMPY");
}

TEST(CliSignals, EndALongComputationAtOnce) {
  const Folder streams;
  const Child child({"check", "h8 s20000 d64", "--implementation", "reference", "--progress"}, streams("out"));
  wait_until([&] { return !streams.read("out.err").empty(); });  // it computes
  child.send(SIGINT);
  const int status = child.wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
}

// In a shell whose children meet SIGPIPE as `disposition` says, "default" or "ignore"; descriptor 9 is a pipe that
// without a reader, as after `| head -1`.
Result shell_with_pipe(const std::string& disposition, const std::string& command) {
  const Folder streams;
  const std::string path = streams("pipe");
  ::mkfifo(path.c_str(), 0666);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  const int writer = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ::dup2(writer, 9);
  ::close(writer);
  ::close(reader);
  const Result r =
      shell("env --" + disposition + "-signal=PIPE sh -c " + quoted("onepass=" + quoted(ONEPASS_CLI) + "; " + command));
  ::close(9);
  return r;
}

TEST(CliSignals, APipeWithoutAReaderEndsItQuietly) {
  const Folder folder;
  std::string run = "$onepass run --out " + quoted(folder("o.npy"));
  for (const std::string& word : Tensors().write(folder)) run += " " + quoted(word);
  const auto before = folder.names();
  for (const std::string& command : {std::string("$onepass explain s4"), run, run + " --progress"}) {
    const Result quiet = shell_with_pipe("default", command + " >&9; echo $?");
    EXPECT_EQ(quiet.out, std::to_string(128 + SIGPIPE) + "\n");  // as shells say it
    EXPECT_EQ(quiet.err, "");
    const Result told = shell_with_pipe("ignore", command + " >&9");
    EXPECT_EQ(told.status, 2);
    EXPECT_EQ(told.err, "onepass: cannot write to standard output: Broken pipe\n");
    EXPECT_EQ(folder.names(), before);
  }
  // One on stderr does not take the result along.
  EXPECT_EQ(shell_with_pipe("default", "$onepass explain nope 2>&9; echo $?").out, "2\n");
}

}  // namespace
}  // namespace onepass::test
