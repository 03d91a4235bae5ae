#include "tools/onepass/streams.hpp"
#include "base/text.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "onepass/error.hpp"
#include "tools/onepass/io/partial_files.hpp"
#include "tools/onepass/without_sigpipe.hpp"

namespace onepass::cli {
namespace {

constexpr int kEnding[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU, SIGPIPE};

// The default action follows, so that the waiting process learns which signal it was.
extern "C" void end_by(int number) {
  io::remove_partials();
  ::signal(number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  ::raise(number);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::_exit(128 + number);  // the first process of a container is not ended by default actions
}

}  // namespace

void guard_process() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest free descriptor is this one. Its mode is the wrong one on purpose, but on stderr.
    const int mode = stream == 0 ? O_WRONLY : stream == 1 ? O_RDONLY : O_RDWR;
    if (::open("/dev/null", mode) < 0) ::open("/", O_RDONLY | O_DIRECTORY);  // a jail without devices
  }
  ::signal(SIGXFSZ, SIG_IGN);
  struct sigaction action{};
  action.sa_handler = end_by;
  for (int number : kEnding) sigaddset(&action.sa_mask, number);
  for (int number : kEnding) {
    struct sigaction before{};
    // A signal that the caller ignores (nohup) stays ignored.
    if (::sigaction(number, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      ::sigaction(number, &action, nullptr);
  }
}

void say(std::string_view line) noexcept {
  const WithoutSigpipe guard;
  while (!line.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    line.remove_prefix(static_cast<std::size_t>(n));
  }
}

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
  // Where an earlier flush failed, its reason is no longer known.
  throw Error(ErrorCode::bad_file, errno ? text("cannot write to standard output: ", std::strerror(errno))
                                         : "cannot write to standard output");
}

}  // namespace onepass::cli
