// `rehearse help COMMAND`: prints what `rehearse COMMAND --help` prints.
#include <iostream>
#include <memory>

#include "cli/console/command.h"
#include "cli/console/described.h"

namespace rehearse::cli {

void add_help(CLI::App& app, Context& context) {
  const Command command(
      app, context, "help", "Print the help of a command",
      "  rehearse help\n  rehearse help simulate\n  rehearse help --man | man -l -");
  auto name = std::make_shared<std::string>();
  auto man = std::make_shared<bool>(false);
  const Option one =
      command.option("COMMAND", *name, "One of the commands; none: all of them in brief");
  command.flag("--man", *man, "Print the help of all commands as a manual page").excludes(one);
  command.runs([&app, &context, name, man] {
    std::cout << (*man ? man_page(app, context.version) : help_of(app, *name));
    return int{good};
  });
}

}  // namespace rehearse::cli
