// Fits the protocols of a communication library to measured collectives. Each size is predicted as
// `rehearse collective` predicts it. Fitted are the start, the hop and the efficiency of each
// protocol that the library takes for one of the sizes; its `estimated` values, by which it
// chooses, stay as they are.
//
// Links and efficiencies only show as a product. So the platform's bandwidths are taken as true,
// and what the largest size implies for them is reported.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/base/names.h"
#include "engine/base/numbers.h"
#include "engine/base/units.h"
#include "engine/calibration/nccl_tests.h"
#include "study/calibration.h"
#include "study/calibration_files.h"
#include "study/collective_study.h"
#include "study/validation.h"

namespace rehearse::study {
namespace {

constexpr double link_tolerance = 0.05;  // of the platform's bandwidth
constexpr double least_flow = 0.5;       // of a size's time, for it to show the bandwidth

/// The rows of a table, or one for each size of nccl-tests.
std::vector<ValidationRow> rows_of(const CalibrationQuestion& question, std::string& move,
                                   std::string& ranks) {
  if (!calibration::is_nccl_output(question.text)) return read_measurements(question.data, false);
  const calibration::NcclOutput output =
      calibration::read_nccl_output(question.text, question.data);
  if (move.empty()) move = output.move;
  if (!output.move.empty() && move != output.move)
    throw InputError(
        fmt::format("--move {}: {} has the times of {}", move, question.data, output.move));
  if (ranks.empty() && output.ranks > 0) ranks = fmt::format("{}", output.ranks);
  std::vector<ValidationRow> out;
  for (const calibration::NcclTime& one : output.times)
    out.push_back({.name = fmt::format("line {}", one.line),
                   .calibrates = true,
                   .measured = one.seconds,
                   .overrides = {fmt::format("collective.bytes={}B", one.bytes),
                                 fmt::format("collective.dtype={}", name_of(one.dtype))}});
  return out;
}

class CollectiveRows {
 public:
  explicit CollectiveRows(const CalibrationQuestion& question) : question_(question) {
    std::string move = question.move, ranks = question.ranks;
    const std::vector<ValidationRow> rows = rows_of(question, move, ranks);
    std::vector<std::string> common;
    const auto add = [&](const char* key, const std::string& value) {
      if (!value.empty()) common.push_back(fmt::format("{}=\"{}\"", key, value));
    };
    add("collective.cluster", question.cluster);
    add("collective.ranks", ranks);
    add("collective.move", move);
    add("software.name", question.software);
    for (const ValidationRow& row : rows) load(row, common);
    if (questions_.empty()) throw InputError(fmt::format("{}: no row", question.data));
    library_ = questions_[0].cluster.library();
    if (library_.protocols.empty())
      throw InputError(
          fmt::format("software {}: its library \"{}\" runs collectives in rounds and has no "
                      "protocols to fit; start from one that has, as --software pytorch-2",
                      questions_[0].software, library_.name));
  }

  const std::vector<CalibratedRow>& rows() const { return rows_; }
  const CollectiveQuestion& question(std::size_t row) const { return questions_[row]; }
  const software::Library& library() const { return library_; }

  /// What the questions have, each once: "dgx-h100:2, dgx-h100".
  template <class F>
  std::string distinct(F of) const {
    std::vector<std::string> out;
    for (const CollectiveQuestion& q : questions_)
      if (const std::string one = of(q); std::find(out.begin(), out.end(), one) == out.end())
        out.push_back(one);
    return fmt::format("{}", fmt::join(out, ", "));
  }
  /// Numbers of the protocols that the library takes for the sizes to fit. The others: `not_shown`.
  std::vector<Candidate> candidates(std::vector<std::string>& not_shown) {
    std::vector<bool> taken(library_.protocols.size(), false);
    for (std::size_t r = 0; r < questions_.size(); ++r)
      if (rows_[r].fitted) taken[protocol_of(answered(r).chosen)] = true;
    std::vector<Candidate> out;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      const software::Protocol& p = library_.protocols[i];
      const std::string name = fmt::format("{}.{}", name_of(p.algorithm), p.name);
      if (!taken[i]) {
        not_shown.push_back(name);
        continue;
      }
      for (std::size_t n = 0; n < numbers.size(); ++n) {
        const double start = *number(library_, i, n);
        const bool duration = n != efficiency;
        const Limits limits = duration ? limits::latency : limits::efficiency;
        out.push_back({{.name = fmt::format("{}.{}", name, numbers[n]),
                        .start = start,
                        .least = limits.least,
                        .most = limits.most,
                        .scale = std::max(start, 1e-6)},
                       duration});
        places_[out.back().parameter.name] = {i, n};
      }
    }
    return out;
  }
  /// The library with these values.
  software::Library with(const std::vector<Candidate>& keys, std::span<const double> values) const {
    software::Library out = library_;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto [protocol, n] = places_.at(keys[i].parameter.name);
      *number(out, protocol, n) = values[i];
    }
    return out;
  }
  double seconds(std::size_t row, const software::Library& library) {
    questions_[row].cluster.use_library(library);
    return answered(row).chosen.seconds;
  }
  /// What the largest size implies for the bandwidth of all links, in times of the platform's;
  /// none: the size does not show it. The rows must have been predicted with `library`, whose
  /// efficiencies of the start are taken.
  std::optional<double> link_factor(const software::Library& library) {
    std::size_t largest = 0;
    for (std::size_t r = 0; r < questions_.size(); ++r)
      if (rows_[r].fitted && questions_[r].bytes > questions_[largest].bytes) largest = r;
    CollectiveQuestion q = questions_[largest];
    software::Library stated = library;
    for (std::size_t i = 0; i < stated.protocols.size(); ++i)
      *number(stated, i, efficiency) = library_.protocols[i].measured.efficiency;
    q.cluster.use_library(std::move(stated));
    const double once = predict_collective(q).chosen.seconds;
    std::vector<Id> links(q.cluster.links().size());
    std::iota(links.begin(), links.end(), Id{0});
    q.cluster.scale_links(links, 2, 1);
    const double flow = 2 * (once - predict_collective(q).chosen.seconds);  // bytes / bandwidth
    const double left = rows_[largest].measured - (once - flow);
    if (flow < least_flow * once || left <= 0) return std::nullopt;
    return flow / left;
  }

 private:
  static constexpr std::array numbers{"base", "nvlink", "pcie", "network", "efficiency"};
  static constexpr std::size_t efficiency = 4;

  static double* number(software::Library& library, std::size_t protocol, std::size_t n) {
    software::ProtocolTimes& t = library.protocols[protocol].measured;
    return std::array{&t.base.value, &t.nvlink.value, &t.pcie.value, &t.network.value,
                      &t.efficiency}[n];
  }
  InputError unpredictable(const std::string& row, const InputError& error) const {
    return InputError(
        fmt::format("{}: row \"{}\" cannot be predicted: {}", question_.data, row, error.what()));
  }
  void load(const ValidationRow& row, std::vector<std::string> keys) {
    keys.insert(keys.end(), row.overrides.begin(), row.overrides.end());
    keys.insert(keys.end(), question_.overrides.begin(), question_.overrides.end());
    try {
      questions_.push_back(read_collective(question_.job.empty()
                                               ? Config::parse("", question_.data, keys)
                                               : Config::load(question_.job, keys)));
    } catch (const InputError& error) {
      throw unpredictable(row.name, error);
    }
    if (questions_.back().cluster.library() != questions_.front().cluster.library())
      throw InputError(
          fmt::format("{}: row \"{}\" has library {}, the first row has {}: fit one "
                      "at a time",
                      question_.data, row.name, questions_.back().cluster.library().name,
                      questions_.front().cluster.library().name));
    rows_.push_back({.name = row.name, .fitted = row.calibrates, .measured = row.measured});
  }
  CollectiveAnswer answered(std::size_t row) const {
    try {
      return predict_collective(questions_[row]);
    } catch (const InputError& error) {
      throw unpredictable(rows_[row].name, error);
    }
  }
  std::size_t protocol_of(const CollectiveWay& way) const {
    const auto& all = library_.protocols;
    return std::size_t(std::find_if(all.begin(), all.end(),
                                    [&](const software::Protocol& p) {
                                      return p.algorithm == way.algorithm && p.name == way.protocol;
                                    }) -
                       all.begin());
  }

  const CalibrationQuestion& question_;
  std::vector<CollectiveQuestion> questions_ = {};
  std::vector<CalibratedRow> rows_ = {};                                    // of each question
  software::Library library_ = {};                                          // to start from
  std::map<std::string, std::pair<std::size_t, std::size_t>> places_ = {};  // protocol, number
};

}  // namespace

Calibration calibrate_library(const CalibrationQuestion& question) {
  CollectiveRows rows(question);
  Calibration out{.rows = rows.rows(), .rows_are = "sizes"};
  std::vector<std::string> not_shown;
  const std::vector<Candidate> all = rows.candidates(not_shown);
  const std::vector<Candidate> keys = chosen(all, question.fit);
  const std::vector<double> values = fit_rows(
      question, keys,
      [&](std::size_t row, std::span<const double> at) {
        return rows.seconds(row, rows.with(keys, at));
      },
      out);
  const CollectiveQuestion& first = rows.question(0);
  const std::string moves =
      rows.distinct([](const auto& q) { return std::string(name_of(q.move)); });
  const std::string clusters = rows.distinct([](const auto& q) { return q.cluster.name(); });
  const std::string ranks =
      rows.distinct([](const auto& q) { return fmt::format("{}", q.devices.size()); });
  out.facts = {{"collective", moves},
               {"cluster", clusters},
               {"ranks", ranks},
               {"library", fmt::format("{} of software {}", rows.library().name, first.software)}};
  if (!not_shown.empty())
    out.notes.push_back(fmt::format("no size takes {}: their numbers stay as they are",
                                    fmt::join(not_shown, ", ")));
  const software::Library fitted = rows.with(keys, values);
  if (const auto factor = rows.link_factor(fitted)) {
    out.facts.emplace_back(
        "links",
        fmt::format("the largest size implies {} of the bandwidth that the platform states",
                    percent(*factor, 0)));
    if (std::abs(*factor - 1) > link_tolerance)
      out.notes.push_back(fmt::format(
          "links: the platform's bandwidth looks wrong by a factor of {:.3g}; it belongs into the "
          "platform file. Correct it there and calibrate again; here the efficiencies of the "
          "protocols make up for it as far as they can",
          *factor));
  }
  const auto bytes = [&](auto better) {
    std::int64_t found = first.bytes;
    for (std::size_t r = 0; r < out.rows.size(); ++r)
      if (better(rows.question(r).bytes, found)) found = rows.question(r).bytes;
    return to_text(Bytes(static_cast<double>(found)));
  };
  if (out.folds > 0)
    out.library_file = library_text(
        fitted, fmt::format("{}; before: {}", source_text(question, out), rows.library().name),
        {fmt::format("Fitted to {} of {} to {} over {} ranks of {}. Other sizes, groups and "
                     "clusters are less certain.",
                     moves, bytes(std::less<>()), bytes(std::greater<>()), ranks, clusters)});
  return out;
}

}  // namespace rehearse::study
