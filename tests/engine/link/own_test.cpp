// Values that are each rank's own: what the linker takes, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/errors.h"
#include "engine/link/link.h"
#include "tests/message_of.h"

namespace rehearse::link {
namespace {

using testing::HasSubstr;

const std::string head = R"(rehearse-program 1
method test
mesh pp=1 dp=2 tp=1
world 2
channel dp sequence axes=dp
role worker ranks=0-1
begin worker
lane compute in_order
lane dp in_order
storage W state f32 8 indices=1 versions=1
storage M state f32 8 indices=1 versions=1
storage G buffer f32 8 indices=1 versions=1
storage S value f32 2 indices=1 versions=1
storage N buffer f32 8 indices=1 versions=1
storage H buffer bf16 8 indices=1 versions=1
view W W 0 8
view M M 0 8
view G G 0 8
view S S 0 2
view N N 0 8
view H H 0 8
view half N 0 4
)";
const std::string passes =
    "%0 compute forward s0 n=1 mb=0 param<W@1/own(dp) saved>S after %4@1\n"
    "%1 compute backward s0 n=1 mb=0 param<W@1/own(dp) saved<S grad>G/own(dp)\n";
const std::string update =
    "%2 compute update param+W@1/own(dp) grad<G/own(dp) moment1+M@1/own(dp)\n";
const std::string weigh =
    "%3 compute weigh scale=0.5 source<W/own(dp) target>W/partial(dp) every=4\n";
const std::string sum =
    "%4 dp all_reduce dp source<W/partial(dp) target>W/own(dp) after %3 every=4\n";

std::string refusal(const std::string& ops) {
  return test::message_of<ProgramError>(
      [&] { link(program::parse_program(head + ops + "end\n")); });
}

TEST(OwnValues, LinkWhereTheyAreAveraged) {
  EXPECT_EQ(refusal(passes + update + weigh + sum), "no error");
  const std::string text = head + passes + update + weigh + sum + "end\n";
  EXPECT_THAT(to_text(program::parse_program(text)), HasSubstr("grad<G/own(dp)"));
}

TEST(OwnValues, AreNotReadAsCopies) {
  EXPECT_THAT(refusal("%0 compute forward s0 n=1 mb=0 param<W@1 saved>S after %4@1\n" +
                      passes.substr(passes.find("%1")) + update + weigh + sum),
              HasSubstr("layout mismatch on 'W': a copy is expected, but the last write leaves a "
                        "value of each rank along dp"));
}

TEST(OwnValues, NeedTheWholeMean) {
  const std::string first = "%0 compute forward s0 n=1 mb=0 param<W@1/own(dp) saved>S\n" +
                            passes.substr(passes.find("%1"));
  EXPECT_THAT(refusal(first + update + weigh), HasSubstr("leaves a partial sum over dp"));
  EXPECT_THAT(refusal(passes + update + weigh +
                      "%4 dp all_reduce dp source<W/own(dp) target>W/own(dp) after %3 every=4\n"),
              HasSubstr("an all-reduce turns a partial sum over its group into a copy"));
  EXPECT_THAT(
      refusal(passes + update + "%3 compute weigh scale=0.5 source<W/own(dp) target>N every=4\n" +
              "%4 dp all_reduce dp source<W/partial(dp) target>W/own(dp) every=4\n"),
      HasSubstr("'N' is made of values that are each rank's own, but is stated to be equal "
                "on all of them"));
}

// A write that is overwritten in some steps only is read in the others.
TEST(OwnValues, MayBeOverwrittenInSomeSteps) {
  const auto with = [&](const std::string& when) {
    return refusal(passes + update + "%3 compute weigh source<G/own(dp) target>W/partial(dp)" +
                   when + "\n%4 dp all_reduce dp source<W/partial(dp) target>W/own(dp) after %3" +
                   when + "\n");
  };
  EXPECT_EQ(with(" every=4"), "no error");
  EXPECT_THAT(with(""), HasSubstr("'W' is written and never read"));
}

// In every eighth step, the weights stay partial sums: weigh works, the all-reduce does not.
TEST(OwnValues, HaveTheirLayoutInEveryStep) {
  EXPECT_THAT(
      refusal(passes + update + weigh +
              "%4 dp all_reduce dp source<W/partial(dp) target>W/own(dp) after %3 every=8\n"),
      HasSubstr("layout mismatch on 'W': a value of each rank along dp is expected, but the "
                "last write leaves a partial sum over dp"));
  EXPECT_THAT(
      refusal(passes + update +
              "%3 compute weigh source<W/own(dp) target>N/partial(dp) every=4\n"
              "%4 dp all_reduce dp source<N/partial(dp) target>W/own(dp) after %3 every=2\n"),
      HasSubstr("'N' is read in steps in which nothing writes it"));
}

TEST(OwnValues, AreUpdatedByOwnGradients) {
  EXPECT_THAT(
      refusal(passes + "%2 compute update param+W@1 grad<G/own(dp) moment1+M@1\n" + weigh + sum),
      HasSubstr("an update of weights by a gradient of another layout"));
  EXPECT_THAT(refusal(passes + "%2 compute update param+W@1/own(dp) grad<G/own(dp) moment1+M@1\n" +
                      weigh + sum),
              HasSubstr("'M' is made of values that are each rank's own"));
  EXPECT_THAT(refusal("%0 compute forward s0 n=1 mb=0 param<W@1/own(dp)/partial(dp) saved>S\n"),
              HasSubstr("is each rank's own along an axis along which it is a shard or a partial"));
}

TEST(OwnValues, KernelsTakeEqualSizesInFp32) {
  const auto with = [&](const std::string& kernel) {
    return refusal(passes + update + kernel + sum);
  };
  EXPECT_THAT(with("%3 compute weigh source<half/own(dp) target>W/partial(dp)\n"),
              HasSubstr("'half' has another size than the result"));
  EXPECT_THAT(with("%3 compute weigh source<H/own(dp) target>W/partial(dp)\n"),
              HasSubstr("'H' must be f32"));
  EXPECT_THAT(with("%3 compute drift source<W/own(dp) target>W/partial(dp)\n"),
              HasSubstr("no anchor operand"));
  EXPECT_THAT(with("%3 compute outer_step source<G target>W/own(dp)\n"),
              HasSubstr("no outer_moment operand"));
  EXPECT_THAT(with("%3 compute outer_step momentum=1 source<G target>W/own(dp)\n"),
              HasSubstr("momentum is 1, but must be at least 0 and below 1"));
}

TEST(OwnValues, RotateToOtherRanks) {
  const auto with = [&](const std::string& rotate) {
    return refusal("%0 dp rotate dp " + rotate + " after %4@1 %3@1\n" +
                   "%1 compute forward s0 n=1 mb=0 param<W@1/own(dp) saved>S\n"
                   "%2 compute backward s0 n=1 mb=0 param<W@1/own(dp) saved<S grad>G/own(dp)\n"
                   "%3 compute mix scale=0.5 target+W@1/own(dp) source<N/own(dp) after %0\n"
                   "%4 compute update param+W/own(dp) grad<G/own(dp) moment1+M@1/own(dp)\n");
  };
  const std::string good = "source<W@1/own(dp) target>N/own(dp)";
  EXPECT_EQ(with("distance=1 " + good), "no error");
  EXPECT_THAT(with(good), HasSubstr("distance is 0, but must be above 0 in a rotate"));
  EXPECT_THAT(with("distance=2 " + good),
              HasSubstr("the distance of a rotate among 2 ranks is from 1 to 1"));
  EXPECT_THAT(with("distance=1 source<W@1/own(dp) target>W/own(dp)"),
              HasSubstr("a rotate does not work in place"));
  EXPECT_THAT(with("distance=1 source<W@1/own(dp) target>half/own(dp)"),
              HasSubstr("a rotate receives as much as it sends"));
  EXPECT_THAT(with("distance=1 source<W@1/partial(dp) target>N/partial(dp)"),
              HasSubstr("a rotate brings what is each rank's own along its group to another rank"));
  EXPECT_THAT(refusal(passes + update + weigh +
                      "%4 dp all_reduce dp distance=1 source<W/partial(dp) target>W/own(dp)\n"),
              HasSubstr("distance is 1, but must be above 0 in a rotate, and 0 in other moves"));
}

}  // namespace
}  // namespace rehearse::link
