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
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "engine/base/errors.h"
#include "engine/base/files/csv.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/units.h"
#include "engine/calibration/nccl_tests.h"
#include "study/calibration/calibration.h"
#include "study/calibration/calibration_files.h"
#include "study/calibration/step_columns.h"
#include "study/calibration/validation.h"
#include "study/parts/collective_study.h"

namespace rehearse::study {
namespace {

constexpr double link_tolerance = 0.05;  // of the platform's bandwidth
constexpr double least_flow = 0.5;       // of a size's time, for it to show the bandwidth
constexpr double most_bytes = 1e13;      // of a collective
constexpr double contradiction = 1.5;    // between the bandwidths that two sizes imply
constexpr double bit_tolerance = 0.2;    // of a factor of 8, for bits to be in the place of bytes

/// What measured sizes say about the bandwidth of all links, in times of the platform's.
struct LinkSpeed {
  double factor = 1;                     // that the largest size implies
  double at_least = 1;                   // that the fastest size needs
  std::size_t largest = 0, fastest = 0;  // rows
};

/// The rows of a table, or one for each size of nccl-tests, whose output says how many ranks ran
/// what.
std::vector<ValidationRow> rows_of(const CalibrationQuestion& question,
                                   calibration::NcclOutput& output) {
  if (!calibration::is_nccl_output(question.text))
    return read_measurements(parse_csv(question.text, question.data), question.data, false);
  output = calibration::read_nccl_output(question.text, question.data);
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
    calibration::NcclOutput log;
    const std::vector<ValidationRow> rows = rows_of(question, log);
    if (rows.empty()) throw InputError(fmt::format("{}: no row", question.data));
    std::vector<std::string> common;
    const auto add = [&](const char* key, const std::string& value) {
      if (!value.empty()) common.push_back(fmt::format("{}=\"{}\"", key, value));
    };
    add("collective.cluster", question.cluster);
    add("collective.ranks", question.ranks);
    add("collective.move", question.move);
    add("software.name", question.software);
    const Config stated = file_of(keys_of({}, common)).section("collective");
    const bool states_ranks = stated.has("ranks");
    if (!stated.has("move")) add("collective.move", log.move);
    if (log.ranks > 0 && !states_ranks) add("collective.ranks", ranks_of_log(rows[0], common, log));
    for (const ValidationRow& row : rows) load(row, common);
    if (!log.move.empty() && log.move != name_of(questions_[0].move))
      throw InputError(fmt::format(
          "{}: {} has the times of {}",
          question.move.empty() ? fmt::format("{}: key \"collective.move\" = {}",
                                              stated.where("move"), name_of(questions_[0].move))
                                : "--move " + question.move,
          question.data, log.move));
    if (log.ranks > 0 && log.ranks != std::ssize(questions_[0].devices))
      throw InputError(fmt::format(
          "{}: stands for {} ranks, and {} has the times of {} (its lines \"# Rank\"); leave it "
          "out, or name {} ranks",
          question.ranks.empty() ? stated.where("ranks") + ": key \"collective.ranks\""
                                 : "--ranks " + question.ranks,
          questions_[0].devices.size(), question.data, log.ranks, log.ranks));
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
  /// With the library at the start, and `times` the bytes; infinite where no collective is so
  /// large.
  double resized(std::size_t row, double times) const {
    CollectiveQuestion q = questions_[row];
    const double bytes = static_cast<double>(q.bytes) * times;
    if (bytes < 1 || bytes > most_bytes) return std::numeric_limits<double>::infinity();
    q.bytes = static_cast<std::int64_t>(bytes);
    return predict_collective(q).chosen.seconds;
  }
  /// What the sizes say about the bandwidth of all links, in times of the platform's; none: the
  /// largest size does not show it. The rows must have been predicted with `library`, whose
  /// efficiencies of the start are taken.
  std::optional<LinkSpeed> link_speed(const software::Library& library) const {
    software::Library stated = library;
    for (std::size_t i = 0; i < stated.protocols.size(); ++i)
      *number(stated, i, efficiency) = library_.protocols[i].measured.efficiency;
    LinkSpeed out;
    for (std::size_t r = 0; r < questions_.size(); ++r)
      if (rows_[r].fitted && questions_[r].bytes > questions_[out.largest].bytes) out.largest = r;
    const Flow flow = flow_of(out.largest, stated);
    const double left = rows_[out.largest].measured - (flow.once - flow.seconds);
    if (flow.seconds < least_flow * flow.once || left <= 0) return std::nullopt;
    out.factor = out.at_least = flow.seconds / left;
    out.fastest = out.largest;
    for (std::size_t r = 0; r < questions_.size(); ++r) {
      if (!rows_[r].fitted || rate(r) <= rate(out.largest)) continue;
      const double needed = flow_of(r, stated).seconds / rows_[r].measured;
      if (needed <= out.at_least) continue;
      out.at_least = needed;
      out.fastest = r;
    }
    return out;
  }
  /// The bus bandwidth of nccl-tests that was measured: "33.6 MB at 29.5 GB/s".
  std::string speed_text(std::size_t row) const {
    const CollectiveAnswer a = answered(row);
    return fmt::format(
        "{} at {}", to_text(Bytes(static_cast<double>(a.bytes))),
        to_text(BytesPerSecond(a.bus_bandwidth * a.chosen.seconds / rows_[row].measured)));
  }

 private:
  static constexpr std::array numbers{"base", "nvlink", "pcie", "network", "efficiency"};
  static constexpr std::size_t efficiency = 4;

  /// Measured bytes per second.
  double rate(std::size_t row) const {
    return static_cast<double>(questions_[row].bytes) / rows_[row].measured;
  }
  struct Flow {
    double once = 0, seconds = 0;  // predicted, and the part of it that is bytes / bandwidth
  };
  Flow flow_of(std::size_t row, const software::Library& library) const {
    CollectiveQuestion q = questions_[row];
    q.cluster.use_library(library);
    const CollectiveWay way = predict_collective(q).chosen;
    q.algorithm = way.algorithm;  // faster links must not change the way
    q.protocol = way.protocol;
    std::vector<Id> links(q.cluster.links().size());
    std::iota(links.begin(), links.end(), Id{0});
    q.cluster.scale_links(links, 2, 1);
    return {way.seconds, 2 * (way.seconds - predict_collective(q).chosen.seconds)};
  }
  static double* number(software::Library& library, std::size_t protocol, std::size_t n) {
    software::ProtocolTimes& t = library.protocols[protocol].measured;
    return std::array{&t.base.value, &t.nvlink.value, &t.pcie.value, &t.network.value,
                      &t.efficiency}[n];
  }
  std::vector<std::string> keys_of(const std::vector<std::string>& row,
                                   std::vector<std::string> common) const {
    common.insert(common.end(), row.begin(), row.end());
    common.insert(common.end(), question_.overrides.begin(), question_.overrides.end());
    return common;
  }
  Config file_of(const std::vector<std::string>& keys) const {
    return question_.job.empty() ? Config::parse("", question_.data, keys)
                                 : Config::load(question_.job, keys);
  }
  /// The number of ranks that the log lists, if the cluster has as many devices.
  std::string ranks_of_log(const ValidationRow& row, const std::vector<std::string>& common,
                           const calibration::NcclOutput& log) const {
    const CollectiveQuestion all = read(row, common);
    const std::size_t devices = all.cluster.devices().size();
    if (std::cmp_greater(log.ranks, devices))
      throw InputError(
          fmt::format("{}: has the times of {} ranks (its lines \"# Rank\"), and cluster {} has {} "
                      "devices; name the cluster that they ran on",
                      question_.data, log.ranks, all.cluster.name(), devices));
    return fmt::format("{}", log.ranks);
  }
  CollectiveQuestion read(const ValidationRow& row, const std::vector<std::string>& common) const {
    try {
      return read_collective(file_of(keys_of(row.overrides, common)));
    } catch (const InputError& error) {
      throw unpredictable(row.name, error);
    }
  }
  InputError unpredictable(const std::string& row, const InputError& error) const {
    return InputError(
        fmt::format("{}: row \"{}\" cannot be predicted: {}", question_.data, row, error.what()));
  }
  void load(const ValidationRow& row, const std::vector<std::string>& common) {
    questions_.push_back(read(row, common));
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

/// " (about 1/8: ...)" when bits may stand in the place of bytes.
std::string bits_text(double factor) {
  const auto near = [&](double value) { return std::abs(factor / value - 1) < bit_tolerance; };
  if (near(1.0 / 8)) return " (about 1/8: it may have GB/s where Gb/s is meant)";
  if (near(8)) return " (about 8: it may have Gb/s where GB/s is meant)";
  return "";
}

/// A link is as fast for large sizes as for small ones. So a platform's bandwidth is only doubted
/// when no size was faster than the corrected bandwidth would allow.
void describe_links(const CollectiveRows& rows, const software::Library& fitted, Calibration& out) {
  const std::optional<LinkSpeed> speed = rows.link_speed(fitted);
  if (!speed) return;
  if (speed->at_least > contradiction * speed->factor) {
    out.facts.emplace_back("links", "the sizes contradict each other");
    out.notes.push_back(fmt::format(
        "links: {} and {} (bus bandwidth) cannot both come from one bandwidth of the links, so "
        "change none in the platform file. Something slows the larger size down: settings of the "
        "library or the network, or other traffic. Find it, or leave out such sizes; the fitted "
        "efficiencies make up for it, so other jobs would inherit it",
        rows.speed_text(speed->fastest), rows.speed_text(speed->largest)));
    return;
  }
  out.facts.emplace_back(
      "links", fmt::format("the largest size implies {} of the bandwidth that the platform states",
                           percent(speed->factor, 0)));
  if (std::abs(speed->factor - 1) > link_tolerance)
    out.notes.push_back(fmt::format(
        "links: the platform's bandwidth looks wrong by a factor of {:.3g}{}; it belongs into the "
        "platform file. Correct it there and calibrate again; here the efficiencies of the "
        "protocols make up for it as far as they can",
        speed->factor, bits_text(speed->factor)));
}

}  // namespace

Calibration calibrate_library(const CalibrationQuestion& question) {
  CollectiveRows rows(question);
  Calibration out{.rows = rows.rows(), .rows_are = "sizes"};
  const bool table = !calibration::is_nccl_output(question.text);
  if (table)
    if (const std::string unused = unused_columns(parse_csv(question.text, question.data), {});
        !unused.empty())
      out.notes.push_back(unused);
  std::vector<std::string> not_shown;
  const std::vector<Candidate> all = rows.candidates(not_shown);
  const std::vector<Candidate> keys = chosen(all, question.fit);
  const std::vector<double> values =
      fit_rows(question, keys,
               {.seconds =
                    [&](std::size_t row, std::span<const double> at) {
                      return rows.seconds(row, rows.with(keys, at));
                    },
                .table = table,
                .resized = [&](std::size_t row, double times) { return rows.resized(row, times); }},
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
  describe_links(rows, fitted, out);
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
