// What the linker refuses, with its messages, and the memory that it plans. Each test has a program
// of a few ops.
#include "engine/link/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/methods/passes/passes.h"
#include "tests/message_of.h"

namespace rehearse::link {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string head = R"(rehearse-program 1
method test
mesh pp=1 dp=2 tp=1
world 2
channel dp sequence axes=dp
channel norm sequence axes=dp
role worker ranks=0-1
begin worker
lane compute in_order
lane dp in_order
lane norm in_order
storage W state f32 8 indices=1 versions=1
storage M state f32 8 indices=1 versions=1
storage G buffer f32 8 indices=1 versions=1
storage S value f32 2 indices=1 versions=1
storage K state f32 8 indices=1 versions=1
view W W 0 8
view M M 0 8
view G G 0 8
view S S 0 2
view K K 0 8
)";
const std::string forward = "%0 compute forward s0 n=1 mb=0 param<W@1 saved>S\n";
const std::string backward =
    "%1 compute backward s0 n=1 mb=0 param<W@1 saved<S grad>G/partial(dp)\n";
const std::string reduce = "%2 dp all_reduce dp source<G/partial(dp) target>G after %1\n";
const std::string update = "%3 compute update param+W@1 grad<G moment1+M@1 after %2\n";

std::string refusal(const std::string& ops) {
  return test::message_of<ProgramError>(
      [&] { link(program::parse_program(head + ops + "end\n")); });
}

// Steps before 5 sum the gradients in one way, steps from 5 on in another way.
TEST(Linker, TakesAlternativesThatTogetherWorkInEveryStep) {
  const std::string whole = forward + backward;
  const auto either = [&](const char* first, const char* second, const char* updates) {
    return whole + "%2 dp all_reduce dp source<G/partial(dp) target>G after %1 " + first + "\n" +
           "%3 dp all_reduce dp source<G/partial(dp) target>G " + second + "\n" +
           "%4 compute update param+W@1 grad<G moment1+M@1 after %3 " + updates + "\n";
  };
  EXPECT_EQ(refusal(either("until=5", "from=5", "")), "no error");
  EXPECT_THAT(refusal(either("until=5", "from=5", "until=5")),
              HasSubstr("'G' is written and never read"));
  EXPECT_EQ(refusal(either("until=5", "from=5 until=9", "until=9")), "no error");
  // A gap between them, and no end; an update that sees a partial sum.
  EXPECT_THAT(refusal(either("until=4", "from=5", "")),
              HasSubstr("layout mismatch on 'G': a copy is expected, but the last write leaves a "
                        "partial sum over dp"));
  EXPECT_THAT(refusal(either("until=5", "from=5 until=9", "")), HasSubstr("layout mismatch"));
  // The second one also works in steps in which the first one has summed.
  EXPECT_THAT(refusal(either("until=5", "from=4", "")), HasSubstr("layout mismatch"));
  EXPECT_THAT(refusal(either("until=5", "", "")), HasSubstr("layout mismatch"));
}

TEST(Linker, RefusesAnAlternativeThatNothingReads) {
  const std::string whole = forward + backward + reduce;
  const auto copies = [&](const char* reads) {
    return whole + "%3 compute cast source<G target>A after %2 until=5\n" +
           "%4 compute cast source<G target>A from=5\n" +
           "%5 compute update param+W@1 grad<A moment1+M@1 " + reads + "\n";
  };
  const auto said = [&](const char* reads) {
    std::string text = head + copies(reads) + "end\n";
    text.insert(text.find("view W W"), "storage A value f32 8 indices=1 versions=1\n");
    text.insert(text.find("%0"), "view A A 0 8\n");
    return test::message_of<ProgramError>([&] { link(program::parse_program(text)); });
  };
  EXPECT_THAT(said("until=5"), HasSubstr("'A' is written and never read"));
  EXPECT_THAT(said("from=5"), HasSubstr("'A' is written and never read"));
}

TEST(Linker, RefusesFactorsThatDoNotFit) {
  const auto said = [&](const std::string& op) {
    std::string text = head + forward + backward + reduce + update + "%4 compute " + op + "\nend\n";
    text.insert(text.find("view W W"),
                "storage P value f32 4 indices=1 versions=1\n"
                "storage Q value f32 8 indices=1 versions=1\n");
    text.insert(text.find("%0"), "view P P 0 4\nview Q Q 0 8\n");
    return test::message_of<ProgramError>([&] { link(program::parse_program(text)); });
  };
  // P has 4 rows of rank 1; 2 of rank 2. G has 8 elements.
  EXPECT_THAT(said("project rank=1 source<G left>P"), HasSubstr("no right operand"));
  EXPECT_THAT(said("project rank=1 source<G right<K@1 left>P"),
              HasSubstr("factors of 4 rows and 8 columns, but the source has 8 elements"));
  EXPECT_THAT(said("project rank=3 source<G right<K@1 left>P"),
              HasSubstr("the left factor of 4 elements has no 3 equal columns"));
  EXPECT_THAT(said("project source<G right<K@1 left>P"), HasSubstr("rank is 0"));
  EXPECT_THAT(said("orthonormalise rank=2"), HasSubstr("no left operand"));
  EXPECT_THAT(said("expand rank=2 left<P right<K@1 target>G residual+M@1"),
              HasSubstr("'P' is read before anything writes it"));
  EXPECT_THAT(said("draw"), HasSubstr("no target operand"));
  EXPECT_THAT(said("momentum target+P moment1<M@1"), HasSubstr("other entries than the target"));
  EXPECT_THAT(refusal(forward + backward + reduce +
                      "%3 compute update frozen=-1 param+W@1 grad<G moment1+M@1 after %2\n"),
              HasSubstr("frozen is -1"));
  EXPECT_THAT(refusal(forward + backward + reduce +
                      "%3 compute update restart=-1 param+W@1 grad<G moment1+M@1 after %2\n"),
              HasSubstr("restart is -1"));
}

TEST(Linker, TakesDataParallelismAsItStands) {
  EXPECT_EQ(refusal(forward + backward + reduce + update), "no error");
}

TEST(Linker, FollowsWhichStepsOpsWorkIn) {
  const std::string whole = forward + backward;
  const auto summed = [&](const char* when) {
    return whole + "%2 dp all_reduce dp source<G/partial(dp) target>G after %1 " + when + "\n";
  };
  const std::string read = "%3 compute update param+W@1 grad<G moment1+M@1 after %2 ";
  EXPECT_EQ(refusal(summed("every=2") + read + "every=4\n"), "no error");
  EXPECT_THAT(refusal(summed("every=2") + update),
              AllOf(HasSubstr("the last write leaves a partial sum over dp"), HasSubstr("> %3")));
  EXPECT_EQ(refusal(summed("from=2 until=9") + read + "from=3 until=8\n"), "no error");
  for (const char* when : {"from=1 until=8", "from=3 until=10", "from=3", ""})
    EXPECT_THAT(refusal(summed("from=2 until=9") + read + when + "\n"),
                HasSubstr("the last write leaves a partial sum over dp"))
        << when;
  EXPECT_THAT(refusal("%0 compute forward s0 n=1 mb=0 param<W@1 saved>S\n"
                      "%1 compute draw target>G from=2 until=9\n"
                      "%2 compute update param+W@1 grad<G moment1+M@1 from=2 until=10\n"),
              HasSubstr("in which nothing writes it"));
  EXPECT_THAT(refusal(summed("from=4 until=4") + read + "\n"), HasSubstr("until is 4"));
  EXPECT_THAT(refusal(summed("every=0") + read + "\n"), HasSubstr("every is 0"));
  EXPECT_THAT(refusal(summed("from=-1") + read + "\n"), HasSubstr("from is -1"));
  EXPECT_THAT(refusal("%0 compute forward s0 n=1 mb=0 param<W@1 saved>S every=2\n"),
              HasSubstr("work in every step"));
  EXPECT_THAT(refusal("%0 compute pause seconds=-1\n"), HasSubstr("seconds is -1"));
}

TEST(Linker, RefusesAnUpdateOfAPartialSum) {
  EXPECT_THAT(refusal(forward + backward + "%2 compute update param+W@1 grad<G moment1+M@1\n"),
              AllOf(HasSubstr("layout mismatch on 'G'"), HasSubstr("partial sum over dp"),
                    HasSubstr("> %2")));
}

TEST(Linker, RefusesADoubledAllReduce) {
  EXPECT_THAT(
      refusal(forward + backward + reduce + "%3 dp all_reduce dp source<G/partial(dp) target>G\n" +
              "%4 compute update param+W@1 grad<G moment1+M@1 after %3\n"),
      HasSubstr("layout mismatch on 'G'"));
}

TEST(Linker, TakesAnAllToAllThatLeavesAShard) {
  const auto with = [&](const std::string& work) {
    return refusal(forward + backward + work +
                   "%3 compute cast source<K/shard(dp) target>G after %2\n"
                   "%4 compute update param+W@1 grad<G moment1+M@1\n");
  };
  EXPECT_EQ(with("%2 dp all_to_all dp source<G/partial(dp) target>K/shard(dp) after %1\n"),
            "no error");
  const auto turns = HasSubstr("turns a partial sum or a shard over its group into a shard");
  EXPECT_THAT(with("%2 dp all_to_all dp source<G target>K/shard(dp) after %1\n"), turns);
  EXPECT_THAT(with("%2 dp all_to_all dp source<G/partial(dp) target>K after %1\n"), turns);
  EXPECT_THAT(with("%2 dp all_to_all dp source<G/partial(dp) target>S/shard(dp) after %1\n"),
              HasSubstr("in equal parts: 8 and 2 elements, 2 members"));
  EXPECT_THAT(with("%2 dp all_to_all dp source<G/partial(dp) target>G/shard(dp) after %1\n"),
              HasSubstr("does not work in place"));
}

// Ranks 0 and 1 are clients, rank 2 is their server. The tensor has a part for each of the three.
TEST(Linker, GathersAndScattersMovePartsBetweenARootAndTheOthers) {
  struct Ops {
    std::string up = "star gather star root=server source<A/own(dp)";
    std::string down = "star scatter star root=server target>B/own(dp)";
    int all = 12;  // bytes that the root has of the gathered tensor
  };
  const auto with = [](const Ops& ops) {
    const auto storage = [](const std::string& name, int elements) {
      const std::string size = std::to_string(elements);
      return "storage " + name + " buffer u8 " + size + " indices=1 versions=1\nview " + name +
             " " + name + " 0 " + size + "\n";
    };
    const std::string text =
        "rehearse-program 1\nmethod test\nmesh dp=2\nworld 3\n"
        "channel star sequence axes=g1 colour=0,0,0\n"
        "role client ranks=0-1\nrole server ranks=2\n"
        "begin client\nlane work in_order\nlane star in_order\n" +
        storage("A", 4) + storage("B", 6) + "%0 work pause seconds=0 target>A/own(dp)\n%1 " +
        ops.up + " after %0\n%2 " + ops.down +
        "\n%3 work pause seconds=0 source<B/own(dp) after %2\nend\n"
        "begin server\nlane work in_order\nlane star in_order\n" +
        storage("all", ops.all) + storage("answers", 18) +
        "%0 star gather star root=server target>all\n"
        "%1 work pause seconds=0 source<all target>answers after %0\n"
        "%2 star scatter star root=server source<answers after %1\nend\n";
    return test::message_of<ProgramError>([&] {
      program::Program program = program::parse_program(text);
      for (program::Role& role : program.roles)
        for (program::Op& op : role.ops) op.after.clear();
      link(methods::infer_waits({std::move(program)}));
    });
  };
  EXPECT_EQ(with({}), "no error");
  EXPECT_THAT(with({.up = "star gather star source<A/own(dp)"}),
              HasSubstr("a gather needs a root"));
  EXPECT_THAT(with({.down = "star scatter star root=server target>B/own(dp) source<A/own(dp)"}),
              HasSubstr("from its root, which alone has a source"));
  EXPECT_THAT(with({.all = 13}), HasSubstr("13 elements are no 3 equal parts"));
  EXPECT_THAT(with({.all = 18}), AllOf(HasSubstr("do not agree"), HasSubstr("gather of 12 u8"),
                                       HasSubstr("of 18 u8")));
  EXPECT_THAT(with({.up = "star gather star root=client source<A/own(dp)"}),
              HasSubstr("which alone has a target"));
}

TEST(Linker, RefusesARace) {
  EXPECT_THAT(
      refusal(forward + backward + "%2 dp all_reduce dp source<G/partial(dp) target>G\n" + update),
      AllOf(HasSubstr("data race (read after write) on 'G'"), HasSubstr("> %2"),
            HasSubstr("%1 compute")));
}

TEST(Linker, RefusesARaceWithTheNextStep) {
  // The cast reads the sum on its own lane, so the next step's backward may overwrite the sum
  // first.
  EXPECT_THAT(
      refusal(forward + backward + reduce + update + "%4 norm cast source<G target>K after %2\n"),
      AllOf(HasSubstr("data race (write after read) on 'G'"), HasSubstr("of 1 step(s) before"),
            HasSubstr("> %1")));
}

TEST(Linker, RefusesAReadBeforeAWrite) {
  EXPECT_THAT(refusal("%0 compute backward s0 n=1 mb=0 param<W@1 saved<S grad>G/partial(dp)\n"),
              AllOf(HasSubstr("'S' is read before anything writes it"), HasSubstr("> %0")));
}

TEST(Linker, RefusesAVersionThatIsGone) {
  EXPECT_THAT(
      refusal("%0 compute forward s0 n=1 mb=0 param<W@2 saved>S\n" + backward + reduce + update),
      HasSubstr("read after it has been overwritten: the storage keeps 1"));
}

TEST(Linker, RefusesACycle) {
  EXPECT_THAT(refusal("%0 compute forward s0 n=1 mb=0 param<W@1 saved>S after %2\n" + backward +
                      reduce + update),
              AllOf(HasSubstr("deadlock"), HasSubstr("%0"), HasSubstr("%2")));
}

const std::string pair = R"(rehearse-program 1
method test
mesh pp=2 dp=1 tp=1
world 2
channel a sequence
channel b sequence
role first ranks=0
role second ranks=1
)";
const std::string storages = R"(
lane compute in_order
lane net in_order
storage X value f32 4 indices=1 versions=1
storage Y value f32 4 indices=1 versions=1
storage Z value f32 8 indices=1 versions=1
storage K state f32 8 indices=1 versions=1
view X X 0 4
view Y Y 0 4
view Z Z 0 8
view K K 0 8
)";
std::string side(const std::string& name, const std::string& ops) {
  return "begin " + name + storages + ops + "end\n";
}
std::string pair_refusal(const std::string& first, const std::string& second) {
  return test::message_of<ProgramError>(
      [&] { link(program::parse_program(pair + side("first", first) + side("second", second))); });
}
const std::string make_both =
    "%0 compute forward s0 n=1 mb=0 output>X\n%1 compute forward s0 n=1 mb=1 output>Y\n";
const std::string use_both =
    "%2 compute cast source<X target>Z after %1\n%3 compute cast source<Y source<Z target>K\n";

TEST(Linker, RefusesAnUnmatchedSend) {
  EXPECT_THAT(
      pair_refusal(
          "%0 compute forward s0 n=1 mb=0 output>X\n%1 net send a to=second source<X after %0\n",
          ""),
      AllOf(HasSubstr("channel a, first to second: 1 sends a step, 0 receives"),
            HasSubstr("first: %1")));
  EXPECT_THAT(
      pair_refusal(
          "", "%0 net recv a from=first target>X\n%1 compute cast source<X target>Y after %0\n"),
      HasSubstr("a receive without a send"));
}

TEST(Linker, RefusesUnequalPayloads) {
  EXPECT_THAT(
      pair_refusal(
          "%0 compute forward s0 n=1 mb=0 output>X\n%1 net send a to=second source<X after %0\n",
          "%0 net recv a from=first target>Z\n"),
      AllOf(HasSubstr("16 bytes of f32 are sent, 32 of f32 expected")));
}

TEST(Linker, RefusesSwappedTransfersAsADeadlock) {
  const std::string text = pair_refusal(
      make_both +
          "%2 net send a to=second source<X after %0\n%3 net send b to=second source<Y after %1\n",
      "%0 net recv b from=first target>Y\n%1 net recv a from=first target>X\n" + use_both);
  EXPECT_THAT(text, AllOf(HasSubstr("deadlock"), HasSubstr("send a"), HasSubstr("recv b")));
}

TEST(Linker, ListsRedundantWaits) {
  const LinkedProgram linked = link(
      program::parse_program(head + forward + backward + reduce +
                             "%3 compute update param+W@1 grad<G moment1+M@1 after %1 %2\nend\n"));
  ASSERT_EQ(linked.redundant.size(), 1u);  // %1 is before %3 on its lane
  EXPECT_EQ(linked.redundant[0].op, 3u);
  EXPECT_EQ(linked.redundant[0].index, 0u);
}

TEST(Linker, PlansMemoryThatDoesNotDependOnTiming) {
  const LinkedProgram linked =
      link(program::parse_program(head + forward + backward + reduce + update + "end\n"));
  EXPECT_EQ(linked.memory[0].state, 3 * 8 * 4);
  EXPECT_EQ(linked.memory[0].buffer, 8 * 4);
  EXPECT_EQ(linked.memory[0].value, 2 * 4);
  EXPECT_EQ(linked.roles[0].ops[1].dies.size(), 1u);  // S ends with backward
}

TEST(Linker, PlansAValueFromTheFirstWriteOfAnyOfItsParts) {
  const auto planned = [](const std::string& ops) {
    return link(program::parse_program(R"(rehearse-program 1
method test
mesh pp=1 dp=2 tp=1
world 2
role worker ranks=0-1
begin worker
lane x in_order
lane y in_order
storage W state f32 8 indices=1 versions=1
storage V state f32 8 indices=1 versions=1
storage A value f32 8 indices=1 versions=1
storage B value f32 4 indices=1 versions=1
view W W 0 8
view V V 0 8
view A A 0 8
view A.low A 0 4
view A.high A 4 8
view B B 0 4
)" + ops + "end\n"))
        .memory[0]
        .value;
  };
  // The second half of A is written while B is still read, so A and B cannot share bytes.
  EXPECT_EQ(planned("%0 x cast source<W@1 target>B\n"
                    "%1 x cast source<B target>A.high\n"
                    "%2 x cast source<W@1 target>A.low\n"
                    "%3 x cast source<A target>W\n"),
            (8 + 4) * 4);
  // Lane x writes its half of A after the last use of B, but lane y may write the other half
  // before.
  EXPECT_EQ(planned("%0 x cast source<W@1 target>B\n"
                    "%1 x cast source<B target>V\n"
                    "%2 x cast source<W@1 target>A.low\n"
                    "%3 y cast source<W@1 target>A.high after %4@1\n"
                    "%4 x cast source<A target>W after %3\n"),
            (8 + 4) * 4);
  // A is written after the last use of B, so they share bytes.
  EXPECT_EQ(planned("%0 x cast source<W@1 target>B\n"
                    "%1 x cast source<B target>V\n"
                    "%2 x cast source<W@1 target>A\n"
                    "%3 x cast source<A target>W\n"),
            8 * 4);
}

TEST(ProgramText, SaysWhichLineIsWrong) {
  auto message = [](const std::string& text) {
    return test::message_of<ProgramError>([&] { program::parse_program(text); });
  };
  EXPECT_THAT(message("rehearse-program 7\n"),
              HasSubstr("version 7 is unknown; this build reads version 1"));
  EXPECT_THAT(message("hello\n"), HasSubstr("not a program"));
  EXPECT_THAT(message(head + "%0 compute forwards s0 n=1 mb=0\nend\n"),
              AllOf(HasSubstr("line 22"), HasSubstr("unknown work 'forwards'")));
  EXPECT_THAT(message(head + "%0 compute forward s0 n=1 mb=0 param<Q\nend\n"),
              HasSubstr("unknown view 'Q'"));
}

}  // namespace
}  // namespace rehearse::link
