// `rehearse help COMMAND`: prints what `rehearse COMMAND --help` prints.
#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/console/command.h"
#include "cli/console/described.h"
#include "cli/console/parse_errors.h"
#include "engine/base/errors.h"

namespace rehearse::cli {

void add_help(CLI::App& app, Context& context) {
  CLI::App* command =
      add_command(app, "help", "Print the help of a command",
                  "  rehearse help\n  rehearse help simulate\n  rehearse help --man | man -l -");
  auto name = std::make_shared<std::string>();
  auto man = std::make_shared<bool>(false);
  CLI::Option* one =
      command->add_option("COMMAND", *name, "One of the commands; none: all of them in brief");
  command->add_flag("--man", *man, "Print the help of all commands as a manual page")
      ->excludes(one);
  command->callback([&app, &context, name, man] {
    context.run = [&app, &context, name, man] {
      if (*man) {
        std::cout << man_page(app, context.version);
        return int{good};
      }
      if (name->empty()) {
        // app.help() would print the help of the chosen command, which is `help` itself.
        std::cout << app.get_formatter()->make_help(&app, app.get_name(),
                                                    CLI::AppFormatMode::Normal);
        return int{good};
      }
      for (const CLI::App* known : app.get_subcommands({}))
        if (known->get_name() == *name) {
          std::cout << known->help(app.get_name());
          return int{good};
        }
      throw InputError(unknown_command(app, *name));
    };
  });
}

}  // namespace rehearse::cli
