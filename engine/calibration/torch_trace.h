// Reads a trace of PyTorch's profiler (Kineto): Chrome trace JSON with `traceEvents`. Categories:
// "kernel" runs on a GPU, "cuda_runtime" are the calls that launch it (equal `correlation`),
// "cpu_op" are operators of the host (their `External id` is that of the call, in some versions
// that of the kernel; shapes with record_shapes=True), "user_annotation" are marks such as
// ProfilerStep#3. Times are microseconds.
//
// The host's time for a kernel is the gap between two launches of one thread. It is the host's own
// if no call between the two waits for the device. The total of a pass is its kernels times the
// mean gap, so the mean is what a software file needs; the median is given beside it. Gaps of more
// than 20 medians are pauses (data loading, garbage collection), and are left out.
#pragma once
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::calibration {

/// Durations of one kind; seconds.
struct Gaps {
  int count = 0;   // without pauses
  int pauses = 0;  // more than 20 medians
  double mean = 0, median = 0;
  double error = 0;  // standard error of the mean
};

/// All calls of one product of one size.
struct TracedProduct {
  double batch = 1, rows = 0, columns = 0, inner = 0;
  program::DType dtype = program::DType::f32;
  bool tf32 = false;   // a kernel's name says so
  double seconds = 0;  // of its kernels, the median of the calls
  int calls = 0;
};

struct TorchTrace {
  std::string device = {};  // as the trace calls the GPU; empty: not stated
  int kernels = 0;
  int steps = 0;                // ProfilerStep marks
  double kernels_per_step = 0;  // that the host launches between two marks; 0: no marks
  double step_seconds = 0;      // mean; 0: no marks
  /// Of threads that run autograd's backward, and of all others outside of Optimizer.step.
  Gaps forward = {}, backward = {};
  /// On a stream, between the end of a kernel and the start of one that was already launched.
  Gaps between_kernels = {};
  std::vector<TracedProduct> products = {};  // with recorded shapes, in order of first call
};

/// Throws InputError when the text is not such a trace or has no kernel of a GPU.
TorchTrace read_torch_trace(const std::string& text, const std::string& file);

}  // namespace rehearse::calibration
