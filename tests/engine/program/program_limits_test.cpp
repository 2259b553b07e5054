// Limits of programs: numbers fit into their fields, and malformed texts are refused with their
// line, before anything of a stated size is allocated.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/link/link.h"
#include "engine/methods/strategy.h"
#include "tests/engine/rig.h"
#include "tests/message_of.h"

namespace rehearse::program {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Narrow, RefusesWhatDoesNotFit) {
  int age = 255, index = 65535;
  EXPECT_EQ((Ref{.index = index, .age = age}.age), 255);
  EXPECT_EQ((Ref{.index = index, .age = age}.index), 65535);
  ++age, ++index;
  EXPECT_THAT(test::message_of<ProgramError>([&] { Ref{.age = age}; }),
              HasSubstr("an age is 256, but must be from 0 to 255"));
  EXPECT_THAT(test::message_of<ProgramError>([&] { Ref{.index = index}; }), HasSubstr("65536"));
  const int before = -1;
  EXPECT_THAT(test::message_of<ProgramError>([&] { Ref{.age = before}; }), HasSubstr("is -1"));
  EXPECT_THAT(test::message_of<ProgramError>([&] { After{.op = 0, .lag = before}; }),
              HasSubstr("a wait"));
  EXPECT_THAT(test::message_of<ProgramError>([&] { Op{.shift = age}; }), HasSubstr("a shift"));
  EXPECT_THAT(
      test::message_of<ProgramError>([] { narrow<int>(std::int64_t{1} << 31, "a stride"); }),
      HasSubstr("a stride is 2147483648"));
}

/// The text of a program of one role; `world` holds its mesh, world, channel and role lines.
std::string text_of(const std::string& world, const std::string& tables, const std::string& ops) {
  return "rehearse-program 1\nmethod test\n" + world + "\nbegin worker\nlane compute in_order\n" +
         tables + ops + "end\n";
}
const std::string two = "mesh dp=2\nworld 2\nrole worker ranks=0-1";
const std::string weight = "storage W state f32 8 indices=1 versions=1\nview W W 0 8\n";

std::string refusal(const std::string& text) {
  return test::message_of<ProgramError>([&] { link::link(parse_program(text)); });
}

// A role with rounds is one that a rank can give up: see check_rounds.
TEST(ProgramText, RefusesRoundsThatARankCannotGiveUp) {
  const std::string rounds = "mesh dp=2\nworld 2\nrole worker ranks=0-1 round=3 deadline=";
  const std::string ops =
      "%0 compute weigh source<W@1/own(dp) target>W/own(dp)\n"
      "%1 compute in_time target>s/partial(dp) every=3\n"
      "%2 compute mix source<s/partial(dp) target+t@1/own(dp) every=3\n";
  const auto with = [&](const std::string& world, const std::string& these,
                        const std::string& lanes = "") {
    return refusal(text_of(world,
                           lanes + weight +
                               "storage s buffer f32 1 indices=1 versions=1\nview s s 0 1\n"
                               "storage t state f32 1 indices=1 versions=1\nview t t 0 1\n",
                           these));
  };
  EXPECT_EQ(with(rounds + "0.5", ops), "no error");
  const auto other = [&](const std::string& from, const std::string& to) {
    std::string changed = ops;
    return changed.replace(changed.find(from), from.size(), to);
  };
  EXPECT_THAT(with(rounds + "0", ops), HasSubstr("a deadline above 0 s, not 3 steps and 0 s"));
  EXPECT_THAT(with("mesh dp=2\nworld 2\nrole worker ranks=0-1 round=0 deadline=1", ops),
              HasSubstr("line 5"));
  EXPECT_THAT(with("mesh dp=2\nworld 2\nrole worker ranks=0-1 round=3", ops), HasSubstr("line 5"));
  EXPECT_THAT(with(two, ops), HasSubstr("in_time needs a role with rounds"));
  EXPECT_THAT(
      with("mesh dp=2\nworld 2\nrole worker ranks=0-1 free_running round=3 deadline=1", ops),
      HasSubstr("a free-running role has no rounds"));
  EXPECT_THAT(with(rounds + "1", ops + "%3 compute copy source<W target>W every=2\n"),
              HasSubstr("at the end of a round only"));
  for (const char* when : {"every=2", ""})
    EXPECT_THAT(with(rounds + "1", other("every=3", when)), HasSubstr("of a round on their lane"));
  EXPECT_THAT(with(rounds + "1", other("every=3", "shift=1 every=3")), HasSubstr("the same step"));
  EXPECT_THAT(with(rounds + "1", other("%1 compute", "%1 side"), "lane side in_order\n"),
              HasSubstr("in_time follows the passes"));
  EXPECT_THAT(with(rounds + "1", other("target>s", "target>W")),
              HasSubstr("the target of in_time is one f32"));
}

TEST(ProgramText, RefusesOperandsThatAreNoneOfASecureSum) {
  const auto with = [](const std::string& secure, const std::string& op) {
    const std::string storages =
        "storage n state f32 4 indices=1 versions=1\nview n n 0 4\n"
        "storage m state f32 5 indices=1 versions=1\nview m m 0 5\n"
        "storage l state i32 4 indices=1 versions=1\nview l l 0 4\n"
        "storage b state u8 9 indices=1 versions=1\nview b b 0 9\n";
    return refusal(text_of("mesh dp=2\nworld 2\n" + secure + "role worker ranks=0-1", storages,
                           "%0 compute " + op + "\n"));
  };
  const std::string good = "secure neighbours=2 threshold=2 range=8 levels=257\n";
  EXPECT_THAT(with("", "mask source<n@1 message<b@1 target>l"),
              HasSubstr("the program says no secure sum"));
  EXPECT_THAT(with(good, "mask source<n@1 target>l"), HasSubstr("no message operand"));
  EXPECT_THAT(with(good, "mask source<n@1 message<b@1 target>n"), HasSubstr("'n' must be i32"));
  EXPECT_THAT(with(good, "mask source<m@1 message<b@1 target>l"),
              HasSubstr("as many levels as numbers"));
  EXPECT_THAT(with(good, "unmask source<n@1 message<b@1 target>n"), HasSubstr("'n' must be i32"));
  EXPECT_THAT(with(good, "tell_stayed source<n@1 target>b"), HasSubstr("'n' must be i32"));
  EXPECT_THAT(with(good, "advertise target>l"), HasSubstr("'l' must be u8"));
  EXPECT_THAT(with(good + good, "advertise target>b"), HasSubstr("the secure sum is said once"));
  EXPECT_THAT(with("secure neighbours=2 threshold=4 range=8 levels=257\n", "advertise target>b"),
              HasSubstr("line 5"));
  EXPECT_THAT(with("secure neighbours=2 threshold=2 range=-1 levels=257\n", "advertise target>b"),
              HasSubstr("range must be above 0"));
}

// Fuzzing found these texts: they once led to SIGSEGV, 4.4 GB of memory, or endless loops.
TEST(ProgramText, RefusesCountsAndRangesByTheirLine) {
  const auto refuses = [](const std::string& world, const std::string& line,
                          const std::string& why) {
    EXPECT_THAT(refusal(text_of(world, weight, "")),
                AllOf(HasSubstr("line " + line), HasSubstr(why)))
        << world;
  };
  refuses("mesh dp=64\nworld 4\nrole worker ranks=0-3", "4", "dp=64: the mesh must have");
  refuses("mesh a=65536 b=65536\nworld 4\nrole worker ranks=0-3", "4",
          "a=65536: the mesh must have");
  refuses("mesh dp=0\nworld 1\nrole worker ranks=0", "3", "must be from 1 to 1048576");
  refuses("mesh dp=1\nworld 2147483647\nrole worker ranks=0", "4", "must be from 1 to 1048576");
  refuses("mesh dp=2\nworld 2\nrole worker ranks=0-4294967294", "5", "makes more than 2");
  refuses("mesh dp=2\nworld 2\nrole worker ranks=0-1\nrole other ranks=0", "6",
          "makes more than 0");
  refuses("mesh dp=2\nworld 2\nrole worker ranks=1-0", "5", "0 is out of range");
  refuses(
      "mesh dp=2\nworld 2\nchannel c sequence axes=g3 colour=0-2147483648,0-1\nrole worker "
      "ranks=0-1",
      "5", "makes more than 2");
  refuses("mesh dp=2\nworld 2\nchannel c sequence axes=g3 colour=0\nrole worker ranks=0-1", "5",
          "1 colours for 2 ranks");
  refuses("mesh dp=2\nworld 2\nchannel c sequence axes=dp colour=0,0\nrole worker ranks=0-1", "5",
          "a bit of its own");
  refuses("mesh dp=2\nworld 2\nchannel c sequence axes=g9\nrole worker ranks=0-1", "5",
          "g9 is no axis");
  refuses("mesh dp=2\nworld 2\nchannel c sequence axes=g32\nrole worker ranks=0-1", "5",
          "must be from 1 to 31");
  refuses("role worker ranks=0-1\nmesh dp=2\nworld 2", "3", "the world is to be said before");
  refuses("mesh dp=2\nworld 2\nrole worker ranks=0\nrole worker ranks=1", "6", "second role");
}

TEST(ProgramText, HasOnlyPrintableAscii) {
  // Found by the fuzzer: such a name could not be printed as JSON.
  EXPECT_EQ(test::message_of<ProgramError>(
                [] { parse_program("rehearse-program 1\nmethod a\xC0\x01\n"); }),
            "program text, line 2: byte 0xC0 in column 9; only printable ASCII\n  method a??");
}

TEST(ProgramText, NeedsAWorld) {
  EXPECT_THAT(
      test::message_of<ProgramError>([] { parse_program("rehearse-program 1\nmethod test\n"); }),
      HasSubstr("no line 'world RANKS'"));
}

TEST(ProgramText, NeedsAMethod) {
  EXPECT_THAT(
      test::message_of<ProgramError>([] { parse_program("rehearse-program 1\nworld 2\n"); }),
      HasSubstr("no line 'method NAME'"));
}

TEST(ProgramText, RefusesImpossibleTablesByTheirLine) {
  const auto refuses = [](const std::string& tables, const std::string& why) {
    EXPECT_THAT(refusal(text_of(two, tables, "")), AllOf(HasSubstr("line 8"), HasSubstr(why)))
        << tables;
  };
  const auto storage = [](const std::string& counts) { return "storage S " + counts + "\n"; };
  refuses(storage("state f32 8 indices=2147483647 versions=1"), "impossible counts");
  refuses(storage("state f32 8 indices=1 versions=2147483647"), "impossible counts");
  refuses(storage("state f32 8 indices=0 versions=1"), "impossible counts");
  refuses(storage("state f32 9223372036854775807 indices=1 versions=1"), "impossible counts");
  refuses(storage("state f32 4503599627370496 indices=2 versions=1"), "impossible counts");
  refuses(storage("state f32 -1 indices=1 versions=1"), "impossible counts");
  refuses(storage("state f32 99999999999999999999 indices=1 versions=1"), "is out of range");
  refuses(storage("state f32 8 indices=1 versions=1 more"), "unexpected 'more'");
  EXPECT_THAT(
      refusal(text_of(two, storage("state f32 8 indices=1 versions=1") + "view S S 0 9\n", "")),
      AllOf(HasSubstr("line 9"), HasSubstr("[0, 9) of 'S'")));
}

TEST(ProgramText, RefusesImpossibleOpsByTheirLine) {
  const auto refuses = [](const std::string& op, const std::string& why) {
    EXPECT_THAT(refusal(text_of(two, weight, op + "\n")),
                AllOf(HasSubstr("line 10"), HasSubstr(why)))
        << op;
  };
  refuses("%0 compute forward s0 n=1 mb=2147483647 param<W", "mb is 2147483647");
  refuses("%0 compute forward s0 n=1 mb=-1 param<W", "mb is -1");
  refuses("%0 compute forward s0 n=0 mb=0 param<W", "n is 0");
  refuses("%0 compute forward s0 n=1 mb=0 param<W#1", "index 1 of 'W', which has 1");
  refuses("%0 compute forward s0 n=1 mb=0 param<W@256", "from 0 to 255");
  refuses("%0 compute select of=4 keep=5 source<W", "keep is 5");
  refuses("%0 compute observe stride=0 source<W target+W@1", "stride is 0");
  refuses("%0 compute measure scale=nan source<W", "nan is out of range");
  refuses("%0 compute update param+W@1 grad<W after %7", "waits for %7, of 1 ops");
  refuses("%0 compute update param+W@1 grad<W after %0@300", "from 0 to 255");
  refuses("%0 compute update param+W@1 grad<W shift=200", "from 0 to 15");
}

TEST(ProgramText, RefusesMoreInstancesThanOpsName) {
  EXPECT_THAT(refusal(text_of(two, "storage W state f32 8 indices=60000 versions=1\nview W W 0 8\n",
                              "%0 compute cast source<W@1 target>W\n")),
              HasSubstr("60000 instances, but ops name it 2 times"));
}

TEST(ProgramText, RefusesASecondOfAName) {
  EXPECT_THAT(refusal(text_of(two, weight + weight, "")),
              HasSubstr("the second storage named 'W'"));
  EXPECT_THAT(refusal(text_of(two, weight, "") + "begin worker\nend\n"), HasSubstr("begins twice"));
  EXPECT_THAT(refusal("rehearse-program 1\n" + two + "\nbegin worker\n"),
              HasSubstr("has no 'end'"));
}

// Time and memory are proportional to the world size, not to ranks x ops.
TEST(ProgramText, IsReadAndLinkedForAMillionRanks) {
  std::string ops = "%0 compute cast source<W@1 target>G/partial(dp)\n";
  const int reductions = 400;
  for (int i = 0; i < reductions; ++i)
    ops += fmt::format(
        "%{} compute all_reduce dp source<G/partial(dp) target>G\n%{} compute cast source<G "
        "target>G/partial(dp)\n",
        2 * i + 1, 2 * i + 2);
  ops += fmt::format(
      "%{0} compute all_reduce dp source<G/partial(dp) target>G\n%{1} compute update param+W@1 "
      "grad<G\n",
      2 * reductions + 1, 2 * reductions + 2);
  const link::LinkedProgram linked = link::link(parse_program(text_of(
      "mesh dp=1048576\nworld 1048576\nchannel dp sequence axes=dp\nrole worker ranks=0-1048575",
      weight + "storage G buffer f32 8 indices=1 versions=1\nview G G 0 8\n", ops)));
  EXPECT_EQ(linked.role_of.size(), 1U << 20);
  EXPECT_EQ(linked.events.size(), 2 * reductions + 3U);
}

// The largest allowed number of colours, all of them different.
TEST(ProgramText, GroupsAMillionRanksByColour) {
  std::string channels, ops = "%0 compute cast source<W@1 target>G\n";
  for (int c = 0; c < 4; ++c) {
    channels += fmt::format("channel c{} sequence axes=g1 colour=1000000-2048575\n", c);
    ops += fmt::format("%{} compute broadcast c{} root=worker source<G target>G\n", c + 1, c);
  }
  const auto text = [&](const std::string& more) {
    return text_of("mesh dp=1\nworld 1048576\n" + channels + more + "role worker ranks=0-1048575",
                   weight + "storage G buffer f32 8 indices=1 versions=1\nview G G 0 8\n",
                   ops + "%5 compute update param+W@1 grad<G\n");
  };
  EXPECT_EQ(link::link(parse_program(text(""))).events.size(), 6U);
  EXPECT_THAT(refusal(text("channel more sequence axes=g1 colour=0-1048575\n")),
              HasSubstr("more than 4194304 colours"));
}

// Each server has its own group. All these groups share one bit of Axes: it has only 29 to spare.
TEST(Strategies, HaveAsManyServersAsShards) {
  const plan::Plan plan{.method = "ps-sync",
                        .mesh = {.dp = 2, .servers = 40},
                        .schedule = {.global_batch = 2},
                        .exchange = {.bucket = Bytes(1)}};
  const link::LinkedProgram linked = link::link(methods::compile(plan, test::small_model(40)));
  EXPECT_EQ(linked.program.roles.size(), 41U);
}

TEST(Strategies, RefuseCountsThatNoWaitOrIndexHolds) {
  const auto refusal = [](const plan::Plan& plan) {
    return test::message_of<InputError>([&] { methods::compile(plan, test::small_model(2)); });
  };
  EXPECT_THAT(refusal({.method = "ps-ssp",
                       .mesh = {.dp = 2, .servers = 1},
                       .schedule = {.global_batch = 2, .staleness = 300}}),
              AllOf(HasSubstr("method.staleness: 300"), HasSubstr("at most 254")));
  EXPECT_THAT(
      refusal({.method = "ddp", .schedule = {.global_batch = 40000, .micro_batches = 40000}}),
      AllOf(HasSubstr("method.micro_batches: 40000"), HasSubstr("at most 32768")));
}

}  // namespace
}  // namespace rehearse::program
