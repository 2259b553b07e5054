// A manifest survives writing and reading, and every change to it is refused.

#include "runtime/checkpoints/files/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace rehearse::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* path = "out/step-00000004/manifest.json";

Manifest small() {
  Manifest m{.step = 4,
             .skipped_updates = 1,
             .own_steps = {std::nullopt, 6},
             .method = "ps-ssp",
             .model = "gpt-tiny",
             .mesh = {{.name = "pp", .size = 1}, {.name = "dp", .size = 2}},
             .world_size = 2,
             .program_hash = 0x0123456789abcdef,
             .seed = ~std::uint64_t{0},
             .global_batch = 8,
             .seq_len = 16,
             .record = {.placements = 1, .plan = "version = 1\n[plan]\n"},
             .base = BaseRecord{.step = 2,
                                .checksum = 0xab,
                                .bits = 8,
                                .changed = 0.1,
                                .error = 1e-9,
                                .relative_error = 0.015625},
             .shards = {}};
  for (Id rank = 0; rank < 2; ++rank)
    m.shards.push_back({.file = shard_name(rank),
                        .sum = {.bytes = 1000 + rank, .checksum = 0xfedcba9876543210 + rank},
                        .parts = {{.kind = tensors::StorageKind::param,
                                   .age = 1,
                                   .tensor = "transformer.wte.weight",
                                   .copy = 0,
                                   .tp_rank = static_cast<int>(rank),
                                   .tp_size = 2,
                                   .begin = 0,
                                   .end = 256}}});
  return m;
}

TEST(Manifest, ComesBackAsItWas) {
  const std::string text = to_text(small());
  const Manifest m = parse_manifest(text, path);
  EXPECT_EQ(to_text(m), text);
  EXPECT_EQ(m.own_steps, small().own_steps);
  EXPECT_EQ(m.seed, small().seed);
  ASSERT_TRUE(m.base);
  EXPECT_EQ(m.base->checksum, 0xabU);
  EXPECT_EQ(m.base->error, 1e-9);
  EXPECT_EQ(m.checksum, checksum_in(text));
  Manifest whole = small();
  whole.base.reset();
  EXPECT_FALSE(parse_manifest(to_text(whole), path).base);
  ASSERT_EQ(m.shards.size(), 2U);
  EXPECT_EQ(m.shards[1].parts, small().shards[1].parts);
  EXPECT_EQ(m.shards[1].sum.checksum, small().shards[1].sum.checksum);
}

TEST(Manifest, EveryFlippedBitIsRefusedByName) {
  const std::string good = to_text(small());
  for (std::size_t at = 0; at < good.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      EXPECT_THAT(test::message_of([&] { parse_manifest(bad, path); }),
                  AllOf(StartsWith(path), HasSubstr("damaged")))
          << "byte " << at << ", bit " << bit;
    }
}

TEST(Manifest, EveryLengthIsRefusedByName) {
  const std::string good = to_text(small());
  for (std::size_t length = 0; length < good.size(); ++length)
    EXPECT_THAT(test::message_of([&] { parse_manifest(good.substr(0, length), path); }),
                AllOf(StartsWith(path), HasSubstr("damaged")))
        << length;
  EXPECT_THAT(test::message_of([&] { parse_manifest(good + "\n", path); }), StartsWith(path));
}

TEST(Manifest, AnOlderVersionIsNamed) {
  EXPECT_THAT(test::message_of([] {
                parse_manifest(R"({"format": "rehearse-checkpoint", "version": 1, "step": 4})",
                               path);
              }),
              AllOf(StartsWith(path), HasSubstr("version 1"), HasSubstr("version 2 only")));
}

struct Impossible {
  std::string what, from, to, says;
};
class Values : public testing::TestWithParam<Impossible> {};

// Values that a person or a wrong program writes, not damage: the checksum is not checked here.
TEST_P(Values, OutOfRangeAreRefusedByName) {
  const auto& [what, from, to, says] = GetParam();
  std::string text = to_text(small());
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, from.size(), to);
  EXPECT_THAT(test::message_of([&] { parse_manifest_content(text, path); }),
              AllOf(StartsWith(path), HasSubstr(says)));
}
INSTANTIATE_TEST_SUITE_P(
    Manifest, Values,
    testing::Values(
        Impossible{"later_version", "\"version\": 2", "\"version\": 9", "format version 9"},
        Impossible{"format", "rehearse-checkpoint", "rehearse-checkpoints", "not a checkpoint"},
        Impossible{"step", "\"step\": 4", "\"step\": 4611686018427387904", "\"step\" ="},
        Impossible{"negative_step", "\"step\": 4", "\"step\": -4", "\"step\" ="},
        Impossible{"fraction", "\"step\": 4", "\"step\": 4.0", "\"step\" ="},
        Impossible{"text_for_number", "\"step\": 4", "\"step\": \"4\"", "\"step\" ="},
        Impossible{"skipped", "\"skipped_updates\": 1", "\"skipped_updates\": -1",
                   "\"skipped_updates\" ="},
        Impossible{"own_step", "  6\n", "  4611686018427387904\n", "\"own_steps\" ="},
        Impossible{"own_steps_of_fewer", "  null,\n", "", "\"own_steps\" must be a list of 2"},
        Impossible{"world", "\"world_size\": 2", "\"world_size\": 0", "\"world_size\" ="},
        Impossible{"large_world", "\"world_size\": 2", "\"world_size\": 99999999",
                   "\"world_size\""},
        Impossible{"mesh", "\"size\": 2", "\"size\": 3", "\"size\" = 3"},
        Impossible{"method", "ps-ssp", "", "\"method\" is empty"},
        Impossible{"hash", "0123456789abcdef", "0123456789abcdeg", "\"program_hash\" ="},
        Impossible{"seed", "18446744073709551615", "18446744073709551616", "\"seed\" ="},
        Impossible{"batch", "\"global_batch\": 8", "\"global_batch\": 0", "\"global_batch\" ="},
        Impossible{"length", "\"seq_len\": 16", "\"seq_len\": 4294967312", "\"seq_len\" ="},
        Impossible{"placements", "\"placements\": 1", "\"placements\": 0", "there is a plan"},
        Impossible{"base_step", "  \"step\": 2", "  \"step\": 4",
                   "base: \"step\" = 4: must be before 4"},
        Impossible{"base_checksum", "00000000000000ab", "ab", "base: \"checksum\" ="},
        Impossible{"base_bits", "\"bits\": 8", "\"bits\": 64", "base: \"bits\" ="},
        Impossible{"base_error", "\"error\": 1e-09", "\"error\": -1", "base: \"error\" ="},
        Impossible{"base_key", "\"changed\"", "\"change\"", "base: \"changed\" is missing"},
        Impossible{"folder", "rank-00001.safetensors", "../../rank-00001.safetensors", "shards[1]"},
        Impossible{"foreign_rank", "rank-00001.safetensors", "rank-00002.safetensors",
                   "of 2 ranks"},
        Impossible{"twice", "rank-00001.safetensors", "rank-00000.safetensors", "each once"},
        Impossible{"bytes", "\"bytes\": 1001", "\"bytes\": 7", "\"bytes\" ="},
        Impossible{"checksum", "fedcba9876543210", "FEDCBA9876543210", "\"checksum\" ="},
        Impossible{"kind", "\"kind\": \"param\"", "\"kind\": \"params\"", "\"kind\" ="},
        Impossible{"age", "\"age\": 1", "\"age\": 0", "\"age\" ="},
        Impossible{"copy", "\"copy\": 0", "\"copy\": 2", "\"copy\" ="},
        Impossible{"tensor", "transformer.wte.weight", "", "\"tensor\" is empty"},
        Impossible{"tp_rank", "\"tp_rank\": 1", "\"tp_rank\": 2", "\"tp_rank\" ="},
        Impossible{"tp_size", "\"tp_size\": 2", "\"tp_size\": 3", "\"tp_size\" ="},
        Impossible{"begin", "\"begin\": 0", "\"begin\": 256", "\"begin\" ="},
        Impossible{"end", "\"end\": 256", "\"end\": 9223372036854775807", "\"end\" ="},
        Impossible{"unknown_key", "\"method\"", "\"methods\"", "\"method\" is missing"},
        Impossible{"not_json", "\"mesh\": [", "\"mesh\": ", "not JSON"}),
    [](const auto& info) { return info.param.what; });

}  // namespace
}  // namespace rehearse::runtime
