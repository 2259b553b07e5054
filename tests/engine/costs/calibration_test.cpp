// Step times that others published are predicted closely enough by the shipped devices and
// software, on rows that no constant was fitted to. `rehearse validate` prints the same errors.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/files/csv.h"
#include "engine/base/files/data_dir.h"
#include "engine/costs/device/host_lane.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/execution/measure/metrics.h"
#include "engine/job/job.h"
#include "engine/methods/strategy.h"

namespace rehearse::costs {
namespace {

struct Row {
  std::string name = {};
  bool calibrates = false;
  double seconds = 0;  // of a step
  std::vector<std::string> overrides = {};
};

std::vector<Row> published(const std::string& set) {
  const CsvTable table = load_csv((data_dir() / "validation" / (set + ".csv")).string());
  std::vector<Row> rows;
  for (const std::vector<std::string>& fields : table.rows) {
    Row& row = rows.emplace_back();
    row.name = fields.at(table.column("row"));
    row.calibrates = fields.at(table.column("use")) == "calibrate";
    row.seconds = std::stod(fields.at(table.column("seconds")));
    for (std::size_t c = 0; c < fields.size(); ++c)
      if (table.columns[c].find('.') != std::string::npos)
        row.overrides.push_back(table.columns[c] + "=" + fields[c]);
  }
  return rows;
}

double step_seconds(const std::string& set, const Row& row) {
  const job::Job job = job::read_job(
      Config::load((data_dir() / "validation" / (set + ".toml")).string(), row.overrides));
  const link::LinkedProgram linked = link::link(with_host_lane(job::program_of(job), job.model));
  const Costs costs(
      linked, job.model, job.cluster,
      {.rank_to_device = job.plan.placement.rank_to_device, .optimizer = job.plan.optimizer});
  const execution::Steps steps{.warm_up = 2, .steady = 3};
  execution::MetricsSink metrics(linked, job.model, job.cluster, costs,
                                 job.plan.schedule.global_batch, steps);
  dry_run(linked, costs, cluster::Disturber(job.disturb, job.plan.mesh.world_size()),
          steps.warm_up + steps.steady, metrics);
  return metrics.finish().mean_step;
}

struct Bound {
  std::string set = {};
  std::size_t rows = 0;  // used for checks
  double check = 0;      // largest mean of |predicted / measured - 1| over them
  double calibrate = 0;  // the same over the other rows
};
/// How close the predictions must be. After a change that improves them, tighten these.
const std::vector<Bound> bounds = {
    {.set = "bert-pretrain", .rows = 7, .check = 0.04, .calibrate = 0.035},
    {.set = "bert-squad", .rows = 12, .check = 0.11, .calibrate = 0.045},
    {.set = "megatron-node", .rows = 280, .check = 0.095, .calibrate = 0.085},
    {.set = "megatron-cluster", .rows = 22, .check = 0.105, .calibrate = 0.115},
    {.set = "sc21", .rows = 2, .check = 0.055, .calibrate = 0.03},
};

double mean_error(const std::string& set, bool calibrates, std::size_t& count) {
  double sum = 0;
  count = 0;
  for (const Row& row : published(set)) {
    if (row.calibrates != calibrates) continue;
    const double error = step_seconds(set, row) / row.seconds - 1;
    EXPECT_LT(std::abs(error), 1) << row.name;
    sum += std::abs(error);
    ++count;
  }
  return sum / static_cast<double>(count);
}

TEST(LongCalibration, PredictsRowsThatNoFitHasSeen) {
  for (const Bound& bound : bounds) {
    std::size_t rows = 0;
    const double error = mean_error(bound.set, false, rows);
    EXPECT_EQ(rows, bound.rows) << bound.set;
    EXPECT_LT(error, bound.check) << bound.set;
    testing::Test::RecordProperty(bound.set + "_check_percent", fmt::format("{:.1f}", 100 * error));
  }
}

TEST(LongCalibration, PredictsTheRowsOfItsFit) {
  for (const Bound& bound : bounds) {
    std::size_t rows = 0;
    const double error = mean_error(bound.set, true, rows);
    EXPECT_GT(rows, 0U) << bound.set;
    EXPECT_LT(error, bound.calibrate) << bound.set;
    testing::Test::RecordProperty(bound.set + "_fit_percent", fmt::format("{:.1f}", 100 * error));
  }
}

// Without the software that made them, the same rows are far off: the bounds can fail.
TEST(LongCalibration, WithoutTheirSoftwareTheRowsAreFarOff) {
  for (const Bound& bound : bounds) {
    double sum = 0;
    std::size_t rows = 0;
    for (Row row : published(bound.set)) {
      if (row.calibrates) continue;
      row.overrides.emplace_back("software.name=rehearse");
      sum += std::abs(step_seconds(bound.set, row) / row.seconds - 1);
      ++rows;
    }
    EXPECT_GT(sum / static_cast<double>(rows), bound.check) << bound.set;
  }
}

}  // namespace
}  // namespace rehearse::costs
