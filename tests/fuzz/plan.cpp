// Fuzz target for plan files: loads a plan and simulates it. A plan file contains a hash of its own
// text. The target takes the right hash from the error message of the first reading and puts it
// into the text, so that the text passes the check.
#include <fmt/format.h>

#include "engine/base/fnv.h"
#include "engine/cluster/platform/platform.h"
#include "engine/job/identity.h"
#include "engine/job/plan_file.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {
namespace {

/// The text with the right hash; empty if the text is refused for another reason.
std::string with_its_hash(std::string text, const model::ModelSpec& model,
                          const cluster::Cluster& cluster) {
  set_value(text, "\nmodel_hash = \"", hash_text(job::hash_of(model)));
  set_value(text, "\ncluster_hash = \"", hash_text(cluster.hash()));
  try {
    job::parse_plan_file(text, "plan.toml", model, cluster);
    return text;
  } catch (const InputError& error) {
    const std::string why = error.what(), edited = "the plan was edited (";
    const auto at = why.find(edited);
    if (at == why.npos) return {};
    set_value(text, "\nhash = \"", why.substr(at + edited.size(), 16));
    return text;
  }
}

}  // namespace

void plan(std::string_view input) {
  static const model::ModelSpec model = model::load_model("gpt-tiny", 0);
  static const cluster::Cluster cluster = cluster::load_cluster("paper");
  accepts([&] {
    const std::string text = with_its_hash(std::string(input), model, cluster);
    if (text.empty()) return;
    const std::string path = write_input(text, "plan.toml");
    accepts([&] { job::world_size_of_plan(path); });
    simulate(
        fmt::format("model.name = \"gpt-tiny\"\ncluster.name = \"paper\"\n"
                    "method.plan = \"{}\"\n",
                    path));
  });
}

}  // namespace rehearse::fuzz
