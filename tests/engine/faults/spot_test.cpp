// Traces of spot instances in Bamboo's and SkyPilot's formats become fault traces.
#include "engine/faults/spot.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/names.h"
#include "tests/message_of.h"

namespace rehearse::faults {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> texts(const Trace& trace) {
  std::vector<std::string> out;
  for (const Event& e : trace.events)
    out.push_back(fmt::format("{:g} {} {}", e.at->value, name_of(e.kind), e.node));
  return out;
}

constexpr const char* lines =
    "0,add,a\n0,add,b\n0,add,c\n60000,remove,b\n90000,add,d\n120000,remove,a\n120000,remove,c\n";

TEST(Bamboo, InstancesTakeTheLowestFreeNode) {
  const Trace t = parse_bamboo(lines, "spot.csv", 4);
  EXPECT_THAT(texts(t), ElementsAre("0 node_dies 3", "60 node_dies 1", "90 node_returns 1",
                                    "120 node_dies 0", "120 node_dies 2"));
  EXPECT_EQ(t.duration.value, 120);
  EXPECT_EQ(parse_bamboo(std::string("time_ms,event,node\n") + lines, "spot.csv", 4), t);
}

TEST(Bamboo, NodesAreRentedWhileTheirInstanceIsThere) {
  const Trace t = parse_bamboo(lines, "spot.csv", 4);
  // Node 1 is away from 60 s to 90 s, node 3 always; after 120 s only node 1 is there.
  EXPECT_THAT(spot_seconds(t, 4, Seconds(150)), ElementsAre(120, 120, 120, 0));
  EXPECT_THAT(spot_seconds(t, 4, Seconds(70)), ElementsAre(70, 60, 70, 0));
  Trace failed = t;
  for (Event& e : failed.events) e.cause = "gpu";
  EXPECT_THAT(spot_seconds(failed, 2, Seconds(150)), ElementsAre(150, 150));
}

TEST(Bamboo, InstancesBeyondTheClusterAreLeftOut) {
  EXPECT_THAT(texts(parse_bamboo(lines, "spot.csv", 2)),
              ElementsAre("60 node_dies 1", "90 node_returns 1", "120 node_dies 0"));
}

TEST(Bamboo, WrongFilesAreRefused) {
  const auto error_of = [](const std::string& text) {
    return test::message_of([&] { parse_bamboo(text, "spot.csv", 4); });
  };
  EXPECT_THAT(error_of("0,add\n"), HasSubstr("spot.csv"));
  EXPECT_THAT(error_of("0,add,a\n1,drop,a\n"), HasSubstr("spot.csv:2: \"drop\" must be add or"));
  EXPECT_THAT(error_of("0,add,a\nx,add,b\n"), HasSubstr("spot.csv:2: time_ms \"x\""));
  EXPECT_THAT(error_of("5,add,a\n1,add,b\n"), HasSubstr("before the line above"));
  EXPECT_THAT(error_of("0,add,a\n1,add,a\n"), HasSubstr("added twice"));
  EXPECT_THAT(error_of("0,remove,a\n"), HasSubstr("was not added"));
}

TEST(SkyPilot, CountsBecomeNodes) {
  const Trace t =
      parse_skypilot(R"({"metadata": {"gap_seconds": 300}, "data": [2, 2, 0, 3, 9]})", "s.json", 4);
  EXPECT_THAT(texts(t), ElementsAre("0 node_dies 3", "0 node_dies 2", "600 node_dies 1",
                                    "600 node_dies 0", "900 node_returns 0", "900 node_returns 1",
                                    "900 node_returns 2", "1200 node_returns 3"));
  EXPECT_EQ(t.duration.value, 1500);
}

TEST(SkyPilot, WrongFilesAreRefused) {
  const auto error_of = [](const std::string& text) {
    return test::message_of([&] { parse_skypilot(text, "s.json", 4); });
  };
  EXPECT_THAT(error_of("[1]"), HasSubstr("s.json: is not a JSON object"));
  EXPECT_THAT(error_of(R"({"data": [1]})"), HasSubstr("metadata.gap_seconds"));
  EXPECT_THAT(error_of(R"({"metadata": {"gap_seconds": 0}, "data": [1]})"), HasSubstr("above 0"));
  EXPECT_THAT(error_of(R"({"metadata": {"gap_seconds": 1}, "data": []})"), HasSubstr("\"data\""));
  EXPECT_THAT(error_of(R"({"metadata": {"gap_seconds": 1}, "data": [1, -1]})"),
              HasSubstr("data[1] = -1"));
}

}  // namespace
}  // namespace rehearse::faults
