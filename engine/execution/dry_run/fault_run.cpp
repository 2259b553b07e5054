#include "engine/execution/dry_run/fault_run.h"

#include <nlohmann/json.hpp>

namespace rehearse::execution {
namespace {

using Json = nlohmann::json;

std::optional<double> maybe(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<double>());
}

}  // namespace

FaultRun run_of(const StepEnds& steps, const FaultReplay* faults) {
  FaultRun out{.ends = steps.ends()};
  if (faults == nullptr) return out;
  out.outcomes = faults->outcomes();
  out.stop = faults->stopped_by();
  return out;
}

void mark_events(ChromeTrace& trace, const FaultReplay& faults) {
  for (std::size_t i = 0; i < faults.outcomes().size(); ++i) {
    const FaultOutcome& o = faults.outcomes()[i];
    if (o.struck && o.nothing.empty())
      trace.mark(to_text(faults.trace().events[i]), o.at, o.until.value_or(FaultReplay::never));
  }
}

std::string to_json(const FaultRun& run) {
  Json outcomes = Json::array(), stop;
  for (const FaultOutcome& o : run.outcomes)
    outcomes.push_back({o.struck, o.at, o.step, o.until ? Json(*o.until) : Json(), o.nothing});
  if (run.stop) {
    Json waiting = Json::array();
    for (const WaitingOp& w : run.stop->waiting) waiting.push_back({w.rank, w.step, w.op});
    stop = {run.stop->event, run.stop->at, run.stop->noticed, std::move(waiting)};
  }
  return Json{run.ends, std::move(outcomes), std::move(stop)}.dump();
}

FaultRun fault_run_of(const std::string& text) {
  const Json json = Json::parse(text);
  FaultRun out{.ends = json[0].get<std::vector<double>>()};
  for (const Json& o : json[1])
    out.outcomes.push_back({.struck = o[0].get<bool>(),
                            .at = o[1].get<double>(),
                            .step = o[2].get<int>(),
                            .until = maybe(o[3]),
                            .nothing = o[4].get<std::string>()});
  if (json[2].is_null()) return out;
  out.stop = FaultStop{.event = json[2][0].get<std::size_t>(),
                       .at = json[2][1].get<double>(),
                       .noticed = json[2][2].get<double>()};
  for (const Json& w : json[2][3])
    out.stop->waiting.push_back(
        {.rank = w[0].get<Id>(), .step = w[1].get<int>(), .op = w[2].get<std::string>()});
  return out;
}

}  // namespace rehearse::execution
