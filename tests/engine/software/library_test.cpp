// Tests library files: every shipped one loads, wrong ones are refused, every key changes the text
// that hashes are made of, and a job's software names another library.
#include "engine/software/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "engine/job/job.h"
#include "tests/engine/reference.h"
#include "tests/message_of.h"

namespace rehearse::software {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string written(const std::string& text) {
  const std::string path = testing::TempDir() + "/library.toml";
  std::ofstream(path) << "source = \"a test\"\n" << text;
  return path;
}

constexpr const char* times =
    R"({ base = "1us", nvlink = "2us", pcie = "3us", network = "4us", efficiency = 0.5 })";

std::string protocol(const std::string& algorithm, const std::string& more = {}) {
  return "[[protocol]]\nname = \"P\"\nalgorithm = \"" + algorithm + "\"\n" + more +
         "measured = " + times + "\nestimated = " + times + "\n";
}

TEST(Library, EveryShippedFileLoadsAndServesEveryGroup) {
  const std::vector<std::string> known = known_libraries();
  EXPECT_THAT(known, testing::IsSupersetOf({"nccl-2.10", "nccl-2.20", "rounds"}));
  for (const std::string& name : known) {
    const Library library = load_library(name);
    EXPECT_EQ(library.name, name);
    EXPECT_EQ(library.protocols.empty(), name == "rounds");
  }
  EXPECT_FALSE(load_library("nccl-2.10").has(program::Algorithm::nvls));
  EXPECT_TRUE(load_library("nccl-2.20").has(program::Algorithm::nvls));
  EXPECT_TRUE(load_library("rounds") == Library());
}

TEST(Library, ReadsEveryKey) {
  const Library read = load_library(
      written("copies = 0.25\n" + protocol("ring") + protocol("nvls", "nvlink_only = true\n")));
  constexpr double us = 1e-6;
  const ProtocolTimes expected{.base = Seconds(1 * us),
                               .nvlink = Seconds(2 * us),
                               .pcie = Seconds(3 * us),
                               .network = Seconds(4 * us),
                               .efficiency = 0.5};
  ASSERT_EQ(read.protocols.size(), 2U);
  EXPECT_EQ(read.copies, 0.25);
  EXPECT_EQ(read.protocols[1].algorithm, program::Algorithm::nvls);
  EXPECT_TRUE(read.protocols[1].nvlink_only);
  EXPECT_FALSE(read.protocols[0].nvlink_only);
  EXPECT_EQ(read.protocols[0].name, "P");
  EXPECT_TRUE(read.protocols[0].measured == expected);
  EXPECT_TRUE(read.protocols[0].estimated == expected);
}

TEST(Library, EveryNumberIsInTheTextOfHashes) {
  const std::string plain = protocol("ring") + protocol("double_tree");
  const std::string text = text_of(load_library(written(plain)));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string file = plain;
    file.replace(file.find(from), from.size(), to);
    return text_of(load_library(written(file)));
  };
  EXPECT_NE(changed("[[protocol]]", "copies = 0.1\n[[protocol]]"), text);
  EXPECT_NE(text_of(load_library(
                written(protocol("ring") + protocol("double_tree", "nvlink_only = true\n")))),
            text);
  EXPECT_NE(changed("double_tree", "nvls"), text);
  for (const char* number : {"\"1us\"", "\"2us\"", "\"3us\"", "\"4us\""})
    EXPECT_NE(changed(number, "\"9us\""), text) << number;
  EXPECT_NE(changed("0.5", "0.6"), text);
  EXPECT_NE(changed("\"P\"", "\"Q\""), text);
}

TEST(Library, WrongFilesAreRefused) {
  const auto message = [](const std::string& text) {
    return test::message_of([&] { load_library(written(text)); });
  };
  EXPECT_THAT(message(""), HasSubstr("must have a ring that is not nvlink_only"));
  EXPECT_THAT(message(protocol("ring", "nvlink_only = true\n")),
              HasSubstr("must have a ring that is not nvlink_only"));
  EXPECT_THAT(message(protocol("halving_doubling")),
              AllOf(HasSubstr("protocol[0].algorithm"), HasSubstr("halving_doubling")));
  EXPECT_THAT(message(protocol("ring") + "latency = 1\n"), HasSubstr("latency"));
  EXPECT_THAT(test::message_of([] { load_library("nccl-2.1"); }),
              AllOf(HasSubstr("library \"nccl-2.1\" is not known"), HasSubstr("nccl-2.10")));
}

TEST(Library, DocumentationListsExactlyTheKeysThatTheReaderKnows) {
  test::expect_documented("docs/library.md", library_keys());
}

job::Job parse(const std::vector<std::string>& overrides) {
  return job::parse_job(
      "model.name = \"gpt-tiny\"\ncluster.name = \"dgx-h100\"\nmethod.name = \"ddp\"\n", "job.toml",
      overrides);
}

TEST(Library, AJobMayNameAnother) {
  const Library own = parse({"software.name=pytorch-2"}).cluster.library();
  EXPECT_EQ(own.name, "nccl-2.20");
  const Library other =
      parse({"software.name=pytorch-2", "software.communication.library=nccl-2.10"})
          .cluster.library();
  EXPECT_EQ(other.name, "nccl-2.10");
  EXPECT_EQ(other.launch.value, own.launch.value);  // the software's, not the library's
  EXPECT_TRUE(parse({"software.name=pytorch-2", "software.communication.library=rounds"})
                  .cluster.library()
                  .protocols.empty());
  EXPECT_THAT(test::message_of([] { parse({"software.communication.library=nccl"}); }),
              AllOf(HasSubstr("software.communication.library"), HasSubstr("nccl-2.20")));
}

TEST(Library, NvlsNeedsALibraryThatHasIt) {
  EXPECT_EQ(parse({"software.name=pytorch-2", "method.collective=nvls"}).plan.exchange.collective,
            program::Algorithm::nvls);
  EXPECT_THAT(
      test::message_of([] { parse({"method.collective=nvls"}); }),
      AllOf(HasSubstr("method.collective"), HasSubstr("nvls needs a communication library")));
}

}  // namespace
}  // namespace rehearse::software
