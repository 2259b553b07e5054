// The rank and world size from every launcher's variables, and the errors for contradictions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "runtime/control/launch/environment.h"
#include "tests/message_of.h"

namespace rehearse::runtime {
namespace {

using testing::HasSubstr;
using Values = std::map<std::string, std::string>;

Environment detect(const Values& values) {
  return detect_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  });
}
std::string error_of(const Values& values) {
  return test::message_of([&] { detect(values); });
}

TEST(CommEnvironment, NoLauncher) {
  const Environment e = detect({{"SLURM_NTASKS", "4"}});  // a shell in an allocation
  EXPECT_EQ(e.rank, 0);
  EXPECT_EQ(e.world_size, 1);
  EXPECT_EQ(e.launcher, "none");
}

TEST(CommEnvironment, Torchrun) {
  const Environment e = detect({{"RANK", "5"},
                                {"WORLD_SIZE", "8"},
                                {"LOCAL_RANK", "1"},
                                {"LOCAL_WORLD_SIZE", "4"},
                                {"MASTER_ADDR", "node7"},
                                {"MASTER_PORT", "29500"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"TORCHELASTIC_RUN_ID", "job"},
                                {"SLURM_PROCID", "0"},  // torchrun inside a Slurm job
                                {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(e.launcher, "torchrun");
  EXPECT_EQ(e.rank, 5);
  EXPECT_EQ(e.world_size, 8);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world_size, 4);
  EXPECT_EQ(e.master_address, "node7");
  EXPECT_EQ(e.master_port, 29500);
  EXPECT_TRUE(e.agent_store);
  EXPECT_EQ(e.run_id, "job/0");
}

TEST(CommEnvironment, Slurm) {
  const Values job = {{"SLURM_PROCID", "9"},    {"SLURM_NTASKS", "16"},
                      {"SLURM_LOCALID", "1"},   {"SLURM_NTASKS_PER_NODE", "8"},
                      {"SLURM_JOB_ID", "1234"}, {"SLURM_JOB_NODELIST", "gpu-[017-018,020]"}};
  const Environment e = detect(job);
  EXPECT_EQ(e.launcher, "slurm");
  EXPECT_EQ(e.rank, 9);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world_size, 8);
  EXPECT_EQ(e.master_address, "gpu-017");
  EXPECT_GE(e.master_port, 20000);
  EXPECT_LT(e.master_port, 30000);
  Values other = job;
  other["SLURM_STEP_NODELIST"] = "gpu-[018,020]";
  EXPECT_EQ(detect(other).master_address, "gpu-018") << "a step on a part of the nodes";
  other["SLURM_PROCID"] = "0";
  EXPECT_EQ(detect(other).master_port, e.master_port) << "every rank of a job means one port";
  other["SLURM_JOB_ID"] = "1235";
  EXPECT_NE(detect(other).master_port, e.master_port) << "two jobs on a node do not meet";
  EXPECT_FALSE(e.one_host());
  other.erase("SLURM_NTASKS_PER_NODE");
  EXPECT_FALSE(detect(other).one_host());
  other["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_TRUE(detect(other).one_host()) << "srun -n 16 on one node";
}

TEST(CommEnvironment, OpenMpi) {
  const Environment e = detect({{"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_SIZE", "2"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(e.launcher, "openmpi");
  EXPECT_EQ(e.rank, 1);
  EXPECT_EQ(e.master_address, "127.0.0.1");
  EXPECT_NE(e.master_port, 0);
}

TEST(CommEnvironment, OpenMpi5NamesTheJobThroughPmix) {
  Values values = {{"OMPI_COMM_WORLD_RANK", "0"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                   {"PMIX_RANK", "0"},
                   {"PMIX_NAMESPACE", "prterun-node0-1234@1"}};
  const Environment e = detect(values);
  EXPECT_EQ(e.launcher, "openmpi");
  values["OMPI_COMM_WORLD_RANK"] = values["OMPI_COMM_WORLD_LOCAL_RANK"] = values["PMIX_RANK"] = "1";
  EXPECT_EQ(detect(values).master_port, e.master_port) << "every rank of a job means one port";
  values["PMIX_NAMESPACE"] = "prterun-node0-1235@1";
  EXPECT_NE(detect(values).master_port, e.master_port) << "two jobs on a node do not meet";
  EXPECT_THAT(error_of({{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "a"}}),
              HasSubstr("none says how many ranks there are"));
}

TEST(CommEnvironment, OurLauncherHandsOverASocket) {
  Values values = {{"RANK", "0"},
                   {"WORLD_SIZE", "2"},
                   {"LOCAL_RANK", "0"},
                   {"LOCAL_WORLD_SIZE", "2"},
                   {"MASTER_PORT", "40001"},
                   {"REHEARSE_LISTENER", "5"}};
  EXPECT_EQ(detect(values).listener, 5);
  EXPECT_EQ(detect(values).launcher, "rehearse");
  values["RANK"] = values["LOCAL_RANK"] = "1";
  EXPECT_EQ(detect(values).listener, -1);
}

TEST(CommEnvironment, FirstHostOfNodeLists) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("node[003-010,12],login"), "node003");
  EXPECT_EQ(first_host("node[7]"), "node7");
  EXPECT_EQ(first_host("a1,b[2-3]"), "a1");
  EXPECT_EQ(first_host("rack[1-2]node[03-04]"), "rack1node03");
  EXPECT_EQ(first_host("n[01-02]-ib,m1"), "n01-ib");
  EXPECT_THROW(first_host("node[1-2"), InputError);
  EXPECT_THROW(first_host("node[]"), InputError);
}

TEST(CommEnvironment, Contradictions) {
  EXPECT_THAT(error_of({{"RANK", "1"}}), HasSubstr("RANK is set but WORLD_SIZE is not"));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "2"}}), HasSubstr("WORLD_SIZE is set but RANK is not"));
  EXPECT_THAT(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("rank 2 does not exist, WORLD_SIZE is 2"));
  EXPECT_THAT(error_of({{"RANK", "one"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("RANK: \"one\" is not a whole number"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}),
              HasSubstr("WORLD_SIZE: 0 is not between 1"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}),
              HasSubstr("MASTER_PORT: 70000 is not between 1 and 65535"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_PORT is missing"));
  EXPECT_THAT(error_of({{"RANK", "0"},
                        {"WORLD_SIZE", "4"},
                        {"LOCAL_WORLD_SIZE", "2"},
                        {"MASTER_PORT", "29500"}}),
              HasSubstr("MASTER_ADDR is missing"));
  EXPECT_THAT(
      error_of(
          {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
      HasSubstr("contradict each other: LOCAL_RANK is 2, LOCAL_WORLD_SIZE is 2"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "4"}}),
              HasSubstr("contradict each other"));
}

}  // namespace
}  // namespace rehearse::runtime
