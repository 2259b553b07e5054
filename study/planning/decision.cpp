#include "study/planning/decision.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>
#include <type_traits>

#include "engine/base/names.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "engine/costs/profile.h"
#include "engine/job/plan_file.h"
#include "engine/methods/strategy.h"
#include "engine/plan/fields.h"
#include "study/load.h"
#include "study/planning/fewer_devices.h"
#include "study/planning/rescore.h"
#include "study/prediction/device_work.h"
#include "study/progress.h"

namespace rehearse::study {
namespace {

using Json = nlohmann::ordered_json;

/// Null when the number is not finite: the time is not known, or nothing was feasible.
Json number(double seconds) { return std::isfinite(seconds) ? Json(seconds) : Json(); }

/// The fields of a plan. Quantities are in base units, segments are numbers, devices have names.
class JsonFields {
 public:
  explicit JsonFields(const cluster::Cluster& cluster) : cluster_(cluster) {}
  template <class T>
  void operator()(const char* key, const T& member, const plan::Rule&) {
    fields_[key] = json(member);
  }
  Json take() { return std::move(fields_); }

 private:
  template <class T>
  static Json json(const T& value) {
    if constexpr (std::is_enum_v<T>)
      return name_of(value);
    else
      return value;
  }
  template <class Dim>
  static Json json(const Quantity<Dim>& value) {
    return value.value;
  }
  template <class T>
  static Json json(const std::optional<T>& value) {
    return value ? json(*value) : Json();
  }
  /// How each segment's gradient is summed; empty: all gradients are dense.
  static Json json(const std::vector<plan::LayerExchange>& layers) {
    Json out = Json::array();
    for (const plan::LayerExchange& x : layers)
      out.push_back({{"reduction", name_of(x.reduction)},
                     {"density", x.density},
                     {"coding", name_of(x.coding)}});
    return out;
  }
  Json json(const plan::Devices<const std::vector<Id>>& devices) const {
    Json names = Json::array();
    for (const Id d : devices.ids) names.push_back(cluster_.devices()[d].name);
    return names;
  }

  const cluster::Cluster& cluster_;
  Json fields_ = Json::object();
};

Json plan_json(const plan::Plan& plan, const cluster::Cluster& cluster) {
  JsonFields fields(cluster);
  plan::each_field(plan, fields);
  Json out = fields.take();
  out["bucket"] = plan.exchange.bucket_bytes();
  return out;
}

/// The method that the job names and that its plan does not have; empty: there is none.
std::string unused_method(const plan::Decision& d, const job::Job& job) {
  const std::string& stated = job.plan.method;
  const bool used = methods::planned(stated) || stated == d.plan.method;
  return used || !job.where.contains("method.name") ? "" : stated;
}

/// The keys of [method] that only other methods read than those among which the planner chooses.
std::vector<std::string> unused_keys(const job::Job& job) {
  plan::Plan stated = job.plan;
  return methods::planned(stated.method) ? std::vector<std::string>()
                                         : methods::drop_own_fields(stated);
}

std::string method_text(const plan::Decision& d, const job::Job& job) {
  std::vector<std::string> unused;
  if (const std::string method = unused_method(d, job); !method.empty())
    unused.push_back(fmt::format("method.name = \"{}\"", method));
  for (const std::string& key : unused_keys(job)) unused.push_back("method." + key);
  if (unused.empty()) return d.plan.method;
  return fmt::format("{}; {} of the job {} not used: the planner chooses the method", d.plan.method,
                     fmt::join(unused, ", "), unused.size() == 1 ? "is" : "are");
}

}  // namespace

plan::Decision decide_with_progress(const job::Job& job, const PlanFlags& flags) {
  const costs::Profile* const measured = profile_of(job);
  planner::PlannerOptions options;
  options.budget = flags.budget;
  std::function<double(const plan::Plan&)> rescore;
  if (flags.rescore) rescore = fluid_rescore(job, measured);
  Progress* const progress = flags.progress;
  int simulated = 0;
  if (rescore)
    options.rescore = [&](const plan::Plan& plan) {
      if (progress != nullptr)
        progress->say(fmt::format("planning: simulating the best, {}", ++simulated));
      return rescore(plan);
    };
  if (progress != nullptr) {
    progress->say("planning: listing candidates");
    options.progress = [progress](int done, int total) {
      constexpr int width = 30;
      if (done != total && done % 64 != 0) return;
      const int full = width * done / std::max(1, total);
      const std::string count = fmt::format("{} of {} candidates", done, total);
      progress->say(fmt::format("planning [{:#<{}}{:.<{}}] {}", "", full, "", width - full, count),
                    "planning: " + count);
    };
  }
  plan::Decision out = decide(job, measured, options);
  if (!flags.fewer_devices) return out;
  options.progress = {};
  if (std::string advice = better_with_fewer(job, out, measured, options); !advice.empty())
    out.warnings.push_back(std::move(advice));
  return out;
}

std::optional<plan::Decision> decide_plan(job::Job& job, Progress* progress) {
  if (!job.plan_file.empty() || !methods::planned(job.plan.method)) return std::nullopt;
  plan::Decision decision = decide_with_progress(job, {.progress = progress});
  job.plan = decision.plan;
  return decision;
}

void add_warnings(const plan::Decision& decision, Study& study) {
  study.warnings.insert(study.warnings.end(), decision.warnings.begin(), decision.warnings.end());
}

std::string plan_text(const plan::Decision& decision, const job::Job& job) {
  return to_toml(decision, job, profile_of(job));
}

nlohmann::ordered_json choices_json(const plan::Decision& decision) {
  Json out = Json::array();
  for (const plan::Choice& c : decision.choices) {
    Json others = Json::array();
    for (const plan::Alternative& a : c.runners_up)
      others.push_back({{"value", a.value}, {"step_time_s", number(a.seconds)}, {"why", a.why}});
    out.push_back({{"choice", c.name},
                   {"value", c.value},
                   {"step_time_s", number(c.seconds)},
                   {"runners_up", std::move(others)}});
  }
  return out;
}

std::string choices_text(const plan::Decision& decision) {
  constexpr std::size_t most_shown = 3;
  std::vector<std::vector<std::string>> lines;
  for (const plan::Choice& c : decision.choices) {
    std::vector<std::string> others;
    for (const plan::Alternative& a : c.runners_up)
      if (others.size() < most_shown)
        others.push_back(fmt::format("{}: {}", a.value, a.why.substr(0, a.why.find(": compute"))));
    if (!others.empty())
      lines.push_back({"  " + c.name, c.value, fmt::format("{}", fmt::join(others, "; "))});
  }
  return fmt::format("{}\n{}", planner::summary_of(decision.plan), table(lines));
}

nlohmann::ordered_json to_json(const plan::Decision& d, const job::Job& job) {
  Json runners_up = Json::array(), infeasible = Json::array();
  for (const plan::RunnerUp& r : d.runners_up)
    runners_up.push_back({{"plan", r.value}, {"step_time_s", number(r.seconds)}, {"why", r.why}});
  for (const plan::Infeasible& i : d.infeasible)
    infeasible.push_back(
        {{"constraint", i.constraint}, {"candidates", i.candidates}, {"nearest", i.nearest}});
  Json out;
  out["schema_version"] = 1;
  add_subject(subject_of(job.model, job.cluster, d.plan), out);
  const std::string unused = unused_method(d, job);
  out["method_not_used"] = unused.empty() ? Json() : Json(unused);
  out["keys_not_used"] = unused_keys(job);
  out.update(Json{{"summary", planner::summary_of(d.plan)},
                  {"plan", plan_json(d.plan, job.cluster)},
                  {"step_time_s", d.seconds},
                  {"dry_run_s", d.dry_run_seconds},
                  {"simulated", d.rescored},
                  {"stragglers", d.stragglers},
                  {"placement", d.placement},
                  {"candidates", d.candidates},
                  {"pruned", d.pruned},
                  {"dry_run", d.dry_run},
                  {"beyond_budget", d.beyond_budget},
                  {"simulations", d.simulations},
                  {"choices", choices_json(d)},
                  {"runners_up", std::move(runners_up)},
                  {"infeasible", std::move(infeasible)},
                  {"would_change", d.would_change},
                  {"warnings", d.warnings}});
  return out;
}

std::string brief(const plan::Decision& d, const job::Job& job) {
  std::string out;
  const auto row = [&](const char* name, const std::string& value) {
    out += fmt::format("{:<11}{}\n", name, value);
  };
  row("model", work_text(subject_of(job.model, job.cluster, d.plan)));
  row("cluster", job.cluster.name());
  row("method", method_text(d, job));
  row("plan", planner::summary_of(d.plan));
  if (!d.placement.empty()) row("placement", d.placement);
  row("step time", to_text(Seconds(d.seconds)) + " predicted");
  row("search",
      fmt::format("{} candidates, {} dry-run; --explain says why", d.candidates, d.dry_run));
  const std::string work = device_work_text(d.plan, job.model, job.cluster);
  out += work;
  if (!work.empty() && !d.warnings.empty()) out += '\n';
  for (const std::string& warning : d.warnings) out += "warning: " + warning + "\n";
  return out;
}

std::string explain(const plan::Decision& d, const job::Job& job) {
  return fmt::format("model         {}\ncluster       {}\nmethod        {}\n{}{}",
                     work_text(subject_of(job.model, job.cluster, d.plan)), job.cluster.name(),
                     method_text(d, job), planner::explain(d),
                     device_work_text(d.plan, job.model, job.cluster));
}

}  // namespace rehearse::study
