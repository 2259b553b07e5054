// Config: typed values, overrides, and the error message of every wrong key, value and file.

#include "engine/base/files/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "tests/message_of.h"

namespace rehearse {
namespace {

const char* const sample = R"(# a comment
title = "run"
[method]
name = "ddp"
micro_batches = 4
bucket = "25MB"
density = 0.5
[[nodes]]
count = 2
[[nodes]]
count = 3
)";

void read_all(const Config& c) {
  c.text("title", "");
  const Config m = c.section("method");
  m.text("name", std::nullopt, {"ddp", "zero2"});
  m.integer("micro_batches", 1, at_least(1));
  m.bytes("bucket", Bytes(1), above(0));
  m.number("density", 0.1, between(0, 1));
  m.flag("recompute", false);
  for (const Config& n : c.sections("nodes")) n.integer("count", 1);
  c.section("train").integer("steps", 10);
  c.finish();
}

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return test::message_of([&] { read_all(Config::parse(text, "job.toml", overrides)); });
}

TEST(Config, ReadsTypedValues) {
  const Config c = Config::parse(sample, "job.toml");
  const Config m = c.section("method");
  EXPECT_EQ(c.text("title", ""), "run");
  EXPECT_EQ(m.integer("micro_batches", 1), 4);
  EXPECT_DOUBLE_EQ(m.bytes("bucket", Bytes(1)).value, 25e6);
  EXPECT_DOUBLE_EQ(m.number("density", 0), 0.5);
  EXPECT_DOUBLE_EQ(m.number("micro_batches", 0), 4);
  EXPECT_TRUE(m.flag("recompute", true));
  EXPECT_EQ(m.maybe_integer("pp"), std::nullopt);
  ASSERT_EQ(c.sections("nodes").size(), 2U);
  EXPECT_EQ(c.sections("nodes")[1].integer("count", 0), 3);
  EXPECT_EQ(m.where("bucket"), "job.toml:6");
  EXPECT_EQ(error_of(sample), "no error");
}

TEST(Config, UnknownKeyNamesFileLineAndNearest) {
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\nmicrobatches = 2\n"),
            "job.toml:3: key \"method.microbatches\": unknown; did you mean \"micro_batches\"?");
  EXPECT_EQ(error_of("titel = \"x\"\n[method]\nname = \"ddp\""),
            "job.toml:1: key \"titel\": unknown; did you mean \"title\"?");
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\n[metod]\npp = 2"),
            "job.toml:3: key \"metod\": unknown; did you mean \"method\"?");
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\nsteps = 2"),
            "job.toml:3: key \"method.steps\": unknown; did you mean \"train.steps\"?");
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\n[[nodes]]\ncuont = 2"),
            "job.toml:4: key \"nodes[0].cuont\": unknown; did you mean \"count\"?");
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\n\"a.b\" = 2"),
            "job.toml:1: key \"method.a.b\": unknown; known here: bucket, density, micro_batches, "
            "name, recompute");
}

TEST(Config, WrongTypeRangeUnitAndChoiceSayWhatFits) {
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\nmicro_batches = \"four\""),
            "job.toml:3: key \"method.micro_batches\": 'four' is a string; must be an integer");
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\nmicro_batches = 2.5"),
            "job.toml:3: key \"method.micro_batches\": 2.5 is a number with a fraction; must be an "
            "integer");
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\nmicro_batches = 0"),
            "job.toml:3: key \"method.micro_batches\": 0 is out of range: must be at least 1");
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\ndensity = 1.5"),
            "job.toml:3: key \"method.density\": 1.5 is out of range: must be from 0 to 1");
  EXPECT_EQ(
      error_of("[method]\nname = \"ddp\"\nbucket = \"25Gb/s\""),
      "job.toml:3: key \"method.bucket\": \"25Gb/s\" is not a size in bytes: unit \"Gb/s\" "
      "does not fit; units that fit: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB (b would be bits)");
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\nbucket = 25"),
            "job.toml:3: key \"method.bucket\": \"25\" is not a size in bytes: it has no unit; "
            "units that fit: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB (b would be bits); write it in "
            "quotes");
  EXPECT_EQ(error_of("[method]\nname = \"zero\""),
            "job.toml:2: key \"method.name\": \"zero\" is not one of ddp, zero2; did you mean "
            "\"zero2\"?");
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\nrecompute = 1"),
            "job.toml:3: key \"method.recompute\": 1 is an integer; must be true or false");
  EXPECT_EQ(error_of("method = 3"),
            "job.toml:1: key \"method\": 3 is an integer; must be a table: [method]");
  EXPECT_EQ(error_of("nodes = 3\n[method]\nname = \"ddp\""),
            "job.toml:1: key \"nodes\": 3 is an integer; must be an array of tables: [[nodes]]");
}

TEST(Config, RequiredKeyThatIsMissingOrMisspelt) {
  EXPECT_EQ(error_of("[method]\nkind = 1\npp = 1"),
            "job.toml:1: key \"method.name\": is required and missing; the section has kind, pp");
  EXPECT_EQ(error_of("[method]\na = 1\nb = 1\nc = 1\nd = 1\npp = 1"),
            "job.toml:1: key \"method.name\": is required and missing");
  EXPECT_EQ(error_of(""), "job.toml: key \"method.name\": is required and missing");
  EXPECT_EQ(error_of("[method]\nnmae = \"ddp\""),
            "job.toml:2: key \"method.nmae\": unknown; did you mean \"name\"?");
}

TEST(Config, AMisspeltSectionIsNamedNotTheKeyThatIsMissingWithIt) {
  EXPECT_EQ(error_of("title = \"x\"\n[methods]\nname = \"ddp\""),
            "job.toml:2: key \"methods\": unknown; did you mean \"method\"?");
  EXPECT_EQ(error_of("[something]\nname = \"ddp\""),
            "job.toml: key \"method.name\": is required and missing");
  // If the right section exists too, the misspelt one is just unknown.
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\n[methods]\nname = \"ddp\""),
            "job.toml:3: key \"methods\": unknown; did you mean \"method\"?");
}

TEST(Config, NoTablesAndARangeWithItsUnit) {
  EXPECT_EQ(error_of("[method]\nname = \"ddp\"\n", {"nodes=[]"}), "no error");
  EXPECT_EQ(
      test::message_of([] {
        Config::parse("wait = \"2h\"", "job.toml").seconds("wait", std::nullopt, between(0, 60));
      }),
      "job.toml:1: key \"wait\": '2h' is out of range: must be from 0 to 60 s");
}

TEST(Config, BrokenFiles) {
  EXPECT_THAT(error_of("[method]\nname = \n"), testing::StartsWith("job.toml:2:8: not TOML: "));
  EXPECT_THAT(error_of("a = 1\na = 2\n"), testing::ContainsRegex("^job.toml:2:[0-9]+: not TOML: "));
  EXPECT_EQ(test::message_of([] { Config::load("no/such/file.toml"); }),
            "no/such/file.toml: cannot be read: No such file or directory");
  EXPECT_EQ(test::message_of([] { Config::load("/"); }), "/: cannot be read: Is a directory");
}

TEST(Config, OverridesReplaceAndAdd) {
  const Config c = Config::parse(sample, "job.toml",
                                 {"method.name=zero2", "method.micro_batches=8", "new.key=[1, 2]",
                                  "method.bucket=1MiB", "method.recompute=true", "title=a=b"});
  const Config m = c.section("method");
  EXPECT_EQ(m.text("name", ""), "zero2");
  EXPECT_EQ(m.integer("micro_batches", 1), 8);
  EXPECT_DOUBLE_EQ(m.bytes("bucket", Bytes(1)).value, 1048576);
  EXPECT_TRUE(m.flag("recompute", false));
  EXPECT_EQ(c.section("new").integers("key"), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(c.text("title", ""), "a=b");
}

TEST(Config, OverrideWithoutValueTakesTheKeyOut) {
  const Config c = Config::parse(sample, "job.toml", {"method.bucket=", "train.steps="});
  EXPECT_DOUBLE_EQ(c.section("method").bytes("bucket", Bytes(7)).value, 7);
  EXPECT_FALSE(c.section("method").has("bucket"));
  EXPECT_EQ(c.section("train").integer("steps", 10), 10);
  EXPECT_THAT(error_of(sample, {"method.name="}), testing::HasSubstr("\"method.name\""));
}

TEST(Config, WrongOverridesAreNamed) {
  EXPECT_EQ(error_of(sample, {"method.microbatches=2"}),
            "--set method.microbatches=2: key \"method.microbatches\": unknown; did you mean "
            "\"micro_batches\"?");
  EXPECT_EQ(error_of(sample, {"metod.name=ddp"}),
            "--set metod.name=ddp: key \"metod\": unknown; did you mean \"method\"?");
  EXPECT_EQ(
      error_of(sample, {"method.micro_batches=0"}),
      "--set method.micro_batches=0: key \"method.micro_batches\": 0 is out of range: must be "
      "at least 1");
  EXPECT_EQ(error_of(sample, {"method"}),
            "--set method: must be key.path=value, as in method.pp=2");
  EXPECT_EQ(error_of(sample, {"title.x=1"}),
            "--set title.x=1: key \"title\" of job.toml is not a table");
}

TEST(Config, RemembersWhatWasAskedFor) {
  const Config c = Config::parse(sample, "job.toml");
  read_all(c);
  std::vector<std::string> paths;
  for (const Config::Key& key : c.keys()) paths.push_back(key.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"title", "method.name", "method.micro_batches",
                                             "method.bucket", "method.density", "method.recompute",
                                             "nodes[].count", "train.steps"}));
  EXPECT_EQ(c.keys()[2].fallback, "1");
}

}  // namespace
}  // namespace rehearse
