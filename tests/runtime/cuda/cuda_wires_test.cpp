// Tests the communicators of the CUDA plug-in in real processes, over an NCCL that runs on CPUs
// (tests/devices/emulated): every move, wires that are ended in different orders, and what ranks
// say when one of them makes another call, or dies.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "runtime/communication/communicator.h"
#include "runtime/device/accelerator.h"
#include "runtime/device/load_device.h"
#include "tests/runtime/as_body.h"
#include "tests/runtime/comm_ranks.h"
#include "tests/runtime/cuda/gpu.h"

namespace rehearse::runtime {
namespace {

using program::DType;
using program::Move;

/// What each rank holds after a collective on `elements` numbers 100 x rank + i.
std::vector<Ended> collective(int ranks, Move move, int elements, int root) {
  return run_ranks(ranks, [&](const Environment& environment) {
    Control control(environment, patient());
    std::string text;
    {
      const auto device = make_device(test_gpu(), environment.rank, &control);
      std::vector<Id> all(static_cast<std::size_t>(ranks));
      std::iota(all.begin(), all.end(), Id{0});
      const auto wire = device->accelerator()->communicator("dp 0", all);
      wire->connect();
      std::vector<float> source(static_cast<std::size_t>(elements));
      std::iota(source.begin(), source.end(), 100.0F * static_cast<float>(environment.rank));
      std::vector<float> target(source.size(), -1);
      const auto bytes = static_cast<std::int64_t>(sizeof(float) * source.size());
      const auto from = device->allocate(bytes), to = device->allocate(bytes);
      device->store(from.get(), reinterpret_cast<const std::byte*>(source.data()), bytes);
      device->store(to.get(), reinterpret_cast<const std::byte*>(target.data()), bytes);
      as_body(*device, [&] {
        wire->run(
            wire->prepare({.move = move, .dtype = DType::f32, .elements = elements, .root = root}),
            from.get(), to.get());
      });
      device->fetch(to.get(), reinterpret_cast<std::byte*>(target.data()), bytes);
      text = fmt::format("{}", fmt::join(target, " "));
    }
    control.finish();
    return text;
  });
}

TEST(CudaWires, EveryMove) {
  const auto text_of = [](const std::vector<Ended>& ended) {
    std::string all;
    for (const Ended& rank : ended) all += fmt::format("[{}] ", rank.text);
    return all;
  };
  EXPECT_EQ(text_of(collective(3, Move::all_reduce, 2, 0)), "[300 303] [300 303] [300 303] ");
  EXPECT_EQ(text_of(collective(3, Move::broadcast, 2, 1)), "[100 101] [100 101] [100 101] ");
  EXPECT_EQ(text_of(collective(3, Move::reduce, 2, 2)), "[-1 -1] [-1 -1] [300 303] ");
  EXPECT_EQ(text_of(collective(3, Move::reduce_scatter, 3, 0)),
            "[300 -1 -1] [303 -1 -1] [306 -1 -1] ");
  EXPECT_EQ(text_of(collective(3, Move::reduce_scatter, 4, 0)),  // parts of 1, 1 and 2
            "[300 -1 -1 -1] [303 -1 -1 -1] [306 309 -1 -1] ");
  EXPECT_EQ(text_of(collective(2, Move::all_gather, 4, 0)), "[0 1 100 101] [0 1 100 101] ");
  EXPECT_EQ(text_of(collective(2, Move::all_gather, 3, 0)), "[0 100 101] [0 100 101] ");
  EXPECT_EQ(text_of(collective(3, Move::all_to_all, 3, 0)), "[0 100 200] [1 101 201] [2 102 202] ");
  EXPECT_EQ(text_of(collective(3, Move::gather, 3, 1)), "[-1 -1 -1] [0 100 200] [-1 -1 -1] ");
  EXPECT_EQ(text_of(collective(3, Move::scatter, 3, 2)), "[200 -1 -1] [201 -1 -1] [202 -1 -1] ");
  EXPECT_EQ(text_of(collective(3, Move::rotate, 2, 1)), "[200 201] [0 1] [100 101] ");
}

// Each rank ends its two wires in another order. NCCL's finalisation is a meeting.
TEST(CudaWires, EndInAnyOrder) {
  const auto ended = run_ranks(2, [](const Environment& environment) {
    Control control(environment, patient());
    {
      const auto device = make_device(test_gpu(), environment.rank, &control);
      auto a = device->accelerator()->communicator("a", {0, 1});
      auto b = device->accelerator()->communicator("b", {0, 1});
      a->connect();
      b->connect();
      (environment.rank == 0 ? a : b).reset();
      (environment.rank == 0 ? b : a).reset();
    }
    control.finish();
    return std::string("ended");
  });
  for (const Ended& rank : ended) EXPECT_EQ(rank.text, "ended");
}

TEST(CudaWires, AnotherCallIsAnError) {
  if (test_gpu() != "emulated") GTEST_SKIP() << "NCCL hangs then";
  const auto ended = run_ranks(2, [](const Environment& environment) {
    Control control(environment, patient());
    const auto device = make_device(test_gpu(), environment.rank, &control);
    const auto wire = device->accelerator()->communicator("dp 0", {0, 1});
    wire->connect();
    const auto values = device->allocate(8 * sizeof(float));
    as_body(*device, [&] {
      wire->run(wire->prepare({.elements = environment.rank == 0 ? 8 : 4}), values.get(),
                values.get());
    });
    return std::string("no error");
  });
  EXPECT_THAT(ended.at(0).text, testing::HasSubstr("dp 0: ncclAllReduce"));
  EXPECT_THAT(ended.at(0).text, testing::HasSubstr("member 1 made another call"));
  EXPECT_EQ(ended.at(1).status, 1) << ended.at(1).text;
}

// NCCL refuses two ranks on one device, unless they seem to be on two hosts.
TEST(CudaWires, RanksMayShareAGpu) {
  if (test_gpu() != "emulated") GTEST_SKIP() << "a machine has the GPUs that it has";
  for (const int gpus : {1, 2}) {
    setenv("REHEARSE_EMULATED_GPUS", std::to_string(gpus).c_str(), 1);
    const auto ended = run_ranks(2, [](const Environment& environment) {
      Control control(environment, patient());
      const auto device = make_device(test_gpu(), environment.rank, &control);
      const char* const host = std::getenv("NCCL_HOSTID");
      control.finish();
      return std::string(host == nullptr ? "its own" : host);
    });
    for (const int rank : {0, 1})
      EXPECT_THAT(ended.at(rank).text,
                  testing::EndsWith(gpus == 2 ? "its own" : fmt::format("-rank-{}", rank)));
  }
  unsetenv("REHEARSE_EMULATED_GPUS");
}

// Aborting one communicator after the other may hang, so all are aborted in one group.
TEST(CudaWires, ADeadRankIsNamed) {
  setenv("REHEARSE_EMULATED_ABORT", "1", 1);
  const auto ended = run_ranks(3, [](const Environment& environment) {
    Control control(environment, patient());
    const auto device = make_device(test_gpu(), environment.rank, &control);
    std::vector<std::unique_ptr<Communicator>> wires;
    for (const char* name : {"a", "b", "c"})
      wires.push_back(device->accelerator()->communicator(name, {0, 1, 2}));
    for (const auto& wire : wires) wire->connect();
    control.barrier("connected");
    if (environment.rank == 1) std::raise(SIGKILL);
    const auto values = device->allocate(8 * sizeof(float));
    as_body(*device, [&] {
      for (const auto& wire : wires)
        wire->run(wire->prepare({.elements = 8}), values.get(), values.get());
    });
    return std::string("no error");
  });
  unsetenv("REHEARSE_EMULATED_ABORT");
  EXPECT_EQ(ended.at(1).status, 128 + SIGKILL);
  for (const int rank : {0, 2}) EXPECT_THAT(ended.at(rank).text, testing::HasSubstr("rank 1"));
}

}  // namespace
}  // namespace rehearse::runtime
