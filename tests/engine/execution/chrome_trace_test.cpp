// The trace file as a viewer reads it: names that group, args that tell ops apart, arrows with two
// ends, lanes in their order, time from 0.

#include "engine/execution/trace/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "engine/base/errors.h"
#include "tests/engine/rig.h"

namespace rehearse::execution {
namespace {

using nlohmann::json;
using testing::IsSubsetOf;

/// The file of two steps in the midst of a run.
class TraceOf {
 public:
  TraceOf(const plan::Plan& plan, int layers, int ranks, TraceSelection selection)
      : rig(plan, test::small_model(layers),
            test::star(ranks, BytesPerSecond(1e9), Seconds(1e-6))) {
    const std::string path = testing::TempDir() + "rehearse_trace_" +
                             testing::UnitTest::GetInstance()->current_test_info()->name();
    ChromeTrace trace(path, rig.linked, rig.model, std::move(selection));
    Tee both({&recording, &trace});
    rig.run(both, 4);
    trace.close();
    std::ifstream in(path);
    json file = json::parse(in);
    for (json& event : file.at("traceEvents"))
      (event.at("ph") == "X"   ? slices
       : event.at("ph") == "M" ? names
                               : arrows)
          .push_back(std::move(event));
    std::remove(path.c_str());
  }

  /// The slice of a rank's lane that begins at a time.
  const json* at(const json& arrow) const {
    for (const json& slice : slices)
      if (slice.at("pid") == arrow.at("pid") && slice.at("tid") == arrow.at("tid") &&
          slice.at("ts") == arrow.at("ts"))
        return &slice;
    return nullptr;
  }

  test::Rig rig;
  Recording recording;
  std::vector<json> slices, names, arrows;
};

const plan::Plan pipeline = test::plan_of("1f1b", 2, 2, 1, 2);

TEST(ChromeTrace, HoldsTheSelectedOpsFromTimeZero) {
  const TraceOf trace(pipeline, 2, 4, {.ranks = {0, 3}, .first_step = 1, .last_step = 2});
  std::map<std::tuple<Id, int, Id>, json> events;
  for (const json& e : trace.slices)
    events[{e.at("pid"), e.at("args").at("step"), e.at("args").at("op")}] = e;
  std::vector<Interval> selected;
  for (const Interval& i : trace.recording.intervals) {
    const Id rank = trace.rig.linked.program.roles[i.role].ranks[i.place];
    if ((rank == 0 || rank == 3) && i.step >= 1 && i.step <= 2) selected.push_back(i);
  }
  ASSERT_FALSE(selected.empty());
  EXPECT_EQ(events.size(), selected.size());
  const double origin = std::ranges::min(selected, {}, &Interval::start).start;
  EXPECT_GT(origin, 0);
  for (const Interval& i : selected) {
    const program::Role& role = trace.rig.linked.program.roles[i.role];
    const json& event = events.at({role.ranks[i.place], i.step, i.op});
    EXPECT_EQ(event.at("tid"), role.ops[i.op].lane);
    EXPECT_EQ(event.at("cat"), kind_of(role.ops[i.op].work));
    EXPECT_EQ(event.at("args").at("line"), to_text(trace.rig.linked.program, role, i.op));
    EXPECT_NEAR(event.at("ts"), (i.start - origin) * 1e6, 2e-3);
    EXPECT_NEAR(event.at("dur"), (i.end - i.start) * 1e6, 2e-3);
  }
}

std::set<std::string> expected_args(const std::string& kind) {
  if (kind == "compute")
    return {"step", "op", "stage", "line", "segment", "micro_batch", "samples"};
  if (kind == "collective")
    return {"step", "op", "stage", "line", "bytes", "channel", "group", "payload"};
  if (kind == "send" || kind == "recv")
    return {"step",  "op",      "stage", "line",    "bytes",      "channel",
            "group", "payload", "peer",  "segment", "micro_batch"};
  return {"step", "op", "stage", "line"};
}

TEST(ChromeTrace, NamesGroupAndArgsTellApart) {
  const TraceOf trace(pipeline, 4, 4, {});
  std::set<std::string> names;
  for (const json& slice : trace.slices) {
    names.insert(slice.at("name"));
    const json& args = slice.at("args");
    std::set<std::string> keys;
    for (const auto& [key, value] : args.items()) keys.insert(key);
    EXPECT_THAT(expected_args(slice.at("cat")), IsSubsetOf(keys)) << slice;
    EXPECT_EQ(args.at("stage"), slice.at("pid").get<int>() / 2) << slice;
  }
  EXPECT_LE(names.size(), 12U);
  EXPECT_TRUE(names.contains("forward attention"));
  EXPECT_TRUE(names.contains("backward mlp"));
  EXPECT_TRUE(names.contains("all-reduce"));
}

TEST(ChromeTrace, ArrowsLeadFromSliceToSlice) {
  const TraceOf trace(pipeline, 2, 4, {});
  std::map<std::int64_t, std::vector<json>> by_id;
  for (const json& arrow : trace.arrows) by_id[arrow.at("id")].push_back(arrow);
  std::map<std::pair<std::string, int>, int> messages;  // (sends that an arrow leaves, step)
  int collectives = 0, waits = 0;
  for (const auto& [id, ends] : by_id) {
    ASSERT_GE(ends.size(), 2U);
    std::vector<const json*> slices;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      EXPECT_EQ(ends[i].at("ph"), i == 0 ? "s" : i + 1 == ends.size() ? "f" : "t") << id;
      slices.push_back(trace.at(ends[i]));
      ASSERT_NE(slices.back(), nullptr) << ends[i];
    }
    const json &from = *slices.front(), &to = *slices.back();
    if (ends[0].at("cat") == "after") {
      ++waits;
      EXPECT_EQ(from.at("pid"), to.at("pid"));
      EXPECT_NE(from.at("tid"), to.at("tid"));
    } else if (from.at("name") == "send") {
      EXPECT_EQ(to.at("name"), "recv");
      EXPECT_EQ(from.at("args").at("group"), to.at("args").at("group"));
      EXPECT_EQ(from.at("args").at("step"), to.at("args").at("step"));
      EXPECT_EQ(from.at("args").at("micro_batch"), to.at("args").at("micro_batch"));
      ++messages[{"send", from.at("args").at("step")}];
    } else {
      EXPECT_EQ(from.at("name"), to.at("name"));
      EXPECT_EQ(slices.size(), from.at("args").at("group").size());
      ++collectives;
    }
  }
  std::map<std::pair<std::string, int>, int> sends;
  int reductions = 0;
  for (const json& slice : trace.slices) {
    if (slice.at("name") == "send") ++sends[{"send", slice.at("args").at("step")}];
    reductions += slice.at("cat") == "collective";
  }
  EXPECT_EQ(messages, sends);
  EXPECT_FALSE(sends.empty());
  EXPECT_EQ(collectives, reductions / 2);
  EXPECT_GT(waits, 0);
}

TEST(ChromeTrace, RanksAndLanesStandInTheirOrder) {
  const TraceOf trace(pipeline, 2, 4, {.ranks = {0, 3}});
  std::map<std::string, int> said;
  for (const json& name : trace.names) {
    ++said[name.at("name")];
    if (name.at("args").contains("sort_index")) {
      const char* const what = name.at("name") == "process_sort_index" ? "pid" : "tid";
      EXPECT_EQ(name.at("args").at("sort_index"), name.at(what)) << name;
    }
  }
  const auto& roles = trace.rig.linked.program.roles;
  const auto lanes = static_cast<int>(roles[0].lanes.size() + roles[1].lanes.size());
  EXPECT_EQ(said, (std::map<std::string, int>{{"process_name", 2},
                                              {"process_sort_index", 2},
                                              {"thread_name", lanes},
                                              {"thread_sort_index", lanes}}));
}

TEST(ChromeTrace, SaysWhenItCannotWrite) {
  const test::Rig rig(test::plan_of("ddp", 1, 2, 1, 1), test::small_model(2), test::fast(2));
  EXPECT_THROW(ChromeTrace("no/such/folder/trace.json", rig.linked, rig.model), BackendError);
  ChromeTrace trace("/dev/full", rig.linked, rig.model);
  rig.run(trace, 50);
  EXPECT_THROW(trace.close(), BackendError);
}

}  // namespace
}  // namespace rehearse::execution
