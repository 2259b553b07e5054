// What a trace of PyTorch's profiler shows: the host's seconds for a kernel, the gap between
// kernels on the device, and, where shapes were recorded, how fast the device computes products.
// Gaps are measured as they are. Efficiencies are fitted to the seconds of the products, which
// engine/costs/device/device_time.h predicts.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"
#include "engine/base/units.h"
#include "engine/calibration/torch_trace.h"
#include "engine/costs/device/device_time.h"
#include "engine/software/software.h"
#include "study/calibration/calibration.h"
#include "study/calibration/calibration_files.h"

namespace rehearse::study {
namespace {

constexpr int least_gaps = 10;  // that say something

struct Fraction {
  const char* key = "";
  double cluster::DeviceKind::*value = nullptr;
};
constexpr std::array fractions{
    Fraction{"efficiency", &cluster::DeviceKind::efficiency},
    Fraction{"f32_efficiency", &cluster::DeviceKind::f32_efficiency},
    Fraction{"memory_efficiency", &cluster::DeviceKind::memory_efficiency}};

/// A key that is read from gaps.
struct Measured {
  const char* key = "";
  double at_start = 0;
  const calibration::Gaps* gaps = nullptr;
  double value = 0;
  const char* kind = "";  // of gaps
};

model::Launch launch_of(const calibration::TracedProduct& p) {
  const double size = static_cast<double>(program::size_of(p.dtype));
  return {.kind = model::Launch::Kind::product,
          .batch = p.batch,
          .rows = p.rows,
          .columns = p.columns,
          .inner = p.inner,
          .bytes = size * p.batch * (p.rows * p.inner + p.inner * p.columns + p.rows * p.columns)};
}

std::string name_of_product(const calibration::TracedProduct& p) {
  return fmt::format("{}{:g} x {:g} x {:g} {}{}",
                     p.batch > 1 ? fmt::format("{:g} of ", p.batch) : "", p.rows, p.columns,
                     p.inner, name_of(p.dtype), p.tf32 ? " (TF32)" : "");
}

class TraceCalibration {
 public:
  explicit TraceCalibration(const CalibrationQuestion& question)
      : question_(question), trace_(calibration::read_torch_trace(question.text, question.data)) {
    if (question.device.empty() && question.software.empty())
      throw InputError(
          "name what to measure: --device NAME for efficiencies and the gap between kernels, "
          "--software NAME for the host's seconds, or both");
    if (!question.device.empty()) kind_ = cluster::load_device(question.device);
    if (!question.software.empty()) software_ = software::load_software(question.software);
    check_fit();
  }

  Calibration done() {
    describe();
    if (!question_.device.empty()) fit_products();
    measure();
    if (out_.keys.empty() || std::none_of(out_.keys.begin(), out_.keys.end(),
                                          [](const CalibratedKey& key) { return key.fitted; }))
      throw InputError(fmt::format("{}: shows none of the keys that were asked for{}",
                                   question_.data,
                                   out_.notes.empty() ? "" : ": " + out_.notes.front()));
    write();
    return std::move(out_);
  }

 private:
  bool wanted(const std::string& key) const {
    return question_.fit.empty() ||
           std::find(question_.fit.begin(), question_.fit.end(), key) != question_.fit.end();
  }
  std::vector<Measured> measured() const {
    std::vector<Measured> out;
    if (!question_.device.empty())
      out.push_back({"launch", kind_.launch.value, &trace_.between_kernels,
                     trace_.between_kernels.median, "kernels that waited for the one before"});
    if (!question_.software.empty()) {
      out.push_back({"host.forward", software_.forward_issue.value, &trace_.forward,
                     trace_.forward.mean, "launches of forward passes"});
      out.push_back({"host.backward", software_.backward_issue.value, &trace_.backward,
                     trace_.backward.mean, "launches of backward passes"});
    }
    return out;
  }
  std::vector<Candidate> fitted() const {
    std::vector<Candidate> out;
    for (const Fraction& one : fractions)
      if (wanted(one.key))
        out.push_back({{.name = one.key,
                        .start = kind_.*one.value,
                        .least = limits::efficiency.least,
                        .most = limits::efficiency.most,
                        .scale = kind_.*one.value},
                       false});
    return out;
  }
  void check_fit() const {
    std::vector<Candidate> known = question_.device.empty() ? std::vector<Candidate>{} : fitted();
    if (!question_.device.empty())
      for (const Fraction& one : fractions) known.push_back({{.name = one.key}, false});
    for (const Measured& one : measured()) known.push_back({{.name = one.key}, true});
    chosen(known, question_.fit);
  }
  void describe() {
    if (!trace_.device.empty()) out_.facts.emplace_back("recorded on", trace_.device);
    if (!question_.device.empty()) out_.facts.emplace_back("device", question_.device);
    if (!question_.software.empty()) out_.facts.emplace_back("software", question_.software);
    out_.facts.emplace_back("kernels", fmt::format("{}", trace_.kernels));
    if (trace_.steps > 0)
      out_.facts.emplace_back(
          "steps", fmt::format("{} of {}, each {:.1f} kernels", trace_.steps,
                               to_text(Seconds(trace_.step_seconds)), trace_.kernels_per_step));
    else
      out_.notes.emplace_back(
          "steps: no ProfilerStep marks, so the kernels of a step are not known; call step() of "
          "the "
          "profiler after each step");
  }
  void fit_products() {
    const std::vector<Candidate> keys = fitted();
    if (keys.empty()) return;
    if (trace_.products.size() < 2) {
      out_.notes.push_back(fmt::format(
          "efficiency: {}; record_shapes=True of the profiler records them",
          trace_.products.empty() ? "no product with recorded sizes"
                                  : "products of only one size, and cross-validation needs two"));
      return;
    }
    out_.rows_are = "products";
    for (const calibration::TracedProduct& p : trace_.products) {
      if (!costs::computes_in(kind_, p.dtype))
        throw InputError(
            fmt::format("{}: has a product in {}, which {} cannot compute: is it the "
                        "device of this trace?",
                        question_.data, name_of(p.dtype), kind_.name));
      out_.rows.push_back({.name = name_of_product(p), .measured = p.seconds});
    }
    cluster::DeviceKind kind = kind_;
    kind.launch = {};  // a kernel's own seconds hold no gap
    const std::vector<double> values =
        fit_rows(question_, keys,
                 {.seconds =
                      [&](std::size_t row, std::span<const double> at) {
                        for (std::size_t i = 0; i < keys.size(); ++i)
                          kind.*fraction_of(keys[i]) = at[i];
                        return seconds_of(kind, trace_.products[row]);
                      },
                  .table = false,
                  .least =
                      [&](std::size_t row) {
                        cluster::DeviceKind peak = kind;
                        for (const Fraction& one : fractions) peak.*one.value = 1;
                        return seconds_of(peak, trace_.products[row]);
                      }},
                 out_);
    for (std::size_t i = 0; i < keys.size(); ++i) kind_.*fraction_of(keys[i]) = values[i];
  }
  static double seconds_of(const cluster::DeviceKind& kind, const calibration::TracedProduct& p) {
    return costs::launch_seconds(kind, launch_of(p), p.dtype, p.tf32);
  }
  static double cluster::DeviceKind::*fraction_of(const Candidate& key) {
    return std::find_if(fractions.begin(), fractions.end(),
                        [&](const Fraction& one) { return key.parameter.name == one.key; })
        ->value;
  }
  void measure() {
    for (const Measured& one : measured()) {
      if (!wanted(one.key)) continue;
      const bool gaps_suffice = one.gaps->count >= least_gaps;
      if (!gaps_suffice)
        out_.notes.push_back(fmt::format("{}: only {} gaps between {}; it keeps its value", one.key,
                                         one.gaps->count, one.kind));
      out_.keys.push_back(
          {.key = one.key,
           .at_start = one.at_start,
           .calibrated = gaps_suffice ? rounded(one.value) : one.at_start,
           .spread = gaps_suffice ? one.gaps->error : 0,
           .duration = true,
           .fitted = gaps_suffice,
           .from = gaps_suffice ? fmt::format("{} gaps between {}, median {}, {} pauses left out",
                                              one.gaps->count, one.kind,
                                              to_text(Seconds(one.gaps->median)), one.gaps->pauses)
                                : std::string()});
      if (gaps_suffice && std::string(one.key) == "launch")
        kind_.launch = Seconds(rounded(one.value));
    }
    out_.notes.emplace_back(
        "a trace does not show attention_efficiency, host.micro_batch, host.update and host.waits; "
        "step times do");
  }
  void write() {
    const std::string name = question_.data.substr(question_.data.find_last_of('/') + 1);
    const std::string source = out_.folds > 0
                                   ? source_text(question_, out_)
                                   : fmt::format("rehearse calibrate, profiler's trace {}", name);
    const std::vector<std::string> comments{
        fmt::format("From {} kernels of a trace{}. Other models and sizes are less certain.",
                    trace_.kernels, trace_.device.empty() ? "" : " of " + trace_.device)};
    bool device = false, software = false;
    for (const CalibratedKey& key : out_.keys)
      (key.key.starts_with("host.") ? software : device) |= key.fitted;
    if (device) {
      kind_.calibrated = true;
      kind_.source = fmt::format("{}; before: {}", source, kind_.source);
      out_.device_file = device_text(kind_, comments);
    }
    if (software)
      out_.software_file = software_text(question_.software, source, out_.keys, comments);
  }

  const CalibrationQuestion& question_;
  calibration::TorchTrace trace_;
  cluster::DeviceKind kind_ = {};     // with the values that were found so far
  software::Software software_ = {};  // to start from
  Calibration out_ = {};
};

}  // namespace

Calibration calibrate_trace(const CalibrationQuestion& question) {
  return TraceCalibration(question).done();
}

}  // namespace rehearse::study
