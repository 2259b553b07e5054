// Fuzz target for program texts: parses a program, prints it again, links it without and with a
// model, and dry-runs it.
#include "engine/program/program.h"

#include <fmt/format.h>

#include "engine/cluster/platform/platform.h"
#include "engine/costs/costs.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/link/workspace.h"
#include "study/parts/program_check.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {
namespace {

class Ignored : public execution::TraceSink {
  void record(Id, Id, int, Id, std::span<const double>, std::span<const double>) override {}
};

/// Whether all segments that the program computes exist in the model.
bool computes_only(const program::Program& program, const model::ModelSpec& model) {
  for (const program::Role& role : program.roles)
    for (const program::Op& op : role.ops)
      if (const auto* compute = std::get_if<program::Compute>(&op.work);
          compute != nullptr && compute->segment >= model.segments.size())
        return false;
  return true;
}

void run_dry(const link::LinkedProgram& linked, const model::ModelSpec& model) {
  static const cluster::Cluster cluster = cluster::load_cluster("dgx-a100:2");
  if (linked.role_of.size() > cluster.devices().size()) return;
  accepts([&] {
    const costs::Costs costs(linked, model, cluster, {});
    const cluster::Disturber quiet({}, linked.program.world_size);
    Ignored ignored;
    dry_run(linked, costs, quiet, 2, ignored);
  });
}

}  // namespace

void program(std::string_view input) {
  static const model::ModelSpec model = model::load_model("gpt-tiny", 0);
  program::Program read;
  if (!accepts([&] { read = program::parse_program(std::string(input)); })) return;
  if (read.world_size > 2048) return;  // takes long under sanitizers, and that is no bug
  const std::string text = to_text(read);
  expect(to_text(program::parse_program(text)) == text,
         "a program's text is read as it was printed");
  accepts([&] { study::describe(link::link(read), false); });
  if (!computes_only(read, model)) return;
  accepts([&] {
    const link::LinkedProgram linked = link::link(std::move(read), model);
    study::to_json(linked, true).dump();
    run_dry(linked, model);
  });
}

}  // namespace rehearse::fuzz
