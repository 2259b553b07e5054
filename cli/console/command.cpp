#include "cli/console/command.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace rehearse::cli {

Option Option::type(const std::string& name) const {
  option_->type_name(name);
  return *this;
}

template <class T>
Option Option::between(T least, T most) const {
  option_->check(CLI::Range(least, most));
  // A comparison with NaN is false, so CLI11 finds it in every range.
  if constexpr (std::is_floating_point_v<T>)
    option_->check(
        [](const std::string& text) {
          double value = 0;
          return CLI::detail::lexical_cast(text, value) && std::isnan(value)
                     ? text + " is not a number"
                     : std::string();
        },
        "");
  return *this;
}

template Option Option::between(int, int) const;
template Option Option::between(std::int64_t, std::int64_t) const;
template Option Option::between(double, double) const;

Option Option::one_of(const std::vector<std::string>& names) const {
  option_->check(CLI::IsMember(names));
  return *this;
}

Option Option::existing_file() const {
  option_->check(CLI::ExistingFile);
  return *this;
}

Option Option::shows_default() const {
  option_->capture_default_str();
  return *this;
}

Option Option::required() const {
  option_->required();
  return *this;
}

Option Option::repeats() const {
  option_->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return *this;
}

Option Option::comma_separated() const {
  option_->delimiter(',');
  return *this;
}

Option Option::needs(Option other) const {
  option_->needs(other.option_);
  return *this;
}

Option Option::excludes(Option other) const {
  option_->excludes(other.option_);
  return *this;
}

Option Option::excludes(const std::string& name) const {
  option_->excludes(name);
  return *this;
}

Command::Command(CLI::App& app, Context& context, const std::string& name,
                 const std::string& summary, const std::string& examples)
    : command_(app.add_subcommand(name, summary)), context_(&context) {
  command_->fallthrough();
  command_->footer("examples:\n" + examples);
}

template <class T>
Option Command::option(const std::string& names, T& value, const std::string& help) const {
  return Option(command_->add_option(names, value, help));
}

template Option Command::option(const std::string&, std::string&, const std::string&) const;
template Option Command::option(const std::string&, int&, const std::string&) const;
template Option Command::option(const std::string&, std::int64_t&, const std::string&) const;
template Option Command::option(const std::string&, std::uint32_t&, const std::string&) const;
template Option Command::option(const std::string&, std::uint64_t&, const std::string&) const;
template Option Command::option(const std::string&, double&, const std::string&) const;
template Option Command::option(const std::string&, std::vector<int>&, const std::string&) const;
template Option Command::option(const std::string&, std::vector<std::string>&,
                                const std::string&) const;

Option Command::flag(const std::string& names, bool& value, const std::string& help) const {
  return Option(command_->add_flag(names, value, help));
}

Option Command::job(std::string& path) const {
  return option("JOB.toml", path, "What to train, where and how (docs/job.md)");
}

void Command::runs(std::function<int()> work) const {
  command_->callback([context = context_, work = std::move(work)] { context->run = work; });
}

}  // namespace rehearse::cli
