#include "tools/onepass/command_line.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "onepass/error.hpp"
#include "onepass/version.hpp"
#include "problem/grammar/foreign_words.hpp"
#include "tools/onepass/command.hpp"
#include "tools/onepass/streams.hpp"

namespace onepass::cli {
namespace {

// One line, whatever the names in a damaged file hold.
int fail(std::string sentence) {
  constexpr std::size_t kMax = 4000;
  if (sentence.size() > kMax) sentence = sentence.substr(0, kMax) + "..";
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  std::replace_if(sentence.begin(), sentence.end(), is_control, ' ');
  say("onepass: " + sentence + "\n");
  return kError;
}

// The arguments that stand for another library's options: "--causal", "--mask causal".
std::string hint_of(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::string_view word = argv[i];
    const bool value = i > 1 && std::string_view(argv[i - 1]) == "--mask";
    if (word.starts_with("--mask="))
      word.remove_prefix(7);
    else if (word.starts_with("--"))
      word = word.substr(2, word.find('=') - 2);
    else if (!value)
      continue;
    std::string name(word);
    std::replace(name.begin(), name.end(), '-', '_');
    const std::string theirs = foreign_word(name, Dialect::command);
    if (!theirs.empty()) return "; " + theirs;
  }
  return "";
}

int run(int argc, char** argv) {
  CLI::App app{"Exact attention in one pass.", "onepass"};
  app.set_version_flag("--version", fmt::format("onepass {}", version()));
  app.footer("Exit status: 0 success; 1 check found a wrong result; 2 an error (one sentence on stderr).");
  const Command tool(app);
  add_info(tool);
  add_run(tool);
  add_append(tool);
  add_check(tool);
  add_explain(tool);
  add_ladder(tool);
  add_bench(tool);
  add_prebuild(tool);
  add_tune(tool);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) return fail("a command is missing (see onepass --help)");
  } catch (const CLI::RuntimeError& e) {  // how a command asks for an exit status
    return e.get_exit_code();
  } catch (const CLI::Success& e) {  // --help, --version
    std::ostringstream printed;
    const int status = app.exit(e, printed, printed);
    std::fputs(printed.str().c_str(), stdout);
    return status;
  } catch (const CLI::ParseError& e) {
    return fail(std::string(e.what()) + hint_of(argc, argv) + " (see onepass --help)");
  }
  return 0;
}

}  // namespace

int command_line(int argc, char** argv) {
  try {
    guard_process();
    const int status = run(argc, argv);
    flush_output();
    return status;
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::system_error& e) {  // what fmt::print throws
    return fail(std::ferror(stdout) ? "cannot write to standard output: " + e.code().message() : e.what());
  } catch (const std::exception& e) {
    return fail(e.what());
  }
}

}  // namespace onepass::cli
