#include "study/methods.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/methods/strategy.h"
#include "engine/plan/fields.h"
#include "study/prediction/subject.h"

namespace rehearse::study {
namespace {

/// Keys of [method] that only make sense with the method for which they were written.
std::vector<std::string> own_keys() {
  std::vector<std::string> keys{
      "pp",     "dp",       "cp",           "context",        "tp",
      "order",  "servers",  "staleness",    "virtual_stages", "stage_layers",
      "shares", "autotune", "micro_batches"};
  plan::Plan plan;
  plan::each_field(plan, [&](const char* key, const auto&, const plan::Rule& rule) {
    if (rule.readers != plan::Readers::all) keys.emplace_back(key);
  });
  return keys;
}

/// Options that drop the job's plan but keep the plan's work and devices, so that a comparison with
/// another method is fair.
std::vector<std::string> without_plan(const job::Job& job) {
  const plan::Plan& plan = job.plan;
  std::vector<std::string> out{
      "method.plan=", fmt::format("train.global_batch={}", plan.schedule.global_batch),
      fmt::format("train.optimizer={}", name_of(plan.optimizer)),
      fmt::format("method.precision={}", name_of(job::precision_of(plan)))};
  if (plan.placement.rank_to_device.size() < job.cluster.devices().size()) {
    std::vector<Id> devices = plan.placement.rank_to_device;
    std::sort(devices.begin(), devices.end());
    std::vector<std::string> names;
    for (Id device : devices)
      names.push_back(fmt::format("\"{}\"", job.cluster.devices()[device].name));
    out.push_back(fmt::format("cluster.devices=[{}]", fmt::join(names, ", ")));
  }
  return out;
}

/// Splits at commas, except at commas in brackets or quotes.
std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> out(1);
  int depth = 0;
  char quote = 0;
  for (const char c : list) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth == 0) {
      out.emplace_back();
      continue;
    }
    out.back() += c;
  }
  if (quote != 0 || depth != 0)
    throw InputError(
        fmt::format("--methods {}: a {} is not closed", list, quote != 0 ? "quote" : "bracket"));
  if (out.back().empty()) out.pop_back();
  return out;
}

/// "pp=2" becomes "method.pp=2"; a key with a dot stays as it is.
std::string setting(const std::string& part) {
  return (part.find('.') < part.find('=') ? "" : "method.") + part;
}

/// Whether a part belongs to the row before it: "KEY=VALUE", or the next axis after "order=".
bool continues(const std::string& part, const MethodChoice& before) {
  if (before.set.empty() || part.find('@') != std::string::npos) return false;
  if (part.find('=') != std::string::npos) return true;
  return before.set.back().starts_with("method.order=") &&
         (part == "pp" || part == "dp" || part == "cp" || part == "tp");
}

/// As written, with repetitions.
std::vector<MethodChoice> choices_of(const std::string& list) {
  std::vector<MethodChoice> out;
  if (list == "all") {
    for (const auto& [name, strategy] : methods::strategies())
      out.push_back({.label = name, .method = name, .set = {}});
    return out;
  }
  for (const std::string& part : parts_of(list)) {
    if (!out.empty() && continues(part, out.back())) {
      out.back().label += "," + part;
      if (part.find('=') == std::string::npos)
        out.back().set.back() += "," + part;
      else
        out.back().set.push_back(setting(part));
      continue;
    }
    const auto at = part.find('@');
    const std::string name = part.substr(0, at);
    if (name.empty())
      throw InputError(fmt::format("--methods {}: a name is missing; write ddp,1f1b@pp=2", list));
    if (name == "plan" && at == std::string::npos) {
      out.push_back({.label = "plan", .method = "plan"});
      continue;
    }
    if (const std::string why = methods::unknown_method(name); !why.empty())
      throw InputError("--methods: " + why);
    MethodChoice choice{.label = part, .method = name, .set = {}};
    if (at != std::string::npos) {
      const std::string key = part.substr(at + 1);
      if (key.find('=') == std::string::npos || key.front() == '=')
        throw InputError(
            fmt::format("--methods {}: after @ comes KEY=VALUE, as in 1f1b@pp=2", part));
      choice.set.push_back(setting(key));
    }
    out.push_back(std::move(choice));
  }
  if (out.empty()) throw InputError("--methods: names no method; \"all\" names every one");
  return out;
}

}  // namespace

std::vector<MethodChoice> parse_methods(const std::string& list) {
  std::vector<MethodChoice> out = choices_of(list);
  for (auto one = out.begin(); one != out.end(); ++one)
    if (std::ranges::find(out.begin(), one, one->label, &MethodChoice::label) != one)
      throw InputError(fmt::format("--methods {}: \"{}\" is there twice", list, one->label));
  return out;
}

std::vector<std::string> resets_for(const MethodChoice& choice, const StatedMethod& job) {
  std::vector<std::string> out;
  if (choice.method == job.name) return out;
  for (const std::string& key : own_keys())
    if (job.keys.contains(fmt::format("method.{}", key)))
      out.push_back(fmt::format("method.{}=", key));
  // shares=speed names no mesh, so it is kept for another method.
  if (job.shares_by_speed && methods::strategy_named(choice.method).combines.shares)
    out.emplace_back("method.shares=speed");
  return out;
}

std::vector<std::string> overrides_for(const MethodChoice& choice, const job::Job& job,
                                       const std::vector<std::string>& set) {
  std::vector<std::string> out;
  if (job.plan_file.empty()) {
    StatedMethod stated{.name = job.plan.method,
                        .shares_by_speed = job.shares == job::Shares::speed};
    for (const auto& [key, where] : job.where) stated.keys.insert(key);
    out = resets_for(choice, stated);
  }
  out.insert(out.end(), set.begin(), set.end());
  if (choice.method == "plan") return out;
  if (!job.plan_file.empty()) {
    const std::vector<std::string> instead = without_plan(job);
    out.insert(out.end(), instead.begin(), instead.end());
  }
  out.push_back("method.name=" + choice.method);
  out.insert(out.end(), choice.set.begin(), choice.set.end());
  return out;
}

std::optional<MethodChoice> with_changes(MethodChoice choice,
                                         const std::vector<std::string>& changes) {
  const std::string section = "method.";
  if (changes.empty() || choice.method == "plan") return std::nullopt;
  for (const std::string& change : changes) {
    if (!change.starts_with(section) || change.starts_with("method.name=")) return std::nullopt;
    choice.label += choice.set.empty() ? "@" : ",";
    choice.label += change.substr(section.size());
    choice.set.push_back(change);
  }
  return choice;
}

std::optional<MethodChoice> with_shares_by_speed(MethodChoice choice, const job::Job& job) {
  if (choice.method == "plan" || job.where.contains("method.shares")) return std::nullopt;
  const methods::Strategy& strategy = methods::strategy_named(choice.method);
  if (strategy.planned || !strategy.combines.shares) return std::nullopt;
  choice.label += "@shares=speed";
  choice.set.emplace_back("method.shares=speed");
  return choice;
}

}  // namespace rehearse::study
