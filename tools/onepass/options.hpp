// Options of the tool's commands, by CLI11. Its headers take 8 seconds to compile: options.cpp and command_line.cpp
// alone read them.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace onepass::cli {

// An option of a command. Each method returns the option, so that they chain.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option group(const std::string& name) const;  // the heading in the help
  Option type_name(const std::string& name) const;
  Option required() const;
  Option one_of(std::vector<std::string> names) const;
  Option range(int least, int most) const;
  Option range(double least, double most) const;
  Option bytes() const;  // a number with a unit: KiB is 1024
  Option delimiter(char between) const;
  Option shows_default() const;  // the variable's value, in the help
  Option default_text(const std::string& text) const;
  Option needs(Option other) const;
  Option excludes(Option other) const;
  Option check(std::function<std::string(const std::string& word)> wrong) const;  // a sentence, or ""

 private:
  CLI::Option* option_;
};

// A command of the tool, or the tool itself. A handle: it is copied.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}
  Command subcommand(const std::string& name, const std::string& help) const;
  void on_run(std::function<void()> run) const;
  // Sets `to`. T: the types that options.cpp instantiates.
  template <class T>
  Option option(const std::string& name, T& to, const std::string& help) const;
  Option option(const std::string& name, std::function<void(const std::string& word)> take,
                const std::string& help) const;
  // An option whose word may be left out; `take` then gets "".
  Option optional_word(const std::string& name, std::function<void(const std::string& word)> take,
                       const std::string& help) const;
  Option flag(const std::string& name, bool& to, const std::string& help) const;
  bool subcommand_given() const;
  std::string first_option_given() const;  // its name, or ""

 private:
  CLI::App* app_;
};

// End the tool: with a status other than 0, or with an error that names a missing option.
[[noreturn]] void exit_with(int status);
[[noreturn]] void option_is_missing(const std::string& name);

}  // namespace onepass::cli
