// Checks the bytes that ranks send in sparse exchanges, as the Linux kernel counts them. With a
// fixed number of entries they are the program's; with a threshold they are the bytes of the
// packets as they were filled.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>
#include <tuple>

#include "engine/base/names.h"
#include "engine/program/packets.h"
#include "tests/engine/sent_bytes.h"
#include "tests/runtime/kernel_bytes.h"
#include "tests/runtime/sparse_job.h"

namespace rehearse::runtime {
namespace {

struct Sent {
  std::int64_t kernel = 0, counted = 0;
  std::vector<std::int64_t> entries = {};  // of this rank's packets, in the order of its selects
};

/// What each rank sends in the second step. The first step makes the connections.
std::vector<Sent> send_one_step(const job::Job& job, const link::LinkedProgram& linked) {
  at::set_num_threads(1);
  const auto outcomes = run_ranks(job.plan.mesh.world_size(), [&](const Environment& environment) {
    RankRun rank(job, linked, environment);
    rank.steps(0, 1);
    const std::int64_t before = kernel_bytes_sent(), counted = rank.executor.bytes_sent();
    rank.steps(1, 2);
    std::string text =
        fmt::format("{} {}", kernel_bytes_sent() - before, rank.executor.bytes_sent() - counted);
    const program::Role& role = rank.executor.role();
    for (const program::Op& op : role.ops)
      if (const auto* k = std::get_if<program::Kernel>(&op.work);
          k && k->kind == program::KernelKind::select) {
        std::int64_t entries = k->keep;
        if (const program::Ref* state = find(op, program::Slot::threshold)) {
          const auto bytes = rank.executor.state(role.views[state->view].storage, 2, 1);
          entries = static_cast<std::int64_t>(reinterpret_cast<const float*>(bytes.data())[1]);
        }
        text += fmt::format(" {}", entries);
      }
    rank.control.finish();
    return text;
  });
  std::vector<Sent> out;
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    EXPECT_EQ(outcomes[r].status, 0) << "rank " << r << ": " << outcomes[r].text;
    std::istringstream in(outcomes[r].text);
    Sent& sent = out.emplace_back();
    in >> sent.kernel >> sent.counted;
    for (std::int64_t entries = 0; in >> entries;) sent.entries.push_back(entries);
  }
  return out;
}

class SparseSent : public testing::TestWithParam<std::tuple<plan::Reduction, program::Selector>> {};

TEST_P(SparseSent, IsWhatThePacketsHold) {
  const auto [reduction, selector] = GetParam();
  ScratchFolder data;
  write_training_data(data);
  plan::Plan plan{.mesh = {.dp = 4}, .exchange = {.sparse = {.selector = selector}}};
  const job::Job job = sparse_job(plan, reduction, 0.1, data.path(), {0, 0, 1, 2});
  const link::LinkedProgram linked = link::link(program_of(job), job.model);
  const std::vector<Sent> ranks = send_one_step(job, linked);
  if (HasFailure()) return;
  // Everything but packets is sent as planned. Each packet is sent 3 times. Reduction::sparse: by
  // each of four ranks to the three others. Reduction::two_level: by each of three leaders to the
  // two others, and by rank 0 to rank 1, which shares its node.
  std::int64_t expected = 0;
  for (const auto& event : linked.events) {
    const auto [r, o] = event[0];
    const program::Role& role = linked.program.roles[r];
    const auto* c = std::get_if<program::Collective>(&role.ops[o].work);
    if (c == nullptr) continue;
    const program::Ref* source = find(role.ops[o], program::Slot::source);
    const bool packets = source && role.views[source->view].name.starts_with("packet");
    if (!packets &&
        !(find(role.ops[o], program::Slot::target) &&
          role.views[find(role.ops[o], program::Slot::target)->view].name.starts_with("packet")))
      expected += test::sent_by(linked, event);
  }
  for (Id rank = 0; rank < ranks.size(); ++rank) {
    const program::Role& role = linked.program.roles[linked.role_of[rank]];
    std::size_t at = 0;
    for (const program::Op& op : role.ops)
      if (const auto* k = std::get_if<program::Kernel>(&op.work);
          k && k->kind == program::KernelKind::select)
        expected += 3 * (packet_header(selector) +
                         packet_bytes(k->of, ranks[rank].entries.at(at++), k->coding));
  }
  std::int64_t counted = 0, kernel = 0;
  bool varied = false;
  for (const Sent& sent : ranks) counted += sent.counted, kernel += sent.kernel;
  for (Id rank = 0; rank < ranks.size(); ++rank) {
    const program::Role& role = linked.program.roles[linked.role_of[rank]];
    std::size_t at = 0;
    for (const program::Op& op : role.ops)
      if (const auto* k = std::get_if<program::Kernel>(&op.work);
          k && k->kind == program::KernelKind::select)
        varied |= ranks[rank].entries[at++] != k->keep;
  }
  EXPECT_EQ(counted, expected);
  EXPECT_GE(kernel, counted);
  EXPECT_LE(static_cast<double>(kernel), 1.05 * static_cast<double>(counted));
  EXPECT_EQ(varied, selector == program::Selector::threshold);
  if (selector != program::Selector::threshold) {
    EXPECT_EQ(counted, test::sent_bytes(linked));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SparseSent,
    testing::Combine(testing::Values(plan::Reduction::sparse, plan::Reduction::two_level),
                     testing::Values(program::Selector::top_k, program::Selector::random_k,
                                     program::Selector::threshold)),
    [](const auto& info) {
      return fmt::format("{}_{}", name_of(std::get<0>(info.param)),
                         name_of(std::get<1>(info.param)));
    });

}  // namespace
}  // namespace rehearse::runtime
