// Tests the reader of nccl-tests output: the columns of old and new versions, times in place,
// comments and logs between the lines, and lines that are refused.
#include "engine/calibration/nccl_tests.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "engine/base/errors.h"
#include "tests/message_of.h"

namespace rehearse::calibration {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;

const std::string output =
    R"(# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  22718 on       node device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid  22718 on       node device  1 [0x0f] NVIDIA A100-SXM4-40GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    24.53    0.00    0.00      0    24.27    0.00    0.00      0
node:22718:22790 [0] NCCL INFO comm 0x5581 rank 0 nranks 2 - Init COMPLETE
     1048576        262144     float     sum      -1    45.85   22.87   22.87      0    45.40   23.10   23.10      0
   134217728      33554432     float     sum      -1    870.1  154.26  154.26    N/A    868.0  154.63  154.63    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 59.1234
#
)";

TEST(NcclTests, ReadsTheTimesOutOfPlace) {
  ASSERT_TRUE(is_nccl_output(output));
  const NcclOutput found = read_nccl_output(output, "out.txt");
  EXPECT_EQ(found.ranks, 2);
  EXPECT_EQ(found.move, "");
  ASSERT_EQ(found.times.size(), 3U);
  EXPECT_EQ(found.times[0].bytes, 8);
  EXPECT_EQ(found.times[0].line, 10);
  EXPECT_DOUBLE_EQ(found.times[1].seconds, 45.85e-6);
  EXPECT_EQ(found.times[2].bytes, 134217728);
  EXPECT_DOUBLE_EQ(found.times[2].seconds, 870.1e-6);
  EXPECT_EQ(found.times[2].dtype, program::DType::f32);
}

TEST(NcclTests, ReadsOldColumnsAndWhichCollective) {
  const NcclOutput found = read_nccl_output(
      "# Collective test starting: reduce_scatter_perf\n"
      "#       size         count      type   redop     time   algbw   busbw     error\n"
      "           0             0      half     sum     0.10    0.00    0.00     0e+00\n"
      "        1024           512      half     sum    17.10    0.06    0.05     2e-03\n",
      "old.txt");
  EXPECT_EQ(found.move, "reduce_scatter");
  EXPECT_EQ(found.ranks, 0);
  ASSERT_EQ(found.times.size(), 1U);
  EXPECT_EQ(found.times[0].dtype, program::DType::f16);
  EXPECT_DOUBLE_EQ(found.times[0].seconds, 17.1e-6);
}

TEST(NcclTests, MovesHaveTheirNamesHere) {
  for (const auto& [program, move] : {std::pair("alltoall_perf", "all_to_all"),
                                      {"sendrecv_perf", "rotate"},
                                      {"scatter_perf", "scatter"}}) {
    const std::string text = fmt::format(
        "# Collective test starting: {}\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"
        "        1024           256     float    none      -1    28.39    0.04    0.03       0\n",
        program);
    EXPECT_EQ(read_nccl_output(text, "new.txt").move, move);
  }
}

TEST(NcclTests, SkipsTheLabelsOfALauncher) {
  const NcclOutput found = read_nccl_output(
      "[1,1]<stdout>:something else\n"
      "[1,0]<stdout>:#  Rank  0 Group  0 Pid 1 on node device  0 [0x00] NVIDIA H200\n"
      "[1,0]<stdout>:#       size         count      type   redop    root     time   algbw\n"
      "[1,0]<stdout>:        1024            16     float    none      -1    28.39    0.04\n"
      "2048 32 float none -1 99.00 0.04\n",
      "tagged.txt");
  EXPECT_EQ(found.ranks, 1);
  ASSERT_EQ(found.times.size(), 1U);
  EXPECT_DOUBLE_EQ(found.times[0].seconds, 28.39e-6);
}

TEST(NcclTests, LeavesOutTheTimesOfALauncher) {
  for (const auto& [first, second] :
       {std::pair("[2024-05-01 12:00:00] ", "[2024-05-01 12:00:07] "),
        {"2024-05-01T12:00:00.123Z ", "2024-05-01T23:59:59.98+02:00 "},
        {"node-3: [12:00:00] ", "node-3: [12:01:10] "},
        {"1714564800.123456 ", "1714564801.5 "}}) {
    const NcclOutput found = read_nccl_output(
        fmt::format("{0}#  Rank  0 Group  0 Pid 1 on node device  0 [0000:07:00] NVIDIA H200\n"
                    "{0}#       size         count      type   redop    root     time   algbw\n"
                    "{1}        1024            16     float    none      -1    28.39    0.04\n",
                    first, second),
        "stamped.txt");
    EXPECT_EQ(found.ranks, 1) << first;
    ASSERT_EQ(found.times.size(), 1U) << first;
    EXPECT_DOUBLE_EQ(found.times[0].seconds, 28.39e-6) << first;
  }
}

std::string refusal(const std::string& line) {
  const std::string header =
      "#       size         count      type   redop    root     time   algbw   busbw #wrong\n";
  return message_of<InputError>([&] { read_nccl_output(header + line + "\n", "out.txt"); });
}

TEST(NcclTests, RefusesWrongLines) {
  EXPECT_FALSE(is_nccl_output("row,seconds\na,1\n"));
  EXPECT_THAT(refusal("# nothing else"), HasSubstr("out.txt: no line of a size follows"));
  EXPECT_THAT(refusal("1024 256 float sum"),
              AllOf(HasSubstr("out.txt:2: 4 columns"), HasSubstr("\"time\" as its 6th")));
  EXPECT_THAT(refusal("1024 256 float sum -1 fast 0 0 0"),
              HasSubstr("out.txt:2: time = \"fast\" must be a number"));
  EXPECT_THAT(refusal("1024 256 float sum -1 0.0 0 0 0"), HasSubstr("time must be above 0"));
  EXPECT_THAT(refusal("1024 256 double sum -1 9.0 0 0 0"),
              AllOf(HasSubstr("type \"double\""), HasSubstr("float, half and bfloat16")));
  EXPECT_THAT(refusal("1024 256 float sum -1 9.0 0 0 17"),
              AllOf(HasSubstr("#wrong = 17"), HasSubstr("wrong results")));
}

}  // namespace
}  // namespace rehearse::calibration
