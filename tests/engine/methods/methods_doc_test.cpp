// The compatibility matrix of docs/methods.md agrees with the registry. To accept a change:
// REHEARSE_ACCEPT=1.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "engine/base/files/data_dir.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

std::string matrix() {
  std::string out =
      "| method | what | source | pp | tp | ZeRO up to | recompute | clipping | fp16 | bf16 | "
      "other |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  auto mark = [](bool yes) { return yes ? "yes" : "-"; };
  for (const auto& [name, s] : strategies()) {
    const Combines& c = s.combines;
    std::vector<std::string> other;
    if (c.interleave) other.emplace_back("virtual_stages");
    if (c.servers) other.emplace_back("servers");
    if (c.machines) other.emplace_back("credit");
    if (c.staleness) other.emplace_back("staleness");
    if (c.context) other.emplace_back("cp");
    if (c.shares) other.emplace_back("shares");
    if (c.offload) other.emplace_back("offload");
    if (c.sparse) other.emplace_back("sparse gradients");
    if (c.quantised) other.emplace_back("quantised gradients");
    if (c.low_rank) other.emplace_back("factors of gradients");
    if (!c.sgd) other.emplace_back("AdamW only");
    out += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} | {} | {} | yes | {} |\n", name,
                       s.summary, s.source, mark(c.pp), mark(c.tp), c.max_zero, mark(c.recompute),
                       mark(c.clip), mark(c.low_precision), fmt::join(other, ", "));
  }
  return out;
}

TEST(MethodsDoc, HoldsTheRegistry) {
  const std::string path = (data_dir() / "docs/methods.md").string();
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string begin = "<!-- matrix -->\n", end = "<!-- /matrix -->";
  const auto from = text.str().find(begin) + begin.size(), to = text.str().find(end);
  ASSERT_NE(to, std::string::npos);
  if (std::getenv("REHEARSE_ACCEPT")) {
    std::string accepted = text.str();
    accepted.replace(from, to - from, matrix());
    std::ofstream(path) << accepted;
    return;
  }
  EXPECT_EQ(text.str().substr(from, to - from), matrix());
}

}  // namespace
}  // namespace rehearse::methods
