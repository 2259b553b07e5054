// Runs the fuzz targets on every file of the corpora, in every build, so that bugs found by fuzzing
// stay fixed. The files were found by fuzzing or written by hand.
#include <gmock/gmock.h>

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

TEST(Words, AreTheKeysOfTheTablesAndWhatTheyAccept) {
  using testing::IsSupersetOf;
  EXPECT_THAT(words_of("job"),
              IsSupersetOf({"method.recompute_unit", "recompute_unit", R"(\x22zigzag\x22)"}));
  EXPECT_THAT(words_of("plan"),
              IsSupersetOf({"push_order", "rank_to_device", R"(\x22double_tree\x22)"}));
  EXPECT_THAT(words_of("platform"),
              IsSupersetOf({"nodes.links.tcp_mtu", "tcp_mtu", R"(\x22torus\x22)"}));
  EXPECT_THAT(words_of("software"),
              IsSupersetOf({"kernels.fp8", R"(\x22delayed\x22)", R"(\x22epilogue\x22)"}));
  EXPECT_THAT(words_of("model"),
              IsSupersetOf({"qk_norm", R"(\x22geglu\x22)", "rope_scaling.type"}));
  EXPECT_THAT(words_of("faults"), IsSupersetOf({"event.kind", R"(\x22rank_dies\x22)", "spares"}));
  EXPECT_TRUE(words_of("frames").empty());
}

}  // namespace
}  // namespace rehearse::fuzz
