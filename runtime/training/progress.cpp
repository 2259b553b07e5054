#include "runtime/training/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/numbers/numbers.h"
#include "engine/model/model.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/kernels/optimizer.h"

namespace rehearse::runtime {
namespace {

/// The key under which rank 0 publishes which rank is too slow, and its factor.
constexpr const char* evicted = "evicted";
/// A rank reports its loss, the square of its gradient's norm, its seconds of computing, the labels
/// that it left out, and whether it was late.
constexpr std::size_t values_of_report = 5;

/// The same loss for people: fmt prints some NaNs as "-nan".
double without_sign_of_nan(double loss) { return std::isnan(loss) ? std::abs(loss) : loss; }

/// The peak rate of this run's devices, or why it is not known.
struct Peak {
  double flops = 0;  // FLOP/s, sum over all ranks that compute
  bool calibrated = true;
  std::string unknown = {};
};

Peak peak_of(const job::Job& job, const link::LinkedProgram& linked) {
  // Ranks that share the host's cores: no data sheet says what one rank's share can compute.
  if (job.cluster.shared_cores() > 0) return {.unknown = "the peak rate of its cores is not"};
  Peak peak;
  for (const program::Role& role : linked.program.roles) {
    const auto computes = [](const program::Op& op) {
      return std::holds_alternative<program::Compute>(op.work);
    };
    if (std::none_of(role.ops.begin(), role.ops.end(), computes)) continue;
    for (const Id rank : role.ranks) {
      const Id device = job.plan.placement.rank_to_device.empty()
                            ? rank
                            : job.plan.placement.rank_to_device.at(rank);
      const cluster::DeviceKind& kind = job.cluster.kind_of(device);
      peak.flops += (job.plan.precision == program::DType::f32    ? kind.peak_f32
                     : job.plan.precision == program::DType::bf16 ? kind.peak_bf16
                                                                  : kind.peak_f16)
                        .value;
      peak.calibrated =
          peak.calibrated && kind.calibrated && job.model.software.measured.most_ranks > 0;
    }
  }
  return peak;
}

}  // namespace

Progress::Progress(const job::Job& job, const link::LinkedProgram& linked, const Data& data,
                   Control& control, bool quiet)
    : job_(job),
      data_(data),
      control_(control),
      leader_(control.environment().rank == 0),
      terminal_(isatty(STDOUT_FILENO) != 0),
      quiet_(quiet || !leader_),
      reports_a_step_(linked.program.world_size) {
  int free = 0;
  for (const program::Role& role : linked.program.roles)
    if (role.free_running) free += static_cast<int>(role.ranks.size());
  by_arrival_ = free > 0;
  if (by_arrival_) {
    reports_a_step_ = free;
    silent_ = !linked.program.roles[linked.role_of[control.environment().rank]].free_running;
  }
  if (!leader_) return;
  if (job.recovery.slow_factor > 0 && !by_arrival_)
    slow_.emplace(linked.role_of, job.recovery.slow_factor);
  const Peak peak = peak_of(job, linked);
  peak_flops_ = peak.flops;
  no_mfu_ = peak.unknown;
  mfu_suffix_ = peak.calibrated ? "" : "  uncalibrated";
}

void Progress::open(const std::string& folder) {
  metrics_file_ = metrics_path(folder);
  const std::int64_t began_at = control_.environment().began_at;  // else of this start
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  std::ifstream earlier(metrics_file_);
  for (std::string line; std::getline(earlier, line);)
    if (const auto row = nlohmann::json::parse(line, nullptr, false);
        row.is_object() && row.value("tokens", nlohmann::json()).is_number_integer() &&
        row.value("step", nlohmann::json()).is_number_integer()) {
      row["tokens"].get_to(earlier_tokens_), row["step"].get_to(earlier_steps_);
      if (began_at >= 0 && earlier_steps_ > began_at)
        earlier_losses_.push_back(row.value("loss", nan));
    }
  metrics_.open(metrics_file_, std::ios::app);
  if (!metrics_) throw InputError(fmt::format("train.out: {}: cannot write it", metrics_file_));
}

void Progress::write(const nlohmann::json& row) {
  if (!metrics_.is_open()) return;
  metrics_ << row.dump() << '\n' << std::flush;
  if (!metrics_) throw BackendError(fmt::format("{}: cannot write it", metrics_file_));
}

double Progress::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::optional<std::string> Progress::eviction() const {
  if (job_.recovery.slow_factor == 0) return std::nullopt;
  const auto found = control_.lookup(evicted);
  if (!found || std::stoi(*found) != control_.environment().rank) return std::nullopt;
  return slowness(std::stod(found->substr(found->find(' ') + 1)), job_.recovery.slow_factor);
}

std::optional<SlowRank> Progress::overloaded() {
  if (!leader_ || job_.recovery.slow_factor == 0) return std::nullopt;
  const std::lock_guard lock(lock_);
  return std::exchange(overloaded_, std::nullopt);
}

void Progress::look_for_slow_rank(const StepReport& report) {
  auto slow = slow_->add(report.rank, report.values.at(2));
  if (!slow) return;
  if (job_.recovery.slow_rank == job::SlowRankPolicy::evict)
    control_.publish(evicted, fmt::format("{} {:.1f}", slow->rank, slow->factor));
  else
    overloaded_ = std::move(slow);
  slow_.reset();  // this start ends
}

void Progress::step(std::int64_t step, const StepLoss& loss, bool counts, double computed_s) {
  if (silent_) return;
  const std::array<double, values_of_report> values = {
      counts ? loss.sum : 0.0, loss.square_norm, computed_s,
      static_cast<double>(loss.missed_labels), loss.late ? 1.0 : 0.0};
  control_.report(step, values);
  if (!leader_) return;
  const std::lock_guard lock(lock_);
  if (!by_arrival_) ended_[step] = now();
  collect();
}

void Progress::collect() {
  while (const std::optional<StepReport> report = control_.next_report()) {
    if (report->values.size() != values_of_report)
      control_.refuse(report->rank,
                      fmt::format("a step's report with {} values", report->values.size()));
    const std::int64_t step = by_arrival_ ? first_ + arrived_++ / reports_a_step_ : report->step;
    if (slow_) look_for_slow_rank(*report);
    PendingStep& told = open_[step];
    told.losses.emplace_back(report->rank, report->values.at(0));
    told.square_norm = std::max(told.square_norm, report->values.at(1));
    told.missed_labels += report->values.at(3);
    if (report->values.at(3) > 0 || report->values.at(4) > 0) told.late.push_back(report->rank);
    if (std::isnan(report->values.at(1))) told.square_norm = report->values.at(1);
  }
  while (!open_.empty() && std::ssize(open_.begin()->second.losses) == reports_a_step_) {
    ended_.try_emplace(open_.begin()->first, now());
    tell(open_.begin()->first, std::move(open_.begin()->second));
    open_.erase(open_.begin());
  }
}

void Progress::drain(std::int64_t end) {
  if (!leader_) return;
  const double deadline = now() + control_.options().timeout.value;
  for (;;) {
    {
      const std::lock_guard lock(lock_);
      if (first_ < 0 || static_cast<std::int64_t>(losses_.size()) >= end - first_) break;
      collect();
    }
    control_.check();
    if (now() > deadline) break;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void Progress::tell(std::int64_t step, PendingStep told) {
  // In the order of ranks and not of arrival: two runs have the same losses, bit by bit.
  std::ranges::sort(told.losses);
  double sum = 0;
  for (const auto& [rank, loss] : told.losses) sum += loss;
  const double labels = static_cast<double>(data_.training_labels(step)) - told.missed_labels;
  const double loss = sum / labels;  // not a number if all clients had given up
  const double norm =
      told.square_norm < 0 ? std::numeric_limits<double>::quiet_NaN() : std::sqrt(told.square_norm);
  losses_.push_back(loss);
  if (labels > 0 && !diverged_ && !std::isfinite(loss)) diverged_ = step + 1;
  norms_.push_back(norm);
  double seconds = 0;
  if (const auto before = ended_.find(step - 1); before != ended_.end()) {
    seconds = ended_.at(step) - before->second;
    times_.push_back(seconds);
    timed_.push_back(step);
    ended_.erase(ended_.begin(), std::next(before));
  }
  const double tokens = double(job_.plan.schedule.global_batch) * job_.model.seq_len;
  const double flops = model_flops(job_.model, static_cast<std::int64_t>(tokens)).value;
  const double mfu = seconds > 0 && peak_flops_ > 0 ? flops / seconds / peak_flops_ : 0;
  nlohmann::json row = {{"step", step + 1},  // the number of steps done, as in all other lines
                        {"lr", learning_rate(job_.train, step)},
                        {"tokens", earlier_tokens_ + static_cast<std::int64_t>(tokens) *
                                                         (step + 1 - earlier_steps_)}};
  if (labels > 0) row["loss"] = loss;
  if (const plan::Averaging& how = job_.plan.exchange.averaging; how.deadline) {
    const bool ends_round = (step + 1) % *how.local_steps == 0;
    const auto clients = static_cast<std::size_t>(job_.plan.mesh.dp);
    if (ends_round) ++(told.late.size() == clients ? lost_rounds_ : other_rounds_);
    std::ranges::sort(told.late);
    if (ends_round || !told.late.empty()) row["late"] = told.late;
  }
  if (seconds > 0) row["step_time_s"] = seconds, row["tokens_per_s"] = tokens / seconds;
  if (mfu > 0) row["mfu"] = mfu;
  if (!std::isnan(norm)) row["grad_norm"] = norm;
  if (auto clients = data_.drawn_clients(step); !clients.empty()) row["clients"] = clients;
  write(row);
  std::string text = fmt::format("step {}/{}  ", step + 1, job_.train.steps);
  text +=
      labels > 0 ? fmt::format("loss {:.4f}", without_sign_of_nan(loss)) : "all clients are late";
  if (seconds > 0)
    text += fmt::format("  {:.0f} tok/s  {}/step", tokens / seconds, to_text(Seconds(seconds)));
  if (mfu > 0) text += fmt::format("  MFU {}{}", percent(mfu, 1), mfu_suffix_);
  const std::int64_t every = std::max<std::int64_t>(job_.run.log_every, 1);
  line(text, !terminal_ && ((step + 1) % every == 0 || step + 1 == job_.train.steps));
}

void Progress::line(const std::string& text, bool keep) {
  if (quiet_) return;
  if (keep) {
    if (live_) std::fputs("\r\033[K", stdout);
    std::fputs((text + "\n").c_str(), stdout);
    live_ = false;
  } else if (terminal_) {
    std::fputs(("\r\033[K" + text).c_str(), stdout);
    live_ = true;
  }
  std::fflush(stdout);
}

void Progress::validation(std::int64_t step, double loss, double seconds) {
  if (!leader_) return;
  // The time of the validation belongs to no step.
  ended_.clear();
  write({{"step", step}, {"validation_loss", loss}});
  loss = without_sign_of_nan(loss);
  line(fmt::format("step {}/{}  validation loss {:.4f}  perplexity {:.2f}  ({})", step,
                   job_.train.steps, loss, std::exp(loss), to_text(Seconds(seconds))),
       true);
}

void Progress::evaluated(std::int64_t step, const std::string& folder, double loss,
                         double seconds) {
  if (!leader_) return;
  ended_.clear();
  write({{"step", step}, {"evaluated", folder}, {"evaluated_loss", loss}});
  loss = without_sign_of_nan(loss);
  line(fmt::format("step {}/{}  loss on {} {:.4f}  perplexity {:.2f}  ({})", step, job_.train.steps,
                   folder, loss, std::exp(loss), to_text(Seconds(seconds))),
       true);
}

void Progress::saved(std::int64_t step, const std::string& path, double seconds, bool stopped,
                     const std::optional<BaseRecord>& base) {
  if (!leader_) return;
  const std::lock_guard lock(lock_);
  if (stopped) ended_.clear();  // the time of the save belongs to no step
  std::string more;
  if (base) {
    more = fmt::format(", {} has changed since step {}", percent(base->changed, 1), base->step);
    if (base->bits > 0) more += fmt::format(", rounded by {:.2g} at most", base->error);
    write({{"step", step},
           {"base", base->step},
           {"changed", base->changed},
           {"error", base->error},
           {"relative_error", base->relative_error}});
  }
  line(fmt::format("step {}/{}  saved {}  ({}{})", step, job_.train.steps, path,
                   to_text(Seconds(seconds)), more),
       true);
}

void Progress::checked(std::int64_t step) {
  if (!leader_) return;
  ended_.clear();  // the time of the check belongs to no step
  write({{"step", step}, {"checked", true}});
}

void Progress::replaced(const Replacement& r) {
  if (!leader_) return;
  slow_.reset();  // the new plan divides the work in another way
  ended_.clear();
  write({{"step", r.step},
         {"plan", r.plan},
         {"migration_s", r.seconds},
         {"migration_bytes", r.bytes}});
  line(fmt::format("step {}/{}  goes on under another plan: {}  ({} sent, {})", r.step,
                   job_.train.steps, r.plan, to_text(Bytes(static_cast<double>(r.bytes))),
                   to_text(Seconds(r.seconds))),
       true);
}

std::vector<double> Progress::times_since(std::int64_t step) const {
  std::vector<double> out;
  for (std::size_t i = 0; i < times_.size(); ++i)
    if (timed_[i] >= step) out.push_back(times_[i]);
  return out;
}

void Progress::summarise(TrainSummary& summary) const {
  const Environment& environment = control_.environment();
  summary.starts = environment.start + 1;
  if (environment.began_at >= 0)  // or earlier: after checkpoints that were damaged
    summary.first_step = std::min(summary.first_step, environment.began_at);
  std::vector<double>& losses = summary.losses = earlier_losses_;
  losses.insert(losses.end(), losses_.begin(), losses_.end());
  summary.grad_norms = norms_;
  summary.step_times = times_;
  if (!losses.empty()) {
    summary.first_loss = losses.front();
    summary.last_loss = std::isnan(losses.back()) ? std::fabs(losses.back()) : losses.back();
  }
  if (times_.empty()) return;
  std::vector<double> sorted = times_;
  std::sort(sorted.begin(), sorted.end());
  summary.median_step_s = sorted[sorted.size() / 2];
  const double tokens = double(job_.plan.schedule.global_batch) * job_.model.seq_len;
  summary.tokens_per_s = tokens / summary.median_step_s;
  if (peak_flops_ > 0)
    summary.mfu = model_flops(job_.model, static_cast<std::int64_t>(tokens)).value /
                  summary.median_step_s / peak_flops_;
}

void Progress::finish(const TrainSummary& summary) {
  const std::int64_t steps = summary.end_step - summary.first_step, last = job_.train.steps;
  if (steps == 0 && summary.end_step >= last)
    return line(summary.end_step == last
                    ? fmt::format("nothing to do: the run is at its last step {}", last)
                    : fmt::format("nothing to do: the run is at step {}, beyond train.steps = {}",
                                  summary.end_step, last),
                true);
  std::string text = fmt::format("trained {} step{}", steps, steps == 1 ? "" : "s");
  if (summary.starts > 1) text += fmt::format(" in {} starts", summary.starts);
  if (steps > 0)
    text += fmt::format(": loss {:.4f} -> {}", summary.first_loss,
                        lost_rounds_ > 0 && std::isnan(summary.last_loss)
                            ? "none"
                            : fmt::format("{:.4f}", summary.last_loss));
  if (!std::isnan(summary.validation_loss))
    text += fmt::format(", validation {:.4f}", summary.validation_loss);
  if (summary.median_step_s > 0)
    text += fmt::format(", {:.0f} tok/s, {} a step (median)", summary.tokens_per_s,
                        to_text(Seconds(summary.median_step_s)));
  if (summary.mfu > 0)
    text += fmt::format(", MFU {}{}", percent(summary.mfu, 1), mfu_suffix_);
  else if (!no_mfu_.empty())
    text += fmt::format(", MFU not known ({})", no_mfu_);
  if (!summary.checkpoint.empty()) text += ", saved " + summary.checkpoint;
  if (summary.signal != 0)
    text += fmt::format(" (interrupted by SIG{})", sigabbrev_np(summary.signal));
  line(text, true);
  if (lost_rounds_ > 0)
    fmt::print(stderr,
               "warning: all clients were late in {} of {} rounds, which changed no weight: a "
               "longer method.deadline may help\n",
               lost_rounds_, lost_rounds_ + other_rounds_);
  if (diverged_)
    fmt::print(
        stderr,
        "warning: the loss is not finite in step {}: a smaller train.lr, a train.clip or more "
        "train.warmup_steps may help\n",
        *diverged_);
}

}  // namespace rehearse::runtime
