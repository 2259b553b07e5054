// The calibrated efficiencies of the device table equal a least-squares fit to published step
// times, and predict step times that the fit has not seen. After a change to work_of or Costs, the
// first test prints the new values for platforms/devices.toml.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>

#include "engine/base/data_dir.h"
#include "engine/execution/dry_run.h"
#include "engine/job/job.h"
#include "engine/methods/strategy.h"

namespace rehearse::costs {
namespace {

struct Row {
  std::string use = {}, precision = {};
  int nodes = 1, gpus = 1, seq_len = 0, batch = 0;
  double seconds = 0;  // of a step
};

std::vector<Row> published(const std::string& use) {
  std::ifstream in(data_dir() / "platforms" / "calibration" / "v100_bert_large.csv");
  EXPECT_TRUE(in);
  std::vector<Row> rows;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(use + ",")) continue;
    std::istringstream cells(line);
    std::vector<std::string> c;
    for (std::string cell; std::getline(cells, cell, ',');) c.push_back(cell);
    Row row{c.at(0),           c.at(4), std::stoi(c.at(1)), std::stoi(c.at(2)), std::stoi(c.at(3)),
            std::stoi(c.at(5))};
    row.seconds = row.batch * row.gpus / std::stod(c.at(6));
    rows.push_back(row);
  }
  return rows;
}

struct LastEnd : execution::TraceSink {
  double end = 0;
  void record(Id, Id, int, Id, std::span<const double>, std::span<const double> ends) override {
    for (double e : ends) end = std::max(end, e);
  }
};

/// Seconds of one DDP step on the row's GPUs. `kind`: replaces the table's device; null: does not.
double step_seconds(const Row& row, const cluster::DeviceKind* kind = nullptr) {
  const job::Job job = job::parse_job(
      fmt::format("model.name = \"bert-large\"\ncluster.name = \"dgx1:{}\"\n"
                  "cluster.world_size = {}\nmethod.name = \"ddp\"\nmethod.precision = \"{}\"\n"
                  "train.seq_len = {}\ntrain.global_batch = {}\n",
                  row.nodes, row.gpus, row.precision, row.seq_len, row.batch * row.gpus),
      "calibration");
  cluster::Cluster alone;
  if (kind != nullptr) alone.add_device("gpu", alone.add_kind(*kind), 0);
  const link::LinkedProgram linked = link::link(methods::compile(job.plan, job.model));
  const Costs costs(linked, job.model, kind != nullptr ? alone : job.cluster,
                    job.plan.placement.rank_to_device, job.plan.optimizer);
  LastEnd sink;
  dry_run(linked, costs, cluster::Disturber(job.disturb, job.plan.mesh.world_size()), 1, sink);
  return sink.end;
}

double mean_error(const std::vector<Row>& rows) {
  double sum = 0;
  for (const Row& row : rows) sum += std::abs(row.seconds / step_seconds(row) - 1);
  return sum / static_cast<double>(rows.size());
}

TEST(Calibration, V100IsTheLeastSquaresFitToItsSingleGpuRows) {
  // A step is linear in 1/efficiency and 1/memory_efficiency: seconds = a x + b y.
  cluster::DeviceKind kind = cluster::load_device("V100 SXM2 16GB");
  const cluster::DeviceKind table = kind;
  ASSERT_TRUE(table.calibrated);
  const std::vector<Row> rows = published("calibrate");
  ASSERT_EQ(rows.size(), 8U);
  double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
  for (const Row& row : rows) {
    kind.efficiency = kind.memory_efficiency = 1;
    const double base = step_seconds(row, &kind);
    kind.efficiency = 0.5;
    const double a = (step_seconds(row, &kind) - base) / row.seconds;
    kind.efficiency = 1, kind.memory_efficiency = 0.5;
    const double b = (step_seconds(row, &kind) - base) / row.seconds;
    EXPECT_NEAR(a + b, base / row.seconds, 1e-6);  // a step has no other parts
    aa += a * a, ab += a * b, bb += b * b, a1 += a, b1 += b;
  }
  const double det = aa * bb - ab * ab;
  const double efficiency = det / (a1 * bb - b1 * ab), memory = det / (b1 * aa - a1 * ab);
  EXPECT_NEAR(table.efficiency, efficiency, 0.01 * efficiency)
      << "the fit gives efficiency " << efficiency;
  EXPECT_NEAR(table.memory_efficiency, memory, 0.01 * memory)
      << "the fit gives memory_efficiency " << memory;
  const double error = mean_error(rows);
  RecordProperty("mean_absolute_error_percent", fmt::format("{:.1f}", 100 * error));
  EXPECT_LT(error, 0.08);
}

TEST(Calibration, PredictsTheMultiGpuRowsThatNoFitHasSeen) {
  const std::vector<Row> rows = published("check");
  ASSERT_EQ(rows.size(), 7U);
  const double error = mean_error(rows);
  RecordProperty("mean_absolute_error_percent", fmt::format("{:.1f}", 100 * error));
  EXPECT_LT(error, 0.12) << "mean absolute error " << error;
}

}  // namespace
}  // namespace rehearse::costs
