// `rehearse help --man`: the help of all commands as one manual page in roff.
#include <fmt/format.h>

#include <sstream>

#include "cli/console/described.h"

namespace rehearse::cli {
namespace {

/// Escapes text for roff: no line is read as a request, and '-', '\'', '`', '^' and '~' are printed
/// as they are.
std::string roff(const std::string& text) {
  std::string out;
  bool begins = true;  // the next character begins a line
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    begins = c == '\n';
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '\'')
      out += "\\(aq";
    else if (c == '`')
      out += "\\(ga";
    else if (c == '^')
      out += "\\(ha";
    else if (c == '~')
      out += "\\(ti";
    else
      out += c;
  }
  return out;
}

void add_options(const std::vector<DescribedOption>& options, std::string& out) {
  for (const DescribedOption& option : options) {
    std::string flags;
    for (const std::string& flag : option.flags)
      flags += (flags.empty() ? "" : ", ") + fmt::format("\\fB{}\\fR", roff(flag));
    if (!option.value.empty())
      flags += (flags.empty() ? "" : " ") + fmt::format("\\fI{}\\fR", roff(option.value));
    out += fmt::format(".TP\n{}\n{}\n", flags, roff(option.text));
  }
}

/// Adds the footer of a help text: indented lines (examples) keep their line breaks, other lines
/// become paragraphs.
void add_footer(const std::string& footer, std::string& out) {
  bool as_it_is = false;
  std::istringstream lines(footer);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(' ') != as_it_is) {
      as_it_is = !as_it_is;
      out += as_it_is ? ".PP\n.nf\n" : ".fi\n.PP\n";
    } else if (!as_it_is) {
      out += ".PP\n";
    }
    out += roff(line) + "\n";
  }
  if (as_it_is) out += ".fi\n";
}

}  // namespace

std::string man_page(const CLI::App& app, const std::string& version) {
  const std::vector<DescribedCommand> all = describe(app);
  const DescribedCommand& program = all[0];
  std::string out = fmt::format(
      ".\\\" Made by `rehearse help --man`.\n.TH REHEARSE 1 \"\" \"rehearse {0}\" \"rehearse "
      "{0}\"\n"
      ".SH NAME\nrehearse \\- rehearse a training run before you pay for it\n"
      ".SH SYNOPSIS\n.B rehearse\n.RI [ OPTIONS ] \" COMMAND \" [ ARGUMENTS ]\n"
      ".SH DESCRIPTION\n{1}\n.SH OPTIONS\nThey may stand before or after the command.\n",
      version, roff(program.text));
  add_options(program.options, out);
  out += ".SH COMMANDS\n";
  for (std::size_t i = 1; i < all.size(); ++i) {
    out += fmt::format(".SS {}\n{}\n", roff(all[i].name), roff(all[i].text));
    add_options(all[i].positionals, out);
    add_options(all[i].options, out);
    add_footer(all[i].footer, out);
  }
  out += ".SH EXAMPLES AND EXIT STATUS\n";
  add_footer(program.footer, out);
  return out;
}

}  // namespace rehearse::cli
