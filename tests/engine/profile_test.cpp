// Profiles survive their file, interpolate as said, and refuse files they do not understand.
#include "engine/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/errors.h"

namespace rehearse {
namespace {

Profile sample() {
  Profile p;
  p.host = "a machine", p.device_kind = "cpu", p.cores = 2, p.ranks = 2, p.threads_per_rank = 1;
  p.cpu_seconds_per_byte = 1e-10;
  p.segments = {{"gpt2-124m", SegmentKind::mlp, Pass::backward, 2, 128, 1, DType::f32, 0.02},
                {"gpt2-124m", SegmentKind::mlp, Pass::backward, 4, 128, 1, DType::f32, 0.03}};
  p.updates = {{Optimizer::sgd, DType::f32, 1e-9, 1e-6}};
  p.kernels = {{Local::measure, 1e10, 1e-6}};
  p.collectives = {{Move::all_reduce, 2, 1000, 1e-4}, {Move::all_reduce, 2, 3000, 2e-4}};
  p.transfers = {{1000, 1e-5}};
  return p;
}

TEST(Profile, RoundTrip) {
  const std::string json = to_json(sample());
  EXPECT_EQ(to_json(parse_profile(json, "p.json")), json);
}

TEST(Profile, Interpolates) {
  const Profile p = sample();
  auto mlp = [&](int samples, int seq_len) {
    return p.segment_seconds("gpt2-124m", SegmentKind::mlp, Pass::backward, samples, seq_len, 1,
                             DType::f32);
  };
  EXPECT_DOUBLE_EQ(mlp(2, 128).value(), 0.02);
  EXPECT_DOUBLE_EQ(mlp(3, 128).value(), 0.025);
  EXPECT_DOUBLE_EQ(mlp(1, 128).value(), 0.01);
  EXPECT_DOUBLE_EQ(mlp(8, 128).value(), 0.06);
  EXPECT_FALSE(
      p.segment_seconds("gpt2-124m", SegmentKind::mlp, Pass::forward, 2, 128, 1, DType::f32));
  EXPECT_FALSE(p.segment_seconds("other", SegmentKind::mlp, Pass::backward, 2, 128, 1, DType::f32));
  EXPECT_DOUBLE_EQ(p.collective_seconds(Move::all_reduce, 2, 10).value(), 1e-4);
  EXPECT_DOUBLE_EQ(p.collective_seconds(Move::all_reduce, 2, 2000).value(), 1.5e-4);
  EXPECT_DOUBLE_EQ(p.collective_seconds(Move::all_reduce, 2, 6000).value(), 4e-4);
  EXPECT_FALSE(p.collective_seconds(Move::all_reduce, 3, 10));
  EXPECT_DOUBLE_EQ(p.update_seconds(Optimizer::sgd, DType::f32, 1000).value(), 2e-6);
  EXPECT_FALSE(p.update_seconds(Optimizer::adamw, DType::f32, 1000));
}

TEST(Profile, RefusesWhatItDoesNotUnderstand) {
  auto message = [](std::string json, const std::string& from, const std::string& to) {
    const auto at = json.find(from);
    EXPECT_NE(at, std::string::npos);
    json.replace(at, from.size(), to);
    try {
      parse_profile(json, "p.json");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const std::string json = to_json(sample());
  EXPECT_THAT(message(json, "\"profile_version\": 1", "\"profile_version\": 9"),
              testing::AllOf(testing::HasSubstr("p.json"), testing::HasSubstr("9")));
  EXPECT_THAT(message(json, "\"mlp\"", "\"mlpp\""), testing::HasSubstr("did you mean \"mlp\""));
  EXPECT_THAT(message(json, "\"seconds\": 0.02", "\"seconds\": -1"),
              testing::HasSubstr("segments[0]"));
  EXPECT_THAT(message(json, "\"cores\"", "\"core\""), testing::HasSubstr("missing"));
  EXPECT_THAT(message(json, "\"host\"", "\"extra\": 1, \"host\""),
              testing::HasSubstr("unknown key \"extra\""));
  EXPECT_THAT(message(json, "{", "["), testing::HasSubstr("not a profile"));
  EXPECT_THROW(load_profile("no/such/file.json"), InputError);
}

}  // namespace
}  // namespace rehearse
