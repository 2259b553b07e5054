// `rehearse completion SHELL`: completion scripts for bash, zsh and fish. The scripts complete a
// value that has a fixed list of choices or is a file name. They offer nothing for a number or
// another name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/console/command.h"
#include "cli/console/described.h"

namespace rehearse::cli {
namespace {

/// The options of a command, then the global options, which every command takes too. A global
/// option with the flags of a command's option (--help) is left out, and so is --version.
std::vector<DescribedOption> options_of(const DescribedCommand& command,
                                        const DescribedCommand& program) {
  std::vector<DescribedOption> out = command.options;
  for (const DescribedOption& option : program.options) {
    const bool there = std::any_of(out.begin(), out.end(), [&](const DescribedOption& own) {
      return own.flags == option.flags;
    });
    const bool only_without_command = option.flags.back() == "--version";
    if (!there && !only_without_command) out.push_back(option);
  }
  return out;
}

/// The text with `before` in front of each character that is in `special`.
std::string escaped(const std::string& text, const std::string& special, const char* before) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string::npos) out += before;
    out += c;
  }
  return out;
}

std::string bash_values(const DescribedOption& option) {
  if (!option.choices.empty())
    return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$current\"))",
                       fmt::join(option.choices, " "));
  return option.file ? ":" : "compopt +o default 2>/dev/null";  // ":": the shell offers files
}

void add_bash_values(const std::string& command, const std::vector<DescribedOption>& options,
                     std::string& out) {
  for (const DescribedOption& option : options) {
    if (option.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& flag : option.flags)
      patterns.push_back(fmt::format("{}:{}", command, flag));
    out += fmt::format("    {}) {}; return ;;\n", fmt::join(patterns, "|"), bash_values(option));
  }
}

std::vector<std::string> flags_of(const std::vector<DescribedOption>& options) {
  std::vector<std::string> out;
  for (const DescribedOption& option : options)
    out.insert(out.end(), option.flags.begin(), option.flags.end());
  return out;
}

std::vector<std::string> names_of_commands(const std::vector<DescribedCommand>& all) {
  std::vector<std::string> out;
  for (std::size_t i = 1; i < all.size(); ++i) out.push_back(all[i].name);
  return out;
}

std::string bash(const std::vector<DescribedCommand>& all) {
  const std::vector<std::string> names = names_of_commands(all);
  std::string out = fmt::format(R"(# bash completion of rehearse; made by `rehearse completion bash`
_rehearse() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command= word
  [ "$current" != = ] || current=
  [ "$previous" != = ] || previous=${{COMP_WORDS[COMP_CWORD - 2]}}
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in {}) command=$word; break ;; esac
  done
  COMPREPLY=()
  case $command:$previous in
)",
                                fmt::join(names, "|"));
  add_bash_values("", all[0].options, out);
  for (std::size_t i = 1; i < all.size(); ++i)
    add_bash_values(all[i].name, options_of(all[i], all[0]), out);
  out += "  esac\n  case $command in\n";
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<std::string> words = i == 0 ? names : std::vector<std::string>{};
    for (const DescribedOption& argument : all[i].positionals)
      words.insert(words.end(), argument.choices.begin(), argument.choices.end());
    out +=
        fmt::format("    '{}') local words='{}' flags='{}' ;;\n", i == 0 ? "" : all[i].name,
                    fmt::join(words, " "),
                    fmt::join(flags_of(i == 0 ? all[0].options : options_of(all[i], all[0])), " "));
  }
  out += R"(  esac
  case $current in -*) words=$flags ;; esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _rehearse rehearse
)";
  return out;
}

std::string zsh_value(const DescribedOption& option) {
  const std::string name = escaped(option.value.substr(0, option.value.find(':')), ":[]'", "");
  if (!option.choices.empty()) return fmt::format(":{}:({})", name, fmt::join(option.choices, " "));
  return fmt::format(":{}:{}", name, option.file ? "_files" : " ");
}

void add_zsh_options(const std::vector<DescribedOption>& options, std::string& out) {
  for (const DescribedOption& option : options)
    for (const std::string& flag : option.flags) {
      const std::string text = escaped(escaped(option.text, "[]:\\", "\\"), "'", "'\\'");
      const bool long_with_value = !option.value.empty() && flag.starts_with("--");
      out += fmt::format("        '*{}{}[{}]{}' \\\n", flag, long_with_value ? "=" : "", text,
                         option.value.empty() ? "" : zsh_value(option));
    }
}

std::string zsh(const std::vector<DescribedCommand>& all) {
  std::string out =
      "#compdef rehearse\n# zsh completion of rehearse; made by `rehearse completion zsh`\n"
      "_rehearse() {\n  local context state line curcontext=$curcontext\n  local -a commands=(\n";
  for (std::size_t i = 1; i < all.size(); ++i)
    out += fmt::format("    '{}:{}'\n", all[i].name, escaped(all[i].text, "'", "'\\'"));
  out += "  )\n  _arguments -C \\\n";
  add_zsh_options(all[0].options, out);
  out +=
      "        '1: :->command' '*:: :->arguments'\n  case $state in\n"
      "    command) _describe command commands ;;\n"
      "    arguments)\n      case $words[1] in\n";
  for (std::size_t i = 1; i < all.size(); ++i) {
    out += fmt::format("      {}) _arguments \\\n", all[i].name);
    add_zsh_options(options_of(all[i], all[0]), out);
    for (const DescribedOption& argument : all[i].positionals)
      out += fmt::format("        '{}' \\\n", zsh_value(argument));
    out += "        ;;\n";
  }
  out += "      esac ;;\n  esac\n}\n_rehearse \"$@\"\n";
  return out;
}

void add_fish_option(const std::string& condition, const DescribedOption& option,
                     std::string& out) {
  out += fmt::format("complete -c rehearse -n '{}'", condition);
  for (const std::string& flag : option.flags)
    out += flag.starts_with("--") ? " -l " + flag.substr(2) : " -s " + flag.substr(1);
  if (!option.choices.empty())
    out += fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
  else if (!option.value.empty())
    out += option.file ? " -r -F" : " -x";
  out += fmt::format(" -d '{}'\n", escaped(option.text, "'\\", "\\"));
}

std::string fish(const std::vector<DescribedCommand>& all) {
  std::string out =
      "# fish completion of rehearse; made by `rehearse completion fish`\n"
      "complete -c rehearse -n __fish_use_subcommand -f\n";
  for (std::size_t i = 1; i < all.size(); ++i)
    out += fmt::format("complete -c rehearse -n __fish_use_subcommand -a {} -d '{}'\n", all[i].name,
                       escaped(all[i].text, "'\\", "\\"));
  for (const DescribedOption& option : all[0].options)
    add_fish_option("__fish_use_subcommand", option, out);
  for (std::size_t i = 1; i < all.size(); ++i) {
    const std::string condition = "__fish_seen_subcommand_from " + all[i].name;
    for (const DescribedOption& option : options_of(all[i], all[0]))
      add_fish_option(condition, option, out);
    for (const DescribedOption& argument : all[i].positionals)
      if (!argument.choices.empty())
        out += fmt::format("complete -c rehearse -n '{}' -f -a '{}'\n", condition,
                           fmt::join(argument.choices, " "));
  }
  return out;
}

}  // namespace

const std::vector<std::string>& shells() {
  static const std::vector<std::string> all{"bash", "zsh", "fish"};
  return all;
}

std::string completion(const CLI::App& app, const std::string& shell) {
  const std::vector<DescribedCommand> all = describe(app);
  if (shell == "bash") return bash(all);
  return shell == "zsh" ? zsh(all) : fish(all);
}

void add_completion(CLI::App& app, Context& context) {
  const Command command(app, context, "completion", "Print what completes commands in a shell",
                        "  source <(rehearse completion bash)\n"
                        "  rehearse completion zsh > ~/.zsh/completions/_rehearse\n"
                        "  rehearse completion fish | source");
  auto shell = std::make_shared<std::string>();
  command.option("SHELL", *shell, "bash, zsh or fish").required().one_of(shells());
  command.runs([&app, shell] {
    std::cout << completion(app, *shell);
    return int{good};
  });
}

}  // namespace rehearse::cli
