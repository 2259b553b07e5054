// Programs whose workers are served as they arrive, held to one process that serves them in the
// same order. The order is the test's: a worker's gradient leaves when its turn has come, and the
// next turn begins when the answer is there.
#pragma once
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "tests/models/reference.h"

namespace rehearse::runtime {

struct ServedRun {
  std::vector<std::vector<double>> losses = {};  // sums over labels, by worker and its own step
  reference::Weights weights = {};               // the server's
};

/// Really trains, in processes, a job with one server, which takes gradients of the workers in
/// `order`: as many as its steps need. Saves into `folder`. Fails the test when a rank fails.
ServedRun train_in_order(const job::Job& job, const std::vector<int>& order,
                         const std::string& folder);
/// The same by plain autograd: a worker's gradient is taken at the weights that it was answered
/// with last, and applied to what the server has by then.
ServedRun reference_in_order(const job::Job& job, const std::vector<int>& order);

}  // namespace rehearse::runtime
