// Fits a device, a software or both to step times. Each row is predicted as `rehearse validate`
// predicts it, with the values of the fit in the place of the device's and the software's own.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/numbers/limits.h"
#include "engine/software/software.h"
#include "study/calibration/calibration.h"
#include "study/calibration/calibration_files.h"
#include "study/calibration/step_columns.h"
#include "study/calibration/validation.h"
#include "study/load.h"
#include "study/planning/decision.h"
#include "study/prediction/study.h"

namespace rehearse::study {
namespace {

/// A key that can be fitted: a fraction of the device or seconds of the software.
struct Knob {
  const char* key = "";
  double cluster::DeviceKind::*fraction = nullptr;
  Seconds software::Software::*duration = nullptr;
  double scale = 0;  // seconds that matter, where the start is 0
};
constexpr std::array knobs{
    Knob{"efficiency", &cluster::DeviceKind::efficiency},
    Knob{"f32_efficiency", &cluster::DeviceKind::f32_efficiency},
    Knob{"memory_efficiency", &cluster::DeviceKind::memory_efficiency},
    Knob{"attention_efficiency", &cluster::DeviceKind::attention_efficiency},
    Knob{"host.forward", nullptr, &software::Software::forward_issue, 1e-5},
    Knob{"host.backward", nullptr, &software::Software::backward_issue, 1e-5},
    Knob{"host.micro_batch", nullptr, &software::Software::microbatch, 1e-4},
    Knob{"host.update", nullptr, &software::Software::update, 1e-4}};

const Knob& knob_of(const Candidate& candidate) {
  return *std::find_if(knobs.begin(), knobs.end(),
                       [&](const Knob& knob) { return candidate.parameter.name == knob.key; });
}

struct MeasuredJob {
  job::Job job = {};
  Id kind = none;  // the fitted device in the job's cluster
};

class StepRows {
 public:
  explicit StepRows(const CalibrationQuestion& question) : question_(question), columns_(question) {
    if (question.device.empty() && question.software.empty())
      throw InputError(
          "name what to fit: --device NAME for the efficiencies of a device, --software NAME for "
          "the host's seconds, or both");
    if (!question.software.empty()) software_ = software::load_software(question.software).name;
    const std::vector<ValidationRow> rows =
        read_measurements(columns_.table(), question.data, false);
    for (std::size_t r = 0; r < rows.size(); ++r) load(rows[r], r);
    if (jobs_.empty()) refuse();
  }

  const std::vector<CalibratedRow>& rows() const { return rows_; }
  std::size_t left_out() const { return left_out_; }
  const StepColumns& columns() const { return columns_; }
  const job::Job& first() const { return jobs_.front().job; }
  /// The device as the jobs have it now; the first of the cluster when none is to be fitted.
  cluster::DeviceKind device() const {
    return first().cluster.kinds()[jobs_.front().kind == none ? 0 : jobs_.front().kind];
  }
  /// What can be fitted to these rows, with its start values.
  std::vector<Candidate> candidates() const {
    std::vector<Candidate> out;
    for (const Knob& knob : knobs) {
      if ((knob.fraction != nullptr ? question_.device : question_.software).empty()) continue;
      const bool duration = knob.duration != nullptr;
      const Limits limits = duration ? limits::latency : limits::efficiency;
      const double start =
          duration ? (first().model.software.*knob.duration).value : device().*knob.fraction;
      out.push_back({{.name = knob.key,
                      .start = start,
                      .least = limits.least,
                      .most = limits.most,
                      .scale = std::max(start, knob.scale)},
                     duration});
    }
    return out;
  }
  /// Seconds of a step of the row with these values of the keys.
  double seconds(std::size_t row, const std::vector<Candidate>& keys,
                 std::span<const double> values) {
    MeasuredJob& one = jobs_[row];
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Knob& knob = knob_of(keys[i]);
      if (knob.duration != nullptr) {
        one.job.model.software.*knob.duration = Seconds(values[i]);
        continue;
      }
      cluster::DeviceKind kind = one.job.cluster.kinds()[one.kind];
      kind.*knob.fraction = values[i];
      one.job.cluster.replace_kind(one.kind, std::move(kind));
    }
    return step_seconds(row, one.job);
  }
  /// Seconds of a step of the row on devices that reach their peaks, with a host that takes no
  /// time.
  double least(std::size_t row) const {
    job::Job job = jobs_[row].job;
    for (std::size_t k = 0; k < job.cluster.kinds().size(); ++k) {
      cluster::DeviceKind kind = job.cluster.kinds()[k];
      for (const Knob& knob : knobs)
        if (knob.fraction != nullptr) kind.*knob.fraction = 1;
      job.cluster.replace_kind(static_cast<Id>(k), std::move(kind));
    }
    for (const Knob& knob : knobs)
      if (knob.duration != nullptr) job.model.software.*knob.duration = {};
    return step_seconds(row, job);
  }
  /// The range of the rows' jobs, for the comments of a written file.
  std::vector<std::string> range() const {
    const auto least_to_most = [&](const char* what, auto&& of) {
      int least = std::numeric_limits<int>::max(), most = 0;
      for (std::size_t i = 0; i < jobs_.size(); ++i) {
        if (!rows_[i].fitted) continue;
        least = std::min(least, of(jobs_[i].job));
        most = std::max(most, of(jobs_[i].job));
      }
      return least == most ? fmt::format("{} {}", what, least)
                           : fmt::format("{} {} to {}", what, least, most);
    };
    return {fmt::format(
        "Fitted to rows of {}, {}, {}. Other jobs are less certain.",
        least_to_most("hidden size", [](const job::Job& j) { return j.model.hidden; }),
        least_to_most("micro-batches of", [](const job::Job& j) { return j.plan.samples(); }),
        least_to_most("GPUs", [](const job::Job& j) { return j.plan.mesh.world_size(); }))};
  }
  /// What the fitted rows say of other jobs.
  software::Measured measured() const {
    software::Measured out;
    std::set<std::string> methods, precisions, devices;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      if (!rows_[i].fitted) continue;
      const software::Measured::Job job = measured_job(jobs_[i].job);
      const auto tokens = static_cast<std::int64_t>(job.tokens);
      const bool first = out.most_ranks == 0;
      out.least_hidden = first ? job.hidden : std::min(out.least_hidden, job.hidden);
      out.least_tokens = first ? tokens : std::min(out.least_tokens, tokens);
      out.most_hidden = std::max(out.most_hidden, job.hidden);
      out.most_tokens = std::max(out.most_tokens, tokens);
      out.most_ranks = std::max(out.most_ranks, job.ranks);
      methods.insert(job.method), precisions.insert(job.precision);
      devices.insert(job.devices.begin(), job.devices.end());
    }
    out.methods.assign(methods.begin(), methods.end());
    out.precisions.assign(precisions.begin(), precisions.end());
    out.devices.assign(devices.begin(), devices.end());
    return out;
  }

 private:
  InputError unpredictable(const std::string& row, const InputError& error) const {
    return InputError(
        fmt::format("{}: row \"{}\" cannot be predicted: {}", question_.data, row, error.what()));
  }
  double step_seconds(std::size_t row, const job::Job& job) const {
    try {
      return predict_step(completed(job), Fidelity::analytic).summary.step_time.mean;
    } catch (const InputError& error) {
      throw unpredictable(rows_[row].name, error);
    }
  }
  void load(const ValidationRow& row, std::size_t number) {
    std::vector<std::string> keys = columns_.overrides(number);
    keys.insert(keys.end(), row.overrides.begin(), row.overrides.end());
    keys.insert(keys.end(), question_.overrides.begin(), question_.overrides.end());
    MeasuredJob one;
    try {
      one.job = question_.job.empty()
                    ? study::load({.file = question_.data, .text = "", .set = keys})
                    : study::load(question_.job, keys);
      decide_plan(one.job, nullptr);
    } catch (const InputError& error) {
      throw unpredictable(row.name, error);
    }
    columns_.check(number, one.job);
    for (std::size_t k = 0; k < one.job.cluster.kinds().size(); ++k) {
      const std::string& name = one.job.cluster.kinds()[k].name;
      devices_.insert(name);
      if (name == question_.device) one.kind = static_cast<Id>(k);
    }
    softwares_.insert(one.job.model.software.name);
    const bool other_device = !question_.device.empty() && one.kind == none;
    const bool other_software = !software_.empty() && one.job.model.software.name != software_;
    if (other_device || other_software) {
      ++left_out_;
      return;
    }
    jobs_.push_back(std::move(one));
    rows_.push_back({.name = row.name, .fitted = row.calibrates, .measured = row.measured});
  }
  /// When no row has the device and the software.
  [[noreturn]] void refuse() const {
    const auto fail = [&](const char* flag, const std::string& name,
                          const std::set<std::string>& there) {
      const std::string near = nearest(name, {there.begin(), there.end()});
      throw InputError(fmt::format(
          "{} \"{}\": no row of {} uses it; {}the rows use {}", flag, name, question_.data,
          near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near), fmt::join(there, ", ")));
    };
    if (devices_.empty()) throw InputError(fmt::format("{}: no row", question_.data));
    if (!question_.device.empty() && !devices_.contains(question_.device))
      fail("--device", question_.device, devices_);
    if (!software_.empty() && !softwares_.contains(software_))
      fail("--software", software_, softwares_);
    throw InputError(fmt::format("{}: no row uses both device \"{}\" and software \"{}\"",
                                 question_.data, question_.device, software_));
  }

  const CalibrationQuestion& question_;
  StepColumns columns_;
  std::string software_ = {};  // name; empty: of any
  std::vector<MeasuredJob> jobs_ = {};
  std::vector<CalibratedRow> rows_ = {};  // of each job
  std::size_t left_out_ = 0;
  std::set<std::string> devices_ = {}, softwares_ = {};  // of all rows
};

/// A key of --fit also needs what it is a key of.
void check_flags(const CalibrationQuestion& question) {
  for (const std::string& key : question.fit)
    for (const Knob& knob : knobs) {
      const bool of_device = knob.fraction != nullptr;
      if (key == knob.key && (of_device ? question.device : question.software).empty())
        throw InputError(fmt::format("--fit {}: needs {} NAME, whose key it is", key,
                                     of_device ? "--device" : "--software"));
    }
}

}  // namespace

Calibration calibrate_steps(const CalibrationQuestion& question) {
  StepRows rows(question);
  Calibration out{.rows = rows.rows(), .notes = rows.columns().notes()};
  check_flags(question);
  const std::vector<Candidate> keys = chosen(rows.candidates(), question.fit);
  const std::vector<double> values =
      fit_rows(question, keys,
               {.seconds = [&](std::size_t row,
                               std::span<const double> at) { return rows.seconds(row, keys, at); },
                .least = [&](std::size_t row) { return rows.least(row); }},
               out);
  if (!question.device.empty()) out.facts.emplace_back("device", question.device);
  out.facts.emplace_back("software", rows.first().model.software.name);
  if (rows.left_out() > 0)
    out.facts.emplace_back("left out",
                           fmt::format("{} rows of another device or software", rows.left_out()));
  const std::string source = source_text(question, out);
  cluster::DeviceKind kind = rows.device();
  kind.calibrated = true;
  kind.source = fmt::format("{}; before: {}", source, kind.source);
  bool device = false, software = false;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Knob& knob = knob_of(keys[i]);
    if (knob.fraction != nullptr) kind.*knob.fraction = values[i];
    (knob.fraction != nullptr ? device : software) |= out.keys[i].fitted;
  }
  if (device) out.device_file = device_text(kind, rows.range());
  if (software)
    out.software_file =
        software_text(question.software, source, out.keys, rows.range(), rows.measured());
  return out;
}

}  // namespace rehearse::study
