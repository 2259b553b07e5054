// Tests of work in child processes: results come in order, failures keep their message, and no
// child is left.
#include "sim/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/message_of.h"

namespace rehearse::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

bool no_children() { return waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; }

TEST(Processes, ResultsComeInOrderWhateverEndsFirst) {
  int seen = 0;
  const auto results = in_processes(
      4,
      [](int i) {
        usleep(static_cast<useconds_t>(30'000 * (3 - i)));
        return std::string(static_cast<std::size_t>(i), 'x') + '\0' + std::to_string(i);
      },
      {.jobs = 4, .progress = [&](int done) { EXPECT_EQ(done, ++seen); }});
  EXPECT_THAT(results, ElementsAre(std::string("\0", 1) + "0", std::string("x\0", 2) + "1",
                                   std::string("xx\0", 3) + "2", std::string("xxx\0", 4) + "3"));
  EXPECT_EQ(seen, 4);
  EXPECT_TRUE(no_children());
}

TEST(Processes, LargeResultsArrive) {
  const auto results =
      in_processes(2, [](int i) { return std::string(5'000'000, static_cast<char>('a' + i)); });
  EXPECT_EQ(results[1], std::string(5'000'000, 'b'));
}

TEST(Processes, ErrorsKeepTheirKind) {
  EXPECT_EQ(test::message_of<InputError>(
                [] { in_processes(1, [](int) -> std::string { throw InputError("bad file"); }); }),
            "bad file");
  EXPECT_EQ(test::message_of<ProgramError>(
                [] { in_processes(1, [](int) -> std::string { throw ProgramError("a race"); }); }),
            "a race");
  EXPECT_EQ(test::message_of<BackendError>(
                [] { in_processes(1, [](int) -> std::string { throw std::bad_alloc(); }); }),
            std::bad_alloc().what());
}

TEST(Processes, TheFirstByNumberDecides) {
  const auto message = test::message_of<BackendError>([] {
    in_processes(3,
                 [](int i) -> std::string {
                   if (i == 0) usleep(100'000);
                   throw BackendError("failed in " + std::to_string(i));
                 },
                 {.jobs = 3});
  });
  EXPECT_EQ(message, "failed in 0");
  EXPECT_TRUE(no_children());
}

TEST(Processes, ACrashIsAnErrorWithItsLastWords) {
  const auto message = test::message_of<BackendError>([] {
    in_processes(2, [](int i) -> std::string {
      if (i == 0) return "fine";
      std::fprintf(stderr, "the link is on fire\n");
      std::abort();
    });
  });
  EXPECT_THAT(message, HasSubstr("simulation 1 was ended by signal 6"));
  EXPECT_THAT(message, HasSubstr("the link is on fire"));
  EXPECT_TRUE(no_children());
}

TEST(Processes, ATimeoutEndsTheChild) {
  const auto message = test::message_of<BackendError>([] {
    in_processes(2,
                 [](int i) -> std::string {
                   if (i == 1) pause();
                   return "fine";
                 },
                 {.timeout = 0.2});
  });
  EXPECT_THAT(message, HasSubstr("simulation 1 took longer than its timeout of 0.2 s"));
  EXPECT_TRUE(no_children());
}

}  // namespace
}  // namespace rehearse::sim
