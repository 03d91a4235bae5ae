#include "tools/onepass/bench/peer_process.hpp"
#include "base/text.hpp"

#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>

#include "onepass/error.hpp"
#include "tools/onepass/without_sigpipe.hpp"

namespace onepass::bench {

PeerProcess::PeerProcess(const std::string& command) {
  int in[2], out[2];
  if (pipe(in) != 0 || pipe(out) != 0) throw Error(ErrorCode::bad_value, "cannot make a pipe for the peer process");
  pid_ = fork();
  if (pid_ < 0) throw Error(ErrorCode::bad_value, text("cannot start the peer process '", command, "'"));
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    for (int fd : {in[0], in[1], out[0], out[1]}) close(fd);
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    std::_Exit(127);
  }
  close(in[0]);
  close(out[1]);
  to_ = fdopen(in[1], "w");
  from_ = fdopen(out[0], "r");
}

PeerProcess::~PeerProcess() {
  const WithoutSigpipe guard;
  if (to_) std::fclose(to_);  // end of input ends the peer
  if (from_) std::fclose(from_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

nlohmann::json PeerProcess::ask(const std::string& line) {
  const nlohmann::json gone = {{"missing", "the peer process ended"}};
  const WithoutSigpipe guard;  // a peer that died is reported, not fatal
  if (std::fputs((line + "\n").c_str(), to_) < 0 || std::fflush(to_) != 0) return gone;
  char* text = nullptr;
  std::size_t size = 0;
  const ssize_t n = getline(&text, &size, from_);
  const std::string answer = n > 0 ? std::string(text, static_cast<std::size_t>(n)) : std::string();
  std::free(text);
  if (n <= 0) return gone;
  auto json = nlohmann::json::parse(answer, nullptr, false);
  return json.is_object() ? json : nlohmann::json{{"missing", "the peer process answered: " + answer}};
}

}  // namespace onepass::bench
