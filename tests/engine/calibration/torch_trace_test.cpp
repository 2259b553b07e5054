// Tests the reader of profiler traces on traces whose gaps are known: forward, backward and the
// optimizer apart, waits and pauses left out, kernels of a step, gaps on the device, and products.
#include "engine/calibration/torch_trace.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/base/errors.h"
#include "tests/message_of.h"

namespace rehearse::calibration {
namespace {

using test::message_of;
using testing::HasSubstr;
using Json = nlohmann::json;

/// Writes a trace, event by event. Times are microseconds.
struct Trace {
  Json events = Json::array();
  int correlation = 0;

  void add(const char* category, const std::string& name, double start, double seconds, int thread,
           Json args = Json::object()) {
    events.push_back({{"ph", "X"},
                      {"cat", category},
                      {"name", name},
                      {"ts", start},
                      {"dur", seconds},
                      {"pid", 1},
                      {"tid", thread},
                      {"args", std::move(args)}});
  }
  /// A launch, and its kernel from `start` for `took`.
  void launch(double at, int thread, double start, double took, int external = 0,
              const std::string& name = "a_kernel") {
    ++correlation;
    add("cuda_runtime", "cudaLaunchKernel", at, 4, thread, {{"correlation", correlation}});
    add("kernel", name, start, took, 7,
        {{"correlation", correlation}, {"device", 0}, {"stream", 7}, {"External id", external}});
  }
  std::string text() const {
    return Json{{"deviceProperties", {{{"id", 0}, {"name", "NVIDIA A100-SXM4-80GB"}}}},
                {"traceEvents", events}}
        .dump();
  }
  TorchTrace read() const { return read_torch_trace(text(), "trace.json"); }
};

/// Two steps: 20 launches of forward every 12 us, 20 of backward every 8 us, 5 of the optimizer
/// every 30 us. The device is always behind: 25 us for a kernel and 2 us between two.
Trace two_steps() {
  Trace t;
  double device = 0;
  const auto launch = [&](double at, int thread) {
    device = std::max(device + 2, at + 5);
    t.launch(at, thread, device, 25);
    device += 25;
  };
  for (int step = 0; step < 2; ++step) {
    const double begin = 5000 * step;
    for (int i = 0; i < 20; ++i) launch(begin + 10 + 12 * i, 1);
    t.add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", begin + 400, 200, 2);
    for (int i = 0; i < 20; ++i) launch(begin + 400 + 8 * i, 2);
    t.add("user_annotation", "Optimizer.step#AdamW.step", begin + 700, 300, 1);
    for (int i = 0; i < 5; ++i) launch(begin + 710 + 30 * i, 1);
    t.add("user_annotation", fmt::format("ProfilerStep#{}", step), begin, 4000, 1);
  }
  return t;
}

constexpr double us = 1e-6;

TEST(TorchTrace, FindsTheHostsGapsByPass) {
  const TorchTrace found = two_steps().read();
  EXPECT_EQ(found.device, "NVIDIA A100-SXM4-80GB");
  EXPECT_EQ(found.kernels, 90);
  EXPECT_EQ(found.steps, 2);
  EXPECT_DOUBLE_EQ(found.kernels_per_step, 45);
  EXPECT_NEAR(found.step_seconds, 4000 * us, 1e-12);
  EXPECT_EQ(found.forward.count, 38);
  EXPECT_NEAR(found.forward.mean, 12 * us, 1e-12);
  EXPECT_NEAR(found.forward.median, 12 * us, 1e-12);
  EXPECT_EQ(found.backward.count, 38);
  EXPECT_NEAR(found.backward.mean, 8 * us, 1e-12);
  EXPECT_EQ(found.forward.pauses, 0);
}

TEST(TorchTrace, GapsBetweenKernelsAreThoseOfKernelsThatWaited) {
  const TorchTrace found = two_steps().read();
  // The first kernel of each step found the device idle.
  EXPECT_EQ(found.between_kernels.count, 88);
  EXPECT_NEAR(found.between_kernels.median, 2 * us, 1e-12);
}

TEST(TorchTrace, LeavesOutWaitsAndPauses) {
  Trace t = two_steps();
  t.add("cuda_runtime", "cudaStreamSynchronize", 10 + 12 * 4.5, 5, 1);
  // The last kernel of the first forward pass comes after a pause.
  t.launch(10 + 12 * 19 + 100, 1, 20000, 25);
  t.launch(4500, 1, 21000, 25);
  t.launch(4512, 1, 21100, 25);
  const TorchTrace found = t.read();
  EXPECT_NEAR(found.forward.median, 12 * us, 1e-12);
  EXPECT_EQ(found.forward.count, 38 - 1 + 1 + 1);
  EXPECT_EQ(found.forward.pauses, 0);
  EXPECT_NEAR(found.forward.mean, (37 * 12 + 100 + 12) / 39.0 * us, 1e-12);
  t.launch(4512 + 300, 1, 22000, 25);
  EXPECT_EQ(t.read().forward.pauses, 1);
}

TEST(TorchTrace, SumsTheKernelsOfAProduct) {
  Trace t = two_steps();
  const auto product = [&](int external, const char* op, const Json& dims, const char* type) {
    t.add("cpu_op", op, 9000, 10, 1,
          {{"External id", external}, {"Input Dims", dims}, {"Input type", {type, type, type}}});
  };
  const Json mm = {{512, 1024}, {1024, 4096}};
  for (const int external : {101, 102, 103}) product(external, "aten::mm", mm, "c10::BFloat16");
  product(104, "aten::addmm", {{4096}, {256, 1024}, {1024, 4096}}, "float");
  product(105, "aten::bmm", {{16, 128, 64}, {16, 64, 128}}, "c10::Half");
  product(106, "aten::mm", {{512, 1024}, {77, 4096}}, "c10::Half");  // the sizes do not match
  product(107, "aten::mm", {{0, 1024}, {1024, 4096}}, "c10::Half");
  product(108, "aten::mm", {{64, 1024}, {1024, 4096}}, "c10::Half");  // took no time
  double at = 30000;
  for (const auto& [external, took] : {std::pair(101, 40.0),
                                       {101, 5.0},
                                       {102, 47.0},
                                       {103, 60.0},
                                       {104, 80.0},
                                       {105, 9.0},
                                       {106, 9.0},
                                       {107, 9.0},
                                       {108, 0.0}}) {
    t.launch(at, 1, at + 5, took, external, external == 104 ? "gemm_tf32f32" : "gemm");
    at += 100;
  }
  const TorchTrace found = t.read();
  ASSERT_EQ(found.products.size(), 3U);
  const TracedProduct& first = found.products[0];
  EXPECT_EQ(first.calls, 3);
  EXPECT_NEAR(first.seconds, 47 * us, 1e-12);  // of 45, 47 and 60
  EXPECT_EQ(first.rows, 512);
  EXPECT_EQ(first.columns, 4096);
  EXPECT_EQ(first.inner, 1024);
  EXPECT_EQ(first.dtype, program::DType::bf16);
  EXPECT_FALSE(first.tf32);
  EXPECT_TRUE(found.products[1].tf32);
  EXPECT_EQ(found.products[1].rows, 256);
  EXPECT_EQ(found.products[2].batch, 16);
}

TEST(TorchTrace, FindsTheOperatorOfAKernelByItsLaunch) {
  Trace t = two_steps();
  t.add("cpu_op", "aten::mm", 9000, 10, 1,
        {{"External id", 27},
         {"Input Dims", {{8, 16}, {16, 32}}},
         {"Input type", {"c10::Half", "c10::Half"}}});
  t.add("cuda_runtime", "cudaLaunchKernel", 9002, 4, 1,
        {{"correlation", 1000}, {"External id", 27}});
  t.add("kernel", "gemm", 9100, 6, 7, {{"correlation", 1000}, {"External id", 33}});
  const TorchTrace found = t.read();
  ASSERT_EQ(found.products.size(), 1U);
  EXPECT_NEAR(found.products[0].seconds, 6 * us, 1e-12);
}

TEST(TorchTrace, RefusesWhatIsNoTrace) {
  const auto refusal = [](const std::string& text) {
    return message_of<InputError>([&] { read_torch_trace(text, "trace.json"); });
  };
  EXPECT_THAT(refusal("{"), HasSubstr("trace.json: is no trace of PyTorch's profiler"));
  EXPECT_THAT(refusal("[]"), HasSubstr("with a list \"traceEvents\"; it is a JSON list"));
  EXPECT_THAT(refusal("{\"traceEvents\": 7}"), HasSubstr("\"traceEvents\" is no list"));
  EXPECT_THAT(
      refusal("{\"traceEvents\": [{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"x\"}, 3]}"),
      HasSubstr("no kernel of a GPU"));
}

}  // namespace
}  // namespace rehearse::calibration
