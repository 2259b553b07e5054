// Compares quantised exchanges in real processes with one process that follows their definition:
// gradients by the same blocks, codes and sums entry by entry. Weights must be equal bit by bit on
// every rank, and what ranks owe must be what the definition says.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/runtime/exact_runs.h"
#include "tests/runtime/quantised_reference.h"

namespace rehearse::runtime {
namespace {

struct Case {
  std::string name = {};
  plan::Plan plan = {};
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class QuantisedRuns : public testing::TestWithParam<Case> {};

TEST_P(QuantisedRuns, EqualOneProcessToTheBit) {
  ScratchFolder data;
  write_training_data(data);
  constexpr int steps = 4;
  const job::Job job = conformance_job(GetParam().plan, data.path(), 20);
  const std::vector<States> ranks = run_sparse(job, steps);
  if (HasFailure()) return;
  const link::LinkedProgram linked = link::link(program_of(job), job.model);
  std::vector<QuantisedSum> buckets = quantised_sums(linked, job.model, job.train.seed);
  ASSERT_FALSE(buckets.empty());
  const Groups expected =
      train_exactly(job, steps, [&](std::int64_t step, const std::vector<Groups>& by_worker) {
        Groups sum = zeros_of(job.model);
        for (QuantisedSum& bucket : buckets) {
          std::vector<std::vector<float>> gradients;
          for (const Groups& worker : by_worker)
            gradients.push_back(flat(bucket.pieces, worker, bucket.kernel.of));
          put(bucket.pieces, bucket(step, std::move(gradients)), sum);
        }
        return sum;
      });
  std::array<bool, 2> owes{};  // some rank, of its gradient and of its part of the sum
  for (Id rank = 0; rank < ranks.size(); ++rank) {
    const Groups weights = weights_in(job, ranks[rank], rank);
    for (Id g = 0; g < weights.size(); ++g)
      ASSERT_TRUE(at::equal(weights[g], expected[g]))
          << "rank " << rank << ' ' << job.model.groups[g].name << ": "
          << (weights[g] != expected[g]).sum().item<std::int64_t>() << " of " << expected[g].numel()
          << " differ";
    for (std::size_t b = 0; b < buckets.size(); ++b)
      for (const bool of_sum : {false, true}) {
        const std::string name = (of_sum ? "E.b" : "R.b") + std::to_string(b);
        ASSERT_EQ(ranks[rank].contains(name), buckets[b].feedback);
        if (!buckets[b].feedback) continue;
        const std::vector<float>& owed = (of_sum ? buckets[b].owed_of_sum : buckets[b].owed)[rank];
        std::vector<float> kept(ranks[rank].at(name).size() / sizeof(float));
        std::memcpy(kept.data(), ranks[rank].at(name).data(), ranks[rank].at(name).size());
        ASSERT_EQ(kept, owed) << name << " of rank " << rank;
        owes[of_sum] = owes[of_sum] || std::ranges::any_of(owed, [](float e) { return e != 0; });
      }
  }
  EXPECT_EQ(owes[0], buckets[0].feedback);
  EXPECT_EQ(owes[1], buckets[0].feedback);
}

std::vector<Case> cases() {
  std::vector<Case> out;
  out.push_back({"votes_of_3_by_sgd",
                 {.method = "signsgd-majority",
                  .mesh = {.dp = 3},
                  .schedule = {.global_batch = 9},
                  .optimizer = plan::Optimizer::sgd}});
  for (const char* method : {"int8-sync", "qsgd", "ef-signsgd"}) {
    std::string name = method;
    std::replace(name.begin(), name.end(), '-', '_');
    out.push_back({name, {.method = method, .mesh = {.dp = 4}}});
    out.push_back({name + "_of_2_by_sgd",
                   {.method = method, .mesh = {.dp = 2}, .optimizer = plan::Optimizer::sgd}});
    // Parts are unequal without padding.
    out.push_back({name + "_of_3_accumulating",
                   {.method = method,
                    .mesh = {.dp = 3},
                    .schedule = {.global_batch = 12, .micro_batches = 2}}});
    out.push_back(
        {name + "_in_blocks_of_64",
         {.method = method, .mesh = {.dp = 2}, .exchange = {.quantised = {.block = 64}}}});
    out.push_back({name + (name == "qsgd" ? "_with_feedback" : "_without_feedback"),
                   {.method = method,
                    .mesh = {.dp = 2},
                    .exchange = {.quantised = {.error_feedback = name == "qsgd"}}}});
  }
  for (const int bits : {2, 4})
    out.push_back(
        {"qsgd_of_" + std::to_string(bits) + "_bits",
         {.method = "qsgd", .mesh = {.dp = 4}, .exchange = {.quantised = {.bits = bits}}}});
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, QuantisedRuns, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rehearse::runtime
