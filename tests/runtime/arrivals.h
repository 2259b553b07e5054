// Runs asynchronous programs, whose server serves workers in order of arrival, and compares them
// with one process that serves the workers in the same order. The test prescribes the order: a
// worker sends its gradient when its turn comes, and the next turn begins when it has the answer.
#pragma once
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "tests/models/reference.h"

namespace rehearse::runtime {

struct ServedRun {
  std::vector<std::vector<double>> losses = {};  // [worker][its own step], sums over labels
  reference::Weights weights = {};               // of the server
};

/// Trains a job with one server in real processes. The server takes as many gradients as its steps
/// need, from the workers in `order`. Saves into `folder`. Fails the test when a rank fails.
ServedRun train_in_order(const job::Job& job, const std::vector<int>& order,
                         const std::string& folder);
/// The same by plain autograd in one process. A worker computes its gradient with the weights of
/// the last answer that it got; the server applies it to the weights that it has by then. If
/// workers train apart, each updates that answer by an optimizer of its own, and the server adds
/// what the update has changed.
ServedRun reference_in_order(const job::Job& job, const std::vector<int>& order);

}  // namespace rehearse::runtime
