#include "tools/onepass/options.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include <CLI/CLI.hpp>

namespace onepass::cli {

Option Option::group(const std::string& name) const { return Option(option_->group(name)); }
Option Option::type_name(const std::string& name) const { return Option(option_->type_name(name)); }
Option Option::required() const { return Option(option_->required()); }
Option Option::one_of(std::vector<std::string> names) const {
  return Option(option_->check(CLI::IsMember(std::move(names))));
}
Option Option::range(int least, int most) const { return Option(option_->check(CLI::Range(least, most))); }
Option Option::range(double least, double most) const { return Option(option_->check(CLI::Range(least, most))); }
Option Option::bytes() const { return Option(option_->transform(CLI::AsSizeValue(false))); }
Option Option::delimiter(char between) const { return Option(option_->delimiter(between)); }
Option Option::shows_default() const { return Option(option_->capture_default_str()); }
Option Option::default_text(const std::string& text) const { return Option(option_->default_str(text)); }
Option Option::needs(Option other) const { return Option(option_->needs(other.option_)); }
Option Option::excludes(Option other) const { return Option(option_->excludes(other.option_)); }
Option Option::check(std::function<std::string(const std::string&)> wrong) const {
  return Option(option_->check(std::move(wrong)));
}

Command Command::subcommand(const std::string& name, const std::string& help) const {
  return Command(*app_->add_subcommand(name, help));
}
void Command::on_run(std::function<void()> run) const { app_->callback(std::move(run)); }

template <class T>
Option Command::option(const std::string& name, T& to, const std::string& help) const {
  return Option(app_->add_option(name, to, help));
}
template Option Command::option(const std::string&, std::string&, const std::string&) const;
template Option Command::option(const std::string&, std::vector<std::string>&, const std::string&) const;
template Option Command::option(const std::string&, int&, const std::string&) const;
template Option Command::option(const std::string&, std::int64_t&, const std::string&) const;
template Option Command::option(const std::string&, std::uint64_t&, const std::string&) const;
template Option Command::option(const std::string&, float&, const std::string&) const;
template Option Command::option(const std::string&, double&, const std::string&) const;
template Option Command::option(const std::string&, std::array<std::uint32_t, 4>&, const std::string&) const;
template Option Command::option(const std::string&, std::optional<std::string>&, const std::string&) const;
template Option Command::option(const std::string&, std::optional<int>&, const std::string&) const;
template Option Command::option(const std::string&, std::optional<std::int64_t>&, const std::string&) const;
template Option Command::option(const std::string&, std::optional<std::uint64_t>&, const std::string&) const;
template Option Command::option(const std::string&, std::optional<float>&, const std::string&) const;
template Option Command::option(const std::string&, std::optional<double>&, const std::string&) const;

Option Command::option(const std::string& name, std::function<void(const std::string&)> take,
                       const std::string& help) const {
  return Option(app_->add_option_function<std::string>(name, std::move(take), help));
}
Option Command::optional_word(const std::string& name, std::function<void(const std::string&)> take,
                              const std::string& help) const {
  const auto first = [take = std::move(take)](const std::vector<std::string>& words) {
    take(words.empty() ? std::string() : words.front());
  };
  return Option(app_->add_option_function<std::vector<std::string>>(name, first, help)->expected(0, 1));
}
Option Command::flag(const std::string& name, bool& to, const std::string& help) const {
  return Option(app_->add_flag(name, to, help));
}
bool Command::subcommand_given() const { return !app_->get_subcommands().empty(); }
std::string Command::first_option_given() const {
  for (const CLI::Option* option : std::as_const(*app_).get_options())
    if (option->count() != 0) return option->get_name();
  return "";
}

void exit_with(int status) { throw CLI::RuntimeError(status); }
void option_is_missing(const std::string& name) { throw CLI::RequiredError(name); }

}  // namespace onepass::cli
