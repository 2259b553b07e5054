// Compares the bytes that each process sends, as the Linux kernel counts them, with the bytes that
// the program says: the sum over the transfers of its role.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/heartbeat.h"
#include "engine/collectives/schedule.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/kernel_bytes.h"
#include "tests/runtime/processes.h"

namespace rehearse::runtime {
namespace {

struct Planned {
  std::int64_t bytes = 0, messages = 0;
};

/// What a rank sends in a step after the first according to the program. All ranks are on one node.
Planned planned_of(const link::LinkedProgram& linked, Id rank) {
  const program::Program& program = linked.program;
  const Id r = linked.role_of[rank];
  Planned sum;
  for (std::size_t at = 0; at < program.roles[r].ops.size(); ++at) {
    const link::LinkedOp& op = linked.roles[r].ops[at];
    if (!program.roles[r].ops[at].when.due(1)) continue;
    const program::Work& work = program.roles[r].ops[at].work;
    if (std::holds_alternative<program::Send>(work) || std::holds_alternative<program::Put>(work))
      sum.bytes += op.bytes, ++sum.messages;
    const auto* collective = std::get_if<program::Collective>(&work);
    if (collective == nullptr) continue;
    for (const std::vector<Id>& group : groups_of(program, program.channels[collective->channel])) {
      const auto member = std::find(group.begin(), group.end(), rank);
      if (member == group.end()) continue;
      const std::vector<Id> nodes(group.size(), 0);
      int root = collective->distance;
      for (std::size_t m = 0; collective->root != none && m < group.size(); ++m)
        if (linked.role_of[group[m]] == collective->root) root = static_cast<int>(m);
      const program::Algorithm algorithm =
          collective->algorithm == program::Algorithm::automatic
              ? collectives::choose(collective->move, op.bytes, nodes)
              : collective->algorithm;
      const auto schedule =
          collectives::schedule(collective->move, algorithm, op.elements, nodes, root);
      const int self = static_cast<int>(member - group.begin());
      sum.bytes += size_of(op.wire) * schedule->sent(self);
      std::vector<collectives::Transfer> transfers;
      for (int round = 0; round < schedule->rounds(); ++round)
        schedule->round(round, self, transfers);
      sum.messages += std::ranges::count(transfers, self, &collectives::Transfer::from);
    }
  }
  return sum;
}

struct BytesCase {
  std::string name = {};
  plan::Plan plan = {};
  job::Transport transport = job::Transport::sockets;
  software::Logits logits = software::Logits::divided;
};
std::ostream& operator<<(std::ostream& out, const BytesCase& c) { return out << c.name; }

class SentBytes : public testing::TestWithParam<BytesCase> {};

TEST_P(SentBytes, AreTheProgramsByTheKernelsCount) {
  constexpr int steps = 8, header = 16;
  ScratchFolder data;
  write_training_data(data);
  job::Job job = conformance_job(GetParam().plan, data.path(), steps + 1);
  job.run.transport = GetParam().transport;
  job.model.software.logits = GetParam().logits;
  job.run.heartbeat = longest_heartbeat(job.run.timeout);  // the kernel counts heartbeats, too
  const link::LinkedProgram linked = link::link(program_of(job));
  at::set_num_threads(1);
  const std::vector<Outcome> outcomes =
      run_ranks(job.plan.mesh.world_size(), [&](const Environment& environment) {
        RankRun rank(job, linked, environment);
        rank.steps(0, 1);  // makes the connections
        const std::int64_t before = kernel_bytes_sent(), counted = rank.executor.bytes_sent();
        rank.steps(1, 1 + steps);
        const std::int64_t sent = kernel_bytes_sent() - before;
        const std::string text =
            std::to_string(sent) + " " + std::to_string(rank.executor.bytes_sent() - counted);
        rank.control.finish();
        return text;
      });
  for (Id rank = 0; rank < outcomes.size(); ++rank) {
    ASSERT_EQ(outcomes[rank].status, 0) << outcomes[rank].text;
    std::size_t end = 0;
    const std::int64_t sent = std::stoll(outcomes[rank].text, &end);
    const std::int64_t payload = std::stoll(outcomes[rank].text.substr(end));
    const auto [bytes, messages] = planned_of(linked, rank);
    const std::int64_t planned = steps * bytes;
    EXPECT_EQ(payload, planned) << "rank " << rank;
    // The kernel also counts a header for each message, and what the ranks agree on.
    EXPECT_GE(sent, planned) << "rank " << rank;
    EXPECT_LE(static_cast<double>(sent - steps * messages * header),
              1.01 * static_cast<double>(planned))
        << "rank " << rank << ", which sends " << messages << " messages in a step";
    RecordProperty("rank_" + std::to_string(rank),
                   std::to_string(sent) + " by the kernel, planned " + std::to_string(planned));
  }
}
INSTANTIATE_TEST_SUITE_P(
    Methods, SentBytes,
    testing::ValuesIn(std::vector<BytesCase>{
        {"ddp", {.method = "ddp", .mesh = {.dp = 2}}},
        {"gathered_logits",
         {.method = "megatron", .mesh = {.tp = 2}},
         job::Transport::sockets,
         software::Logits::gathered},
        {"ring_4", {.method = "ddp", .mesh = {.order = "pp,dp,cp,tp", .cp = 4}}},
        {"zigzag_2_zero1",
         {.method = "zero1",
          .mesh = {.order = "pp,dp,cp,tp", .cp = 2, .context = plan::Context::zigzag}}},
        {"ulysses_2",
         {.method = "ddp",
          .mesh = {.dp = 2, .order = "pp,dp,cp,tp", .cp = 2, .context = plan::Context::ulysses}}},
        {"ddp_3", {.method = "ddp", .mesh = {.dp = 3}, .schedule = {.global_batch = 9}}},
        {"ddp_by_gloo", {.method = "ddp", .mesh = {.dp = 2}}, job::Transport::gloo},
        {"ddp_3_by_gloo",
         {.method = "ddp", .mesh = {.dp = 3}, .schedule = {.global_batch = 9}},
         job::Transport::gloo},
        {"zero2_by_gloo", {.method = "zero2", .mesh = {.dp = 2}}, job::Transport::gloo},
        {"zero1", {.method = "zero1", .mesh = {.dp = 2}}},
        {"zero2_accumulating",
         {.method = "zero2", .mesh = {.dp = 2}, .schedule = {.micro_batches = 2}}},
        {"zero3_accumulating",
         {.method = "zero3", .mesh = {.dp = 2}, .schedule = {.micro_batches = 2}}},
        {"hsdp_4_accumulating",
         {.method = "hsdp",
          .mesh = {.dp = 4},
          .schedule = {.micro_batches = 2},
          .exchange = {.sharding = {.shard_group = 2}}}},
        {"zero3_4_resharding",
         {.method = "zero3", .mesh = {.dp = 4}, .exchange = {.sharding = {.reshard_group = 2}}}},
        {"megatron_tp2", {.method = "megatron", .mesh = {.tp = 2}}},
        {"megatron_tp2_recomputing_layers",
         {.method = "megatron",
          .mesh = {.tp = 2, .sequence_parallel = true},
          .schedule = {.recompute = true, .recompute_unit = plan::RecomputeUnit::layer}}},
        {"one_f_one_b_pp2",
         {.method = "1f1b", .mesh = {.pp = 2}, .schedule = {.micro_batches = 4}}},
        {"one_f_one_b_pp2_zero2",
         {.method = "1f1b",
          .mesh = {.pp = 2, .dp = 2},
          .schedule = {.micro_batches = 4},
          .exchange = {.sharding = {.zero = 2}}}},
        {"interleaved_pp2_zero3",
         {.method = "interleaved",
          .mesh = {.pp = 2, .dp = 2},
          .schedule = {.micro_batches = 2},
          .exchange = {.sharding = {.zero = 3}}}},
        {"topk_sync", {.method = "topk-sync", .mesh = {.dp = 2}}},
        {"int8_sync", {.method = "int8-sync", .mesh = {.dp = 2}}},
        {"qsgd_3_of_4_bits",
         {.method = "qsgd",
          .mesh = {.dp = 3},
          .schedule = {.global_batch = 9},
          .exchange = {.quantised = {.bits = 4}}}},
        {"ef_signsgd_4", {.method = "ef-signsgd", .mesh = {.dp = 4}}},
        {"powersgd_3",
         {.method = "powersgd",
          .mesh = {.dp = 3},
          .schedule = {.global_batch = 9},
          .exchange = {.quantised = {.error_feedback = false},
                       .low_rank = {.rank = 2, .warm_start = false, .start = 1}}}},
        {"onebit_adam_4",
         {.method = "onebit-adam", .mesh = {.dp = 4}, .exchange = {.quantised = {.freeze = 1}}}},
        {"signsgd_majority_3",
         {.method = "signsgd-majority", .mesh = {.dp = 3}, .schedule = {.global_batch = 9}}},
        {"int8_sync_3_by_gloo",
         {.method = "int8-sync", .mesh = {.dp = 3}, .schedule = {.global_batch = 9}},
         job::Transport::gloo},
        {"horovod_3", {.method = "horovod", .mesh = {.dp = 3}, .schedule = {.global_batch = 9}}},
        {"horovod_without_a_cache",
         {.method = "horovod", .mesh = {.dp = 2}, .exchange = {.fusion = {.response_cache = 0}}}},
        {"multi_worker_mirrored_4", {.method = "multi-worker-mirrored", .mesh = {.dp = 4}}},
        {"byteps_3_2",
         {.method = "byteps",
          .mesh = {.dp = 3, .servers = 2},
          .schedule = {.global_batch = 9},
          .exchange = {.bucket = Bytes(50'000), .machines = {.credit = 1}}}},
        {"byteps_machines_of_2",
         {.method = "byteps",
          .mesh = {.dp = 4, .servers = 1},
          .exchange = {.bucket = Bytes(50'000), .machines = {.credit = 2, .local_ranks = 2}}}},
        {"local_sgd_3_by_gloo",
         {.method = "local-sgd",
          .mesh = {.dp = 3},
          .schedule = {.global_batch = 9},
          .exchange = {.averaging = {.local_steps = 1}}},
         job::Transport::gloo},
        {"diloco_3",
         {.method = "diloco",
          .mesh = {.dp = 3},
          .schedule = {.global_batch = 9},
          .exchange = {.averaging = {.local_steps = 1}}}},
        {"fedavg_3_2",
         {.method = "fedavg",
          .mesh = {.dp = 3, .servers = 2},
          .schedule = {.global_batch = 9},
          .exchange = {.averaging = {.local_steps = 1}}}},
        {"fedavg_3_2_with_a_deadline",
         {.method = "fedavg",
          .mesh = {.dp = 3, .servers = 2},
          .schedule = {.global_batch = 9},
          .exchange = {.averaging = {.local_steps = 1, .deadline = Seconds(3600)}}}},
        {"fedavg_3_secure",
         {.method = "fedavg",
          .mesh = {.dp = 3},
          .schedule = {.global_batch = 9},
          .exchange = {.averaging = {.local_steps = 1, .secure = {.on = true}}}}},
        {"d_psgd_4_exponential",
         {.method = "d-psgd",
          .mesh = {.dp = 4},
          .exchange = {.averaging = {.graph = plan::Graph::exponential}}}},
        {"ps_sync_2_1", {.method = "ps-sync", .mesh = {.dp = 2, .servers = 1}}},
        {"ps_sync_2_2", {.method = "ps-sync", .mesh = {.dp = 2, .servers = 2}}},
    }),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rehearse::runtime
