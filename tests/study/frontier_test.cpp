// The frontier of a sweep's results beside its definition.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "study/sweep/sweep.h"

namespace rehearse::study {
namespace {

using testing::ElementsAre;

Row row(const std::string& key, nlohmann::ordered_json metrics) {
  return {.key = key, .metrics = std::move(metrics)};
}

TEST(Frontier, HoldsWhatNothingIsPreferableTo) {
  const std::vector<Row> rows{row("dear and fast", {{"s", 1}, {"rate", 5}}),
                              row("worse than all", {{"s", 4}, {"rate", 1}}),
                              row("slow and large", {{"s", 3}, {"rate", 9}}),
                              row("as the first", {{"s", 1}, {"rate", 5}}),
                              row("no rate", {{"s", 0.5}}),
                              row("rate unknown", {{"s", 0.5}, {"rate", nullptr}}),
                              row("refused", nullptr)};
  EXPECT_THAT(frontier(rows, {{"s"}, {"rate", true}}), ElementsAre(0, 3, 2));
  EXPECT_THAT(frontier(rows, {{"s"}}), ElementsAre(4, 5));
}

TEST(Frontier, IsThatOfItsDefinition) {
  const std::uint64_t seed = testing::UnitTest::GetInstance()->random_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<Row> rows;
    for (int i = 0; i < 40; ++i)
      rows.push_back(row("x", {{"a", random() % 8}, {"b", random() % 8}, {"c", random() % 8}}));
    const auto at = [&](std::size_t i, const char* name) {
      return rows[i].metrics[name].get<int>() * (name[0] == 'b' ? -1 : 1);
    };
    std::set<std::size_t> defined;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      bool beaten = false;
      for (std::size_t j = 0; j < rows.size(); ++j) {
        bool none_worse = true, one_better = false;
        for (const char* name : {"a", "b", "c"}) {
          none_worse = none_worse && at(j, name) <= at(i, name);
          one_better = one_better || at(j, name) < at(i, name);
        }
        beaten = beaten || (none_worse && one_better);
      }
      if (!beaten) defined.insert(i);
    }
    const auto found = frontier(rows, {{"a"}, {"b", true}, {"c"}});
    EXPECT_EQ(std::set(found.begin(), found.end()), defined) << "seed " << seed;
    EXPECT_TRUE(std::is_sorted(found.begin(), found.end(), [&](std::size_t i, std::size_t j) {
      return at(i, "a") < at(j, "a");
    }));
  }
}

}  // namespace
}  // namespace rehearse::study
