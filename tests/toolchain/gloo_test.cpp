// Two processes all-reduce through c10d's ProcessGroupGloo. Its code is in libtorch_cpu, and its
// headers include those of Debian's libgloo-dev; the test shows that the two versions agree. It
// forks real processes, as a local launch does.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace {

constexpr int world_size = 2;

/// Sums rank + 1 over the ranks. True if every element of the result is 1 + ... + world_size.
bool sums_over_ranks(int rank, const std::string& store_file) {
  auto store = c10::make_intrusive<c10d::FileStore>(store_file, world_size);
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(20));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface("lo"));
  options->threads = 1;
  c10d::ProcessGroupGloo group(store, rank, world_size, options);
  std::vector<at::Tensor> tensors = {at::full({100'000}, rank + 1.0F)};
  group.allreduce(tensors)->wait();
  return at::equal(tensors[0], at::full({100'000}, world_size * (world_size + 1) / 2.0F));
}

TEST(Gloo, TwoProcessesAllReduce) {
  const auto store_file = std::filesystem::path(testing::TempDir()) / "rehearse_gloo";
  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        _exit(sums_over_ranks(rank, store_file) ? 0 : 1);
      } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        _exit(2);
      }
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  std::filesystem::remove(store_file);
}

}  // namespace
