// A folder holds one run: another run is refused, and a resumed run has every step once.

#include "runtime/checkpoints/files/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/message_of.h"
#include "tests/runtime/scratch.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class RunFolder : public testing::Test {
 protected:
  void checkpoint(std::int64_t step) const {
    fs::create_directories(checkpoint_path(folder_.path(), step));
    write_text(checkpoint_path(folder_.path(), step) + "/manifest.json", "{}");
  }
  void metrics(const std::string& text) const { write_text(metrics_path(folder_.path()), text); }
  std::string metrics() const {
    std::ifstream file(metrics_path(folder_.path()));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string at(std::int64_t step) const { return checkpoint_path(folder_.path(), step); }
  ScratchFolder folder_;
};

TEST_F(RunFolder, WhatIsThereIsSaidWithTheWaysOut) {
  check_unused(folder_.path());
  check_unused(folder_.path() + "/none");
  write_text(folder_.file("plan.toml"), "kept");
  check_unused(folder_.path());
  metrics("{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"loss\": 2}\n{\"st");
  EXPECT_THAT(test::message_of([&] { check_unused(folder_.path()); }),
              AllOf(HasSubstr(folder_.path()), HasSubstr("metrics of 2 steps"),
                    HasSubstr("--overwrite"), HasSubstr("train.out="), Not(HasSubstr("--resume"))));
  checkpoint(2);
  checkpoint(100'000'000);
  EXPECT_THAT(test::message_of([&] { check_unused(folder_.path()); }),
              AllOf(HasSubstr("step-00000002 and step-100000000"), HasSubstr("--resume")));
  EXPECT_THAT(checkpoints_in(folder_.path()), ElementsAre(at(2), at(100'000'000)));
  EXPECT_EQ(find_checkpoint(folder_.path()), at(100'000'000));
}

TEST_F(RunFolder, RewindingKeepsEveryStepOnce) {
  const std::string first =
      "{\"step\":1,\"loss\":3.0}\n{\"loss\":2.5,\"step\":2}\n"
      "{\"step\":2,\"validation_loss\":2.6}\n";
  metrics(first +
          "{\"step\":2,\"plan\":\"another\"}\n{\"step\":3,\"loss\":2.0}\n"
          "{\"step\":4,\"validation_loss\":1.9}\n{\"step\":5,\"lo");
  for (const std::int64_t step : {1, 2, 4}) checkpoint(step);
  fs::create_directories(folder_.file("step-00000003.part"));
  write_text(folder_.file("plan.toml"), "kept");
  rewind_run(folder_.path(), 2, true);
  EXPECT_EQ(metrics(), first);
  EXPECT_THAT(checkpoints_in(folder_.path()), ElementsAre(at(1), at(2)));
  EXPECT_FALSE(fs::exists(folder_.file("step-00000003.part")));
  EXPECT_TRUE(fs::exists(folder_.file("plan.toml")));
  remove_run(folder_.path());
  EXPECT_FALSE(fs::exists(metrics_path(folder_.path())));
  EXPECT_TRUE(checkpoints_in(folder_.path()).empty());
  EXPECT_TRUE(fs::exists(folder_.file("plan.toml")));
}

TEST_F(RunFolder, WhatNoCheckCoversIsNotGoneOnWith) {
  for (const std::int64_t step : {4, 8}) checkpoint(step);
  metrics("{\"step\":4,\"loss\":3.0}\n");
  EXPECT_EQ(find_checkpoint(folder_.path()), at(8));  // no run of checks
  const std::string checks = "{\"checked\":true,\"step\":0}\n{\"checked\":true,\"step\":4}\n";
  metrics(checks + "{\"step\":8,\"loss\":3.0}\n");
  EXPECT_EQ(checked_until(folder_.path()), 4);
  EXPECT_EQ(find_checkpoint(folder_.path()), at(4));
  EXPECT_EQ(find_checkpoint(at(8)), at(8));  // who names it wants it
  metrics("{\"checked\":true,\"step\":0}\n");
  EXPECT_THAT(test::message_of([&] { find_checkpoint(folder_.path()); }),
              AllOf(HasSubstr("after the last passed check"), HasSubstr("--resume-from")));
  metrics(checks);
  rewind_run(folder_.path(), 4, false);  // what follows is not checked
  EXPECT_EQ(checked_until(folder_.path()), std::nullopt);
}

TEST_F(RunFolder, KnowsItsOwnCheckpoints) {
  checkpoint(2);
  EXPECT_TRUE(lies_in(at(2), folder_.path()));
  EXPECT_TRUE(lies_in(at(2) + "/", folder_.path() + "/"));
  ScratchFolder other;
  EXPECT_FALSE(lies_in(at(2), other.path()));
  EXPECT_FALSE(lies_in(at(2), folder_.path() + "/none"));
}

}  // namespace
}  // namespace rehearse::runtime
