// Program texts: parsed, linked with and without a model, printed again, and run dry.
#include "engine/program/program.h"

#include <fmt/format.h>

#include "cli/commands/program_check.h"
#include "engine/costs/costs.h"
#include "engine/execution/dry_run.h"
#include "engine/cluster/platform.h"
#include "engine/link/workspace.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {
namespace {

class Ignored : public TraceSink {
  void record(Id, Id, int, Id, std::span<const double>, std::span<const double>) override {}
};

bool computes_only(const Program& program, const ModelSpec& model) {
  for (const Role& role : program.roles)
    for (const Op& op : role.ops)
      if (const auto* compute = std::get_if<Compute>(&op.work);
          compute != nullptr && compute->segment >= model.segments.size())
        return false;
  return true;
}

void run_dry(const LinkedProgram& linked, const ModelSpec& model) {
  static const Cluster cluster = load_cluster("dgx-a100:2");
  if (linked.role_of.size() > cluster.devices().size()) return;
  accepts([&] {
    const Costs costs(linked, model, cluster, {});
    const Disturber quiet({}, linked.program.world_size);
    Ignored ignored;
    dry_run(linked, costs, quiet, 2, ignored);
  });
}

}  // namespace

void program(std::string_view input) {
  static const ModelSpec model = load_model("gpt-tiny", 0);
  Program read;
  if (!accepts([&] { read = parse_program(std::string(input)); })) return;
  if (read.world_size > 2048) return;  // honest work, many times slower under sanitizers
  const std::string text = to_text(read);
  expect(to_text(parse_program(text)) == text, "a program's text is read as it was printed");
  accepts([&] { describe(link(read), false); });
  if (!computes_only(read, model)) return;
  accepts([&] {
    const LinkedProgram linked = link(std::move(read), model);
    to_json(linked, true).dump();
    run_dry(linked, model);
  });
}

}  // namespace rehearse::fuzz
