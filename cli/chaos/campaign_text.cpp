// The result of a campaign as text and JSON. Declared in campaign.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "cli/chaos/campaign.h"
#include "engine/base/names.h"
#include "engine/base/table.h"

namespace rehearse::cli {
namespace {

using Counts = std::array<int, 3>;  // by Verdict

Counts counts_of(const CampaignResult& result, Mishap kind, const std::string& method) {
  Counts counts{};
  for (const TrialRecord& t : result.trials)
    if (t.kind == kind && (method.empty() || t.method == method))
      ++counts[static_cast<std::size_t>(t.judgement.verdict)];
  return counts;
}

std::string cell(const Counts& counts) {
  std::vector<std::string> parts;
  for (std::size_t v = 0; v < counts.size(); ++v)
    if (counts[v] > 0)
      parts.push_back(fmt::format("{} {}", counts[v], name_of(static_cast<Verdict>(v))));
  return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, ", "));
}

/// The notes of all trials, each once for a kind, with the number of trials. Recoveries are what a
/// campaign expects, so they are not said.
std::string notes_of(const CampaignResult& result) {
  std::map<std::pair<Mishap, std::string>, int> notes;
  for (const TrialRecord& t : result.trials)
    for (const std::string& note : t.judgement.notes)
      if (note.find(" recover") == std::string::npos) ++notes[{t.kind, note}];
  std::string out;
  for (const auto& [of, count] : notes)
    out += fmt::format("note: {} ({} trial{}): {}\n", name_of(of.first), count,
                       count == 1 ? "" : "s", of.second);
  return out;
}

std::vector<Mishap> kinds_in(const CampaignResult& result) {
  std::vector<Mishap> kinds;
  for (const TrialRecord& t : result.trials)
    if (std::ranges::find(kinds, t.kind) == kinds.end()) kinds.push_back(t.kind);
  return kinds;
}

}  // namespace

std::string describe(const CampaignResult& result) {
  std::vector<std::vector<std::string>> lines{{"kind"}};
  for (const TrialJob& s : result.subjects) lines.front().push_back(s.label);
  for (const Mishap kind : kinds_in(result)) {
    lines.push_back({std::string(name_of(kind))});
    for (const TrialJob& s : result.subjects)
      lines.back().push_back(cell(counts_of(result, kind, s.label)));
  }
  std::string out = result.trials.empty() ? "" : table(lines) + "\n";
  out += fmt::format("{} trial{}: {} survived, {} refused, {} wrong\n", result.trials.size(),
                     result.trials.size() == 1 ? "" : "s", result.count(Verdict::survived),
                     result.count(Verdict::refused), result.count(Verdict::wrong));
  for (const auto& [kind, why] : result.not_run)
    out += fmt::format("not run: {}: {}\n", name_of(kind), why);
  for (const TrialJob& s : result.subjects)
    if (!s.exact)
      out += fmt::format("{} {}: judged by its last loss, within {:.0f}%\n", s.label, s.rule,
                         100 * loss_tolerance);
  out += notes_of(result);
  for (const TrialRecord& t : result.trials) {
    if (t.judgement.verdict == Verdict::survived) continue;
    out += fmt::format("{}: trial {}, {} of {} ({}): {}\n", name_of(t.judgement.verdict), t.number,
                       name_of(t.kind), t.method, t.what, t.judgement.why);
    if (t.judgement.verdict == Verdict::wrong) out += "  " + t.command + "\n";
    if (!t.folder.empty()) out += "  kept in " + t.folder + "\n";
  }
  return out;
}

nlohmann::ordered_json to_json(const CampaignResult& result, const CampaignOptions& options) {
  using Json = nlohmann::ordered_json;
  Json trials = Json::array(), methods = Json::array(), not_run = Json::array();
  for (const TrialRecord& t : result.trials)
    trials.push_back({{"number", t.number},
                      {"kind", name_of(t.kind)},
                      {"method", t.method},
                      {"seed", t.seed},
                      {"what", t.what},
                      {"verdict", name_of(t.judgement.verdict)},
                      {"why", t.judgement.why},
                      {"notes", t.judgement.notes},
                      {"wall_s", t.wall_s},
                      {"command", t.command},
                      {"folder", t.folder}});
  for (const TrialJob& s : result.subjects)
    methods.push_back({{"method", s.label},
                       {"ranks", s.shape.ranks},
                       {"steps", s.shape.steps},
                       {"bits", s.exact},
                       {"rule", s.rule}});
  for (const auto& [kind, why] : result.not_run)
    not_run.push_back({{"kind", name_of(kind)}, {"why", why}});
  return {{"schema_version", 1},
          {"seed", options.seed},
          {"methods", std::move(methods)},
          {"survived", result.count(Verdict::survived)},
          {"refused", result.count(Verdict::refused)},
          {"wrong", result.count(Verdict::wrong)},
          {"not_run", std::move(not_run)},
          {"trials", std::move(trials)}};
}

}  // namespace rehearse::cli
