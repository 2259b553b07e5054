// Runs the fuzz targets on every file of the corpora, in every build, so that bugs found by fuzzing
// stay fixed. The files were found by fuzzing or written by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {
namespace {

namespace fs = std::filesystem;

class Corpus : public testing::TestWithParam<Target> {};

TEST_P(Corpus, IsAcceptedOrRefusedInAMoment) {
  const Target target = GetParam();
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path("tests/fuzz/corpus") / target.name))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty());
  for (const fs::path& file : files) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    const auto start = std::chrono::steady_clock::now();
    EXPECT_NO_THROW(target.run(text.str())) << file;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), 20) << file;  // tools/fuzz allows 5 s by default
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus, testing::ValuesIn(targets),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace rehearse::fuzz
