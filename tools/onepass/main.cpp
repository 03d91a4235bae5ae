// onepass: exact attention from the command line.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "command.hpp"
#include "onepass/error.hpp"
#include "streams.hpp"

namespace {

// One line, whatever the names in a damaged file hold.
int fail(std::string sentence) {
  constexpr std::size_t kMax = 4000;
  if (sentence.size() > kMax) sentence = sentence.substr(0, kMax) + "..";
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  std::replace_if(sentence.begin(), sentence.end(), is_control, ' ');
  onepass::cli::say("onepass: " + sentence + "\n");
  return onepass::cli::kError;
}

int run(int argc, char** argv) {
  CLI::App app{"Exact attention in one pass.", "onepass"};
  app.set_version_flag("--version", "onepass " ONEPASS_VERSION);
  app.footer("Exit status: 0 done, 1 a check found a wrong result, 2 an error (one sentence on stderr).");
  onepass::cli::add_info(app);
  onepass::cli::add_run(app);
  onepass::cli::add_append(app);
  onepass::cli::add_check(app);
  onepass::cli::add_explain(app);
  onepass::cli::add_ladder(app);
  onepass::cli::add_bench(app);
  onepass::cli::add_prebuild(app);
  onepass::cli::add_tune(app);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) return fail("a command is expected (see onepass --help)");
  } catch (const CLI::RuntimeError& e) {  // how a command asks for an exit status
    return e.get_exit_code();
  } catch (const CLI::Success& e) {  // --help, --version
    std::ostringstream printed;
    const int status = app.exit(e, printed, printed);
    std::fputs(printed.str().c_str(), stdout);
    return status;
  } catch (const CLI::ParseError& e) {
    return fail(std::string(e.what()) + " (see onepass --help)");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    onepass::cli::guard_process();
    const int status = run(argc, argv);
    onepass::cli::flush_output();
    return status;
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::system_error& e) {  // what fmt::print throws
    return fail(std::ferror(stdout) ? "cannot write to standard output: " + e.code().message() : e.what());
  } catch (const std::exception& e) {
    return fail(e.what());
  }
}
