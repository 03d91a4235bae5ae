// Writing to a pipe that may have lost its reader, without changing what the process does about SIGPIPE elsewhere.
#pragma once
#include <cerrno>
#include <ctime>

#include <signal.h>

namespace onepass {

// While it lives, writing to a pipe without a reader is an error in this thread, not a signal.
class WithoutSigpipe {
 public:
  WithoutSigpipe() noexcept {
    sigset_t already;
    sigpending(&already);
    pending_ = sigismember(&already, SIGPIPE) == 1;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const int kept = errno;
    const timespec now{};
    while (!pending_ && sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = kept;
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool pending_;  // one that is not ours
};

}  // namespace onepass
