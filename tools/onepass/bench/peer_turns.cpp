#include "tools/onepass/bench/peer_turns.hpp"

#include "base/text.hpp"

namespace onepass::bench {
namespace {

std::string reason_in(const nlohmann::json& answer) {
  return answer.contains("refused") ? "refused: " + answer["refused"].get<std::string>()
                                    : answer.value("missing", "no answer");
}

}  // namespace

PeerTurns::PeerTurns(const std::string& peer, const Problem& problem, PeerProcess* process)
    : line_(to_string(problem)), process_(process), result_{peer, "", 0, false, 0} {
  const nlohmann::json answer = ask(0);
  result_.runs = answer.contains("median_s");
  result_.note = result_.runs ? answer.value("note", "") : reason_in(answer);
}

void PeerTurns::collect(double seconds) {
  const nlohmann::json answer = ask(seconds);
  if (answer.contains("median_s")) {
    sample_.seconds.push_back(answer["median_s"].get<double>());
    result_.extra_bytes = answer.value("extra_bytes", 0.0);
  } else {
    result_.runs = false;
    result_.note = reason_in(answer);
  }
}

PeerResult PeerTurns::result() const {
  PeerResult r = result_;
  r.median_s = sample_.median();
  return r;
}

nlohmann::json PeerTurns::ask(double seconds) const {
  if (!process_) return {{"missing", "no peer process"}};
  return process_->ask(text(result_.name, " 1 ", seconds, " ", line_));
}

}  // namespace onepass::bench
