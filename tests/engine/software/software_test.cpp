// Tests software files: every shipped one loads, the default is what software/rehearse.toml says,
// wrong values are refused with their place, and a job's keys replace those of the file.
#include "engine/software/software.h"

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
using testing::StartsWith;

/// Without what only describes it.
Software unnamed(Software s) {
  s.name = s.summary = s.source = "";
  s.measured = {};
  return s;
}

std::string written(const std::string& text) {
  const std::string path = testing::TempDir() + "/mine.toml";
  std::ofstream(path) << "source = \"a test\"\n" << text;
  return path;
}

job::Job parse(const std::vector<std::string>& overrides) {
  return job::parse_job(
      "model.name = \"gpt-tiny\"\ncluster.name = \"paper\"\nmethod.name = \"ddp\"\n", "job.toml",
      overrides);
}

TEST(Software, EveryShippedFileLoads) {
  const std::vector<std::string> known = known_software();
  EXPECT_THAT(
      known, testing::IsSupersetOf({"megatron-2021", "megatron-2022", "megatron-core",
                                    "nvidia-bert", "pytorch-2", "pytorch-2-compiled", "rehearse"}));
  for (const std::string& name : known) {
    const Software s = load_software(name);
    EXPECT_EQ(s.name, name);
    EXPECT_FALSE(s.summary.empty()) << name;
    EXPECT_FALSE(s.source.empty()) << name;
    EXPECT_EQ(s.busy_host(), name != "rehearse") << name;
  }
}

TEST(Software, TheDefaultIsTheShippedRehearse) {
  EXPECT_EQ(Software().name, "rehearse");
  EXPECT_TRUE(unnamed(load_software("rehearse")) == unnamed({}));
  const job::Job job = parse({});
  EXPECT_EQ(job.model.software.name, "rehearse");
  EXPECT_TRUE(job.model.software == Software());
  EXPECT_FALSE(Software().busy_host());
}

TEST(Software, AnyHostTimeMakesTheHostBusy) {
  for (const char* line :
       {"host.forward = \"1us\"\n", "host.backward = \"1us\"\n", "host.micro_batch = \"1us\"\n",
        "host.update = \"1us\"\n", "host.transfer = \"1us\"\n"})
    EXPECT_TRUE(load_software(written(line)).busy_host()) << line;
  // Waits of a host that takes no time delay nothing.
  EXPECT_FALSE(load_software(written("host.waits = [\"loss\"]\n")).busy_host());
}

TEST(Software, ReadsEveryKey) {
  const Software s = load_software(written(R"(
[kernels]
attention = "written"
attention_rate = 0.5
operators = "separate"
reductions = 0.25
softmax = "separate"
softmax_multiple = 4
softmax_f32 = true
soft_caps = "separate"
head_copies = 3
qkv_forward = 3
qkv_backward = 1
bias = "kernel"
bias_activation = true
autocast = true
residual = "fused"
recompute_scores = true
divides_tokens = true
cross_entropy = "library"
tf32 = true
fp8 = "delayed"
update_bytes = 12
[memory]
keeps_masks = true
norms = "divided"
[communication]
on_device = true
launch = "1us"
in_node = "2us"
across = "3us"
gathers = "each"
logits = "gathered"
[host]
forward = "4us"
backward = "5us"
micro_batch = "6us"
update = "7us"
transfer = "8us"
staging = "9GB/s"
waits = ["update", "loss"]
)"));
  constexpr double us = 1e-6;
  Library library = {.launch = Seconds(1 * us), .in_node = Seconds(2 * us)};
  library.across = Seconds(3 * us), library.on_device = true;
  const Software expected = {.attention = Attention::written,
                             .attention_rate = 0.5,
                             .operators = Operators::separate,
                             .reductions = 0.25,
                             .softmax = Softmax::separate,
                             .softmax_multiple = 4,
                             .softmax_f32 = true,
                             .soft_caps = SoftCaps::separate,
                             .head_copies = 3,
                             .qkv_forward = 3,
                             .qkv_backward = 1,
                             .bias = Bias::kernel,
                             .bias_activation = true,
                             .autocast = true,
                             .residual = Residual::fused,
                             .recompute_scores = true,
                             .divides_tokens = true,
                             .keeps_masks = true,
                             .norms = Norms::divided,
                             .cross_entropy = CrossEntropy::library,
                             .tf32 = true,
                             .fp8 = Fp8::delayed,
                             .update_bytes = 12,
                             .library = library,
                             .gathers = Gathers::each,
                             .logits = Logits::gathered,
                             .forward_issue = Seconds(4 * us),
                             .backward_issue = Seconds(5 * us),
                             .microbatch = Seconds(6 * us),
                             .update = Seconds(7 * us),
                             .transfer = Seconds(8 * us),
                             .staging = BytesPerSecond(9e9),
                             .waits = {HostWait::update, HostWait::loss}};
  EXPECT_TRUE(unnamed(s) == unnamed(expected));
  EXPECT_TRUE(s.waits_for(HostWait::loss));
  EXPECT_FALSE(s.waits_for(HostWait::transfers));
}

TEST(Software, EveryKeyChangesTheHashAndNoDescriptionDoes) {
  // Another value than the default's.
  const auto changed = [](const Config::Key& key) -> std::string {
    if (key.type == "integer") return "7";
    if (key.type == "number") return "0.5";
    if (key.type == "true or false") return "true";
    if (key.type == "duration") return "\"5us\"";
    if (key.type == "bandwidth") return "\"1GB/s\"";
    if (key.type == "list of text") return "[\"loss\"]";
    if (key.path == "base") return "\"megatron-2021\"";
    if (key.path == "communication.library") return "\"nccl-2.20\"";
    const std::string last = key.type.substr(key.type.rfind(' ') + 1);  // of the choices
    return "\"" + last.substr(0, last.find('"')) + "\"";
  };
  for (const Config::Key& key : software_keys()) {
    if (key.path == "summary" || key.path == "source" || key.path.starts_with("measured."))
      continue;
    const Software s = load_software(written(key.path + " = " + changed(key) + "\n"));
    EXPECT_FALSE(unnamed(s) == unnamed({})) << key.path;
    EXPECT_NE(hash_of(s), hash_of(Software())) << key.path;
  }
  EXPECT_EQ(hash_of(load_software("rehearse")), hash_of(Software()));
  EXPECT_NE(hash_of(load_software("megatron-2021")), hash_of(load_software("megatron-2022")));
}

TEST(Software, WrongValuesAreRefusedWithTheirPlaceAndWhatFits) {
  const auto error = [](const std::string& text) {
    const std::string path = written(text);
    const std::string message = test::message_of([&] { load_software(path); });
    EXPECT_THAT(message, HasSubstr("mine.toml:2: key \"")) << text;
    return message;
  };
  EXPECT_THAT(error("kernels.attention = \"writen\"\n"),
              AllOf(HasSubstr("\"kernels.attention\""), HasSubstr("fused, written")));
  EXPECT_THAT(error("kernels.softmax_multiple = 0\n"), HasSubstr("must be from 1 to 64"));
  EXPECT_THAT(error("kernels.head_copies = -1\n"), HasSubstr("must be from 0 to 64"));
  EXPECT_THAT(error("kernels.qkv_forward = 65\n"), HasSubstr("must be from 1 to 64"));
  EXPECT_THAT(error("kernels.attention_rate = 15\n"), HasSubstr("out of range"));
  EXPECT_THAT(error("kernels.reductions = 0\n"), HasSubstr("out of range"));
  EXPECT_THAT(error("kernels.tf32 = 1\n"), HasSubstr("must be true or false"));
  EXPECT_THAT(error("kernels.update_bytes = -1\n"), HasSubstr("out of range"));
  EXPECT_THAT(error("communication.launch = \"3 parsecs\"\n"), HasSubstr("parsecs"));
  EXPECT_THAT(error("communication.across = \"2h\"\n"), HasSubstr("out of range"));
  EXPECT_THAT(error("host.forward = \"-1us\"\n"), HasSubstr("out of range"));
  EXPECT_THAT(error("host.waits = [\"los\"]\n"),
              AllOf(HasSubstr("\"los\" is not known"), HasSubstr("loss, transfers, update")));
  EXPECT_THAT(error("kernels.attension = \"fused\"\n"), HasSubstr("did you mean \"attention\"?"));
  EXPECT_THAT(error("hosts.forward = \"1us\"\n"), HasSubstr("did you mean \"host\"?"));
}

TEST(Software, AFileNeedsASourceAndAKnownName) {
  const std::string path = testing::TempDir() + "/mine.toml";
  std::ofstream(path) << "summary = \"mine\"\n";
  EXPECT_THAT(test::message_of([&] { load_software(path); }),
              HasSubstr("\"source\": is required and missing"));
  EXPECT_THAT(test::message_of([] { load_software("megatron-2012"); }),
              AllOf(HasSubstr("software \"megatron-2012\" is not known"),
                    HasSubstr("did you mean \"megatron-2021\"?")));
}

TEST(Software, AFileMayChangeAnother) {
  const Software megatron = load_software("megatron-2021");
  Software changed = megatron;
  changed.recompute_scores = changed.divides_tokens = true;
  changed.norms = Norms::divided;
  EXPECT_EQ(unnamed(load_software("megatron-2022")), unnamed(changed));

  changed = megatron;
  changed.update = Seconds(0.5);
  const Software mine =
      load_software(written("base = \"megatron-2021\"\nhost.update = \"500ms\"\n"));
  EXPECT_EQ(unnamed(mine), unnamed(changed));
  EXPECT_EQ(mine.name, "mine");
  EXPECT_EQ(mine.source, "a test");
  EXPECT_EQ(mine.summary, "");
}

TEST(Software, ABaseMustBeKnownAndEnd) {
  EXPECT_THAT(
      test::message_of<InputError>([] { load_software(written("base = \"megatron-2012\"\n")); }),
      AllOf(HasSubstr("mine.toml:2: key \"base\""), HasSubstr("megatron-2021")));
  const std::string path = testing::TempDir() + "/mine.toml";
  EXPECT_THAT(
      test::message_of<InputError>([&] { load_software(written("base = \"" + path + "\"\n")); }),
      HasSubstr("is its own base"));
}

TEST(Software, AJobNamesOneAndChangesItsKeys) {
  const job::Job plain = parse({"software.name=megatron-2021"});
  EXPECT_EQ(plain.model.software.name, "megatron-2021");
  EXPECT_TRUE(plain.model.software == load_software("megatron-2021"));
  // The library's latencies become part of the cluster's paths.
  EXPECT_TRUE(plain.cluster.library() == plain.model.software.library);
  EXPECT_EQ(plain.cluster.library().name, "nccl-2.10");

  Software changed = plain.model.software;
  changed.forward_issue = Seconds(50 * 1e-6), changed.attention = Attention::fused,
  changed.waits = {};
  const job::Job job = parse({"software.name=megatron-2021", "software.host.forward=50us",
                              "software.kernels.attention=fused", "software.host.waits=[]"});
  EXPECT_TRUE(job.model.software == changed);
  // Without a name the keys change the default.
  changed = Software();
  changed.library.launch = Seconds(10 * 1e-6);
  EXPECT_TRUE(parse({"software.communication.launch=10us"}).model.software == changed);
  const std::string path = written("host.forward = \"3us\"\n");
  EXPECT_EQ(parse({"software.name=" + path}).model.software.forward_issue.value, 3 * 1e-6);
}

TEST(Software, AJobThatIsWrongNamesTheKey) {
  const auto error = [](const std::string& set) { return test::message_of([&] { parse({set}); }); };
  EXPECT_THAT(error("software.name=megatron-2012"),
              AllOf(StartsWith("--set software.name=megatron-2012: key \"software.name\": "),
                    HasSubstr("did you mean \"megatron-2021\"?")));
  EXPECT_THAT(error("software.host.forwards=1us"),
              AllOf(StartsWith("--set software.host.forwards=1us: key \"software.host.forwards\""),
                    HasSubstr("did you mean \"forward\"?")));
  EXPECT_THAT(error("software.kernels.bias=kernle"),
              AllOf(StartsWith("--set software.kernels.bias=kernle: key \"software.kernels.bias\""),
                    HasSubstr("epilogue, kernel")));
}

TEST(Software, DocumentationListsExactlyTheKeysThatTheReaderKnows) {
  test::expect_documented("docs/software.md", software_keys());
}

}  // namespace
}  // namespace rehearse::software
