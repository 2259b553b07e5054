// Tests fits on rows whose parameters are known: values come back with and without noise, the
// cross-validated error is that of rows that a fit has not seen, and what the rows cannot tell is
// named.
#include "engine/calibration/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/errors.h"
#include "tests/message_of.h"

namespace rehearse::calibration {
namespace {

using test::message_of;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A step: work at a rate of `efficiency`, memory traffic at `memory`, and a host that issues
/// kernels beside them: the slower of both counts.
struct Row {
  double work = 0, traffic = 0, kernels = 0;
};
const std::vector<Row> rows{{1.0, 0.2, 100}, {2.0, 0.3, 150}, {0.5, 0.4, 3000}, {0.3, 0.1, 2500},
                            {4.0, 2.0, 400}, {1.0, 1.0, 200}, {0.2, 0.6, 100},  {0.1, 0.1, 900},
                            {3.0, 0.1, 500}, {0.4, 0.9, 700}, {0.1, 0.2, 4000}, {2.5, 1.5, 300}};

double step(const Row& row, std::span<const double> at) {
  return std::max(row.work / at[0] + row.traffic / at[1], row.kernels * at[2]);
}

const std::vector<Parameter> parameters{
    {.name = "efficiency", .start = 0.8, .least = 1e-6, .most = 1, .scale = 0.8},
    {.name = "memory", .start = 0.6, .least = 1e-6, .most = 1, .scale = 0.6},
    {.name = "host", .start = 2e-4, .least = 0, .most = 3600, .scale = 2e-4}};
const std::vector<double> truth{0.55, 0.85, 9e-4};

/// `noise`: the most that a row is off, alternating.
Problem problem(double noise = 0) {
  Problem out{.parameters = parameters, .predict = [](std::size_t r, std::span<const double> at) {
                return step(rows[r], at);
              }};
  for (std::size_t r = 0; r < rows.size(); ++r)
    out.measured.push_back(step(rows[r], truth) *
                           (1 + noise * std::sin(2.7 * static_cast<double>(r + 1))));
  return out;
}

TEST(CalibrationFit, FindsTheValuesThatMadeTheRows) {
  const Problem p = problem();
  const Fit found = fit(p);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    EXPECT_TRUE(found.estimates[i].fitted) << parameters[i].name;
    EXPECT_NEAR(found.estimates[i].value / truth[i], 1, 2e-3) << parameters[i].name;
    EXPECT_LT(found.estimates[i].spread, 0.01 * truth[i]) << parameters[i].name;
    EXPECT_FALSE(found.estimates[i].at_bound);
  }
  EXPECT_GT(found.at_start, 0.2);
  EXPECT_LT(found.fitted, 2e-3);
  EXPECT_LT(found.cross_validated, 5e-3);
  EXPECT_EQ(found.folds, 5);
  EXPECT_THAT(notes(p, found, "rows"), IsEmpty());
}

TEST(CalibrationFit, NoiseIsInTheErrorOfUnseenRowsAndInTheSpread) {
  const Fit found = fit(problem(0.05));
  for (std::size_t i = 0; i < truth.size(); ++i) {
    EXPECT_NEAR(found.estimates[i].value / truth[i], 1, 0.1) << parameters[i].name;
    EXPECT_GT(found.estimates[i].spread, 1e-3 * truth[i]);
  }
  EXPECT_GT(found.fitted, 0.01);
  EXPECT_LT(found.fitted, 0.05);
  EXPECT_GT(found.cross_validated, found.fitted);
}

TEST(CalibrationFit, IsDeterministic) {
  const Fit one = fit(problem(0.03)), other = fit(problem(0.03));
  for (std::size_t i = 0; i < truth.size(); ++i)
    EXPECT_EQ(one.estimates[i].value, other.estimates[i].value);
  EXPECT_EQ(one.cross_validated, other.cross_validated);
}

TEST(CalibrationFit, OneParameterAndFewRows) {
  Problem p = problem();
  p.parameters.resize(1);
  p.measured.resize(3);
  p.predict = [](std::size_t r, std::span<const double> at) { return rows[r].work / at[0]; };
  for (std::size_t r = 0; r < 3; ++r) p.measured[r] = rows[r].work / 0.4;
  const Fit found = fit(p);
  EXPECT_NEAR(found.estimates[0].value, 0.4, 1e-3);
  EXPECT_EQ(found.folds, 3);  // each row is left out once
}

TEST(CalibrationFit, NamesParametersThatOnlyShowAsASum) {
  Problem p = problem();
  p.parameters = {{.name = "host.forward", .start = 1e-4, .most = 1, .scale = 1e-4},
                  {.name = "host.backward", .start = 0.5e-4, .most = 1, .scale = 0.5e-4}};
  // Twice as many kernels in backward, in every row.
  p.predict = [](std::size_t r, std::span<const double> at) {
    return rows[r].kernels * (at[0] + 2 * at[1]);
  };
  for (std::size_t r = 0; r < rows.size(); ++r) p.measured[r] = rows[r].kernels * 3e-4;
  const Fit found = fit(p);
  EXPECT_LT(found.fitted, 1e-3);
  ASSERT_EQ(found.identified.groups.size(), 1U);
  EXPECT_THAT(found.identified.groups[0].members, ElementsAre(0, 1));
  // One of them has its start value, and the other makes up for it.
  EXPECT_EQ(int(found.estimates[0].fitted) + int(found.estimates[1].fitted), 1);
  EXPECT_THAT(notes(p, found, "rows"),
              Contains(HasSubstr("host.forward and host.backward: these rows only show a weighted "
                                 "sum of them; host.")));
}

TEST(CalibrationFit, NamesAParameterWithoutEffect) {
  Problem p = problem();
  p.parameters.push_back({.name = "attention", .start = 0.6, .most = 1, .scale = 0.6});
  const Fit found = fit(p);
  EXPECT_FALSE(found.estimates[3].fitted);
  EXPECT_EQ(found.estimates[3].value, 0.6);
  EXPECT_THAT(notes(p, found, "rows"),
              ElementsAre(HasSubstr("attention: it changes the time of none of these rows; it "
                                    "stays at its start value")));
}

TEST(CalibrationFit, FindsAParameterThatAnotherOneHidAtFirst) {
  Problem p = problem();
  // At the start the device is so slow that no row waits for the host.
  p.parameters[0].start = p.parameters[0].scale = 0.05;
  p.parameters[2].start = p.parameters[2].scale = 2e-5;
  const Fit found = fit(p);
  EXPECT_LT(found.fitted, 0.3 * found.at_start);
  EXPECT_NEAR(found.estimates[0].value / truth[0], 1, 0.3);
}

TEST(CalibrationFit, SaysWhenTheRowsAskForMoreThanTheRange) {
  Problem p = problem();
  for (double& seconds : p.measured) seconds *= 0.3;
  const Fit found = fit(p);
  EXPECT_TRUE(found.estimates[0].at_bound);
  EXPECT_LE(found.estimates[0].value, 1);
  EXPECT_THAT(notes(p, found, "rows"),
              Contains(HasSubstr("efficiency: 1 is the end of its range")));
}

TEST(CalibrationFit, RefusesTooFewRows) {
  Problem p = problem();
  p.measured.resize(1);
  EXPECT_THAT(message_of<InputError>([&] { fit(p); }),
              HasSubstr("only one row to fit to; cross-validation needs at least 2"));
  p.parameters.resize(2);
  p.predict = [](std::size_t r, std::span<const double> at) {
    return r == 0 ? 1 / at[0] + 0.1 / at[1] : 0.1 / at[0] + 1 / at[1];
  };
  p.measured = {2, 2};
  EXPECT_THAT(message_of<InputError>([&] { fit(p); }),
              HasSubstr("2 measurements show 2 parameters (efficiency and memory)"));
  p.measured.clear();
  EXPECT_THAT(message_of<InputError>([&] { fit(p); }), HasSubstr("no row to fit to"));
}

TEST(Identify, GroupsOfThree) {
  // The third column is the sum of the others, and no two of them are alike.
  const Identified found =
      identify({{1, 0, 1}, {0, 1, 1}, {1, 1, 2}, {0.2, 0.9, 1.1}, {0.5, 0.1, 0.6}});
  ASSERT_EQ(found.groups.size(), 1U);
  EXPECT_THAT(found.groups[0].members, ElementsAre(0, 1, 2));
  EXPECT_EQ(found.told_apart.size(), 2U);
  EXPECT_THAT(found.without_effect, IsEmpty());
}

TEST(Identify, MoreParametersThanRows) {
  const Identified found = identify({{1, 0.5, 0.2}});
  EXPECT_EQ(found.told_apart.size(), 1U);
  EXPECT_EQ(found.groups.size(), 2U);
}

}  // namespace
}  // namespace rehearse::calibration
