// Names of ops in messages of the control plane, and its options.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "engine/job/job.h"
#include "runtime/control/control.h"
#include "runtime/training/placed.h"

namespace rehearse::runtime {

/// Names ops of the current plan for messages of the control plane, which runs on another thread.
class OpNames {
 public:
  void set(std::shared_ptr<const LinkedPlan> plan) {
    const std::lock_guard lock(mutex_);
    plan_ = std::move(plan);
  }
  std::string operator()(Id process, Id op) const {
    const std::lock_guard lock(mutex_);
    if (plan_ == nullptr) return "";
    const link::LinkedProgram& linked = plan_->linked;
    const program::Role& role =
        linked.program.roles.at(linked.role_of.at(plan_->plays.at(process)));
    return op < role.ops.size() ? to_text(linked.program, role, op) : std::string();
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const LinkedPlan> plan_ = {};
};

/// How the ranks of a job meet and watch each other. `described` must outlive the control plane.
inline ControlOptions control_options(const job::Job& job, const OpNames& described) {
  return {.timeout = job.run.timeout,
          .heartbeat = job.run.heartbeat,
          .join = job.run.connect_timeout,
          .secret_file = job.run.secret_file,
          .trust_network = job.run.trust_network,
          .encrypt = job.run.encrypt,
          .interface = job.run.interface,
          .describe = [&described](Id process, Id op) { return described(process, op); }};
}

}  // namespace rehearse::runtime
