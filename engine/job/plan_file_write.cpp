// Writes plan files: the plan with every key, then the reasons. Equal plans give equal bytes. The
// plan's hash is the FNV-1a of the text of [made_for], without its descriptions, and [plan].
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <concepts>
#include <optional>
#include <type_traits>

#include "engine/base/errors.h"
#include "engine/base/files/toml_text.h"
#include "engine/base/fnv.h"
#include "engine/base/names.h"
#include "engine/job/job.h"
#include "engine/job/plan_file.h"
#include "engine/plan/fields.h"

namespace rehearse::job {
namespace {

/// A TOML list; more than 100 characters are broken into several lines.
std::string list(const std::vector<std::string>& items) {
  std::string line = fmt::format("[{}]", fmt::join(items, ", "));
  if (line.size() <= 100) return line;
  std::string out = "[";
  std::size_t column = 200;
  for (const std::string& item : items) {
    if (column + item.size() > 100) out += "\n ", column = 2;
    out += ' ' + item + ',', column += item.size() + 2;
  }
  return out + "\n]";
}

std::string quoted_list(const std::vector<std::string>& values) {
  std::vector<std::string> items;
  for (const std::string& value : values) items.push_back(toml_string(value));
  return list(items);
}

class Writer {
 public:
  void table(const std::string& name) { text_ += fmt::format("\n[{}]\n", name); }
  void tables(const std::string& name) { text_ += fmt::format("\n[[{}]]\n", name); }
  void raw(const std::string& key, const std::string& value) {
    text_ += fmt::format("{} = {}\n", key, value);
  }
  void text(const char* key, const std::string& value) { raw(key, toml_string(value)); }
  void number(const char* key, double value) { raw(key, fmt::format("{}", value)); }
  /// Leaves an infinite time out.
  void seconds(const char* key, double value) {
    if (std::isfinite(value)) number(key, value);
  }
  void texts(const char* key, const std::vector<std::string>& values) {
    raw(key, quoted_list(values));
  }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

/// The fields of a plan as TOML.
class FieldTexts {
 public:
  struct Line {
    std::string key = {}, value = {};
    std::optional<bool> stated = {};
  };

  FieldTexts(const model::ModelSpec& model, const cluster::Cluster& cluster)
      : model_(model), cluster_(cluster) {}

  template <class T>
  void operator()(const char* key, const T& member, const plan::Rule& rule) {
    lines_.push_back({key, text(member), rule.stated});
  }
  /// In bytes, of the default bucket if the plan has none.
  void operator()(const char* key, const std::optional<Bytes>& bucket, const plan::Rule& rule) {
    lines_.push_back({fmt::format("{}_bytes", key),
                      text(bucket.value_or(plan::default_bucket).value), rule.stated});
  }
  const std::vector<Line>& lines() const { return lines_; }

 private:
  static std::string text(const std::string& value) { return toml_string(value); }
  static std::string text(Seconds value) { return text(value.value); }
  template <class Number>
    requires std::is_arithmetic_v<Number>
  static std::string text(Number value) {
    return fmt::format("{}", value);
  }
  template <class E>
    requires std::is_enum_v<E>
  static std::string text(E value) {
    return toml_string(name_of(value));
  }
  template <class T>
  static std::string text(const std::optional<T>& value) {
    return value ? text(*value) : toml_string("automatic");
  }
  template <std::integral I>
  static std::string text(const std::vector<I>& values) {
    std::vector<std::string> items;
    for (const I value : values) items.push_back(fmt::format("{}", value));
    return list(items);
  }
  std::string text(const plan::Devices<const std::vector<Id>>& devices) const {
    std::vector<std::string> names;
    for (const Id device : devices.ids) names.push_back(cluster_.devices()[device].name);
    return quoted_list(names);
  }
  /// "FIRST .. LAST" for each stage: its segments are consecutive.
  std::string text(const std::vector<std::vector<Id>>& stages) const {
    std::vector<std::string> out;
    for (const auto& stage : stages)
      out.push_back(model_.segments[stage.front()].name + " .. " +
                    model_.segments[stage.back()].name);
    return quoted_list(out);
  }
  std::string text(const std::vector<plan::LayerExchange>& layers) const {
    std::vector<std::string> out;
    for (std::size_t s = 0; s < layers.size(); ++s)
      out.push_back(fmt::format("{{ segment = {}, density = {}, reduction = {}, coding = {} }}",
                                toml_string(model_.segments[s].name), layers[s].density,
                                text(layers[s].reduction), text(layers[s].coding)));
    return fmt::format("[\n  {},\n]", fmt::join(out, ",\n  "));
  }

  const model::ModelSpec& model_;
  const cluster::Cluster& cluster_;
  std::vector<Line> lines_ = {};
};

void write_made_for(Writer& w, const MadeFor& made_for) {
  w.table("made_for");
  w.text("model", made_for.model);
  w.text("model_hash", hash_text(made_for.model_hash));
  w.text("cluster", made_for.cluster);
  w.text("cluster_hash", hash_text(made_for.cluster_hash));
  w.text("profile_hash", hash_text(made_for.profile_hash));
}

void write_plan(Writer& w, const plan::Plan& plan, const model::ModelSpec& model,
                const cluster::Cluster& cluster) {
  w.table("plan");
  const plan::Plan unstated;
  FieldTexts texts(model, cluster), defaults(model, cluster);
  plan::each_field(plan, texts);
  plan::each_field(unstated, defaults);
  for (std::size_t i = 0; i < texts.lines().size(); ++i) {
    const auto& [key, value, stated] = texts.lines()[i];
    if (stated.value_or(value != defaults.lines()[i].value)) w.raw(key, value);
  }
}

void write_why(Writer& w, const plan::Decision& d) {
  w.table("why");
  w.seconds("seconds", d.seconds);
  w.seconds("dry_run_seconds", d.dry_run_seconds);
  w.number("candidates", d.candidates), w.number("pruned", d.pruned);
  w.number("dry_run", d.dry_run), w.number("beyond_budget", d.beyond_budget);
  w.texts("would_change", d.would_change);
  w.texts("warnings", d.warnings);
  for (const plan::Choice& choice : d.choices) {
    w.tables("why.choices");
    w.text("name", choice.name), w.text("value", choice.value);
    w.seconds("seconds", choice.seconds);
    for (const plan::Alternative& other : choice.runners_up) {
      w.tables("why.choices.runners_up");
      w.text("value", other.value);
      w.seconds("seconds", other.seconds);
      w.text("why", other.why);
    }
  }
  for (const plan::RunnerUp& other : d.runners_up) {
    w.tables("why.runners_up");
    w.text("value", other.value);
    w.seconds("seconds", other.seconds);
    w.text("why", other.why);
  }
  for (const plan::Infeasible& one : d.infeasible) {
    w.tables("why.infeasible");
    w.text("constraint", one.constraint);
    w.number("candidates", one.candidates);
    w.text("nearest", one.nearest);
  }
}

/// Throws ProgramError when the plan is not complete: stages must hold all segments in order,
/// layers must be empty or one for each segment, and devices must exist. Otherwise the file could
/// not be read.
void check(const plan::Plan& plan, const model::ModelSpec& model, const cluster::Cluster& cluster) {
  std::size_t next = 0;
  bool good = plan.exchange.sparse.layers.empty() ||
              plan.exchange.sparse.layers.size() == model.segments.size();
  for (const auto& stage : plan.placement.stages) {
    good = good && !stage.empty();
    for (Id segment : stage) good = good && segment == next++;
  }
  for (Id device : plan.placement.rank_to_device) good = good && device < cluster.devices().size();
  if (!good || next != model.segments.size())
    throw ProgramError("a plan that is not complete cannot be written to a file");
}

}  // namespace

MadeFor made_for(const model::ModelSpec& model, const cluster::Cluster& cluster,
                 const costs::Profile* profile) {
  return {.model = describe(model),
          .cluster = describe(cluster),
          .model_hash = hash_of(model),
          .cluster_hash = cluster.hash(),
          .profile_hash = profile == nullptr ? 0 : hash_of(*profile)};
}

std::uint64_t hash_of(const plan::Plan& plan, const MadeFor& made_for,
                      const model::ModelSpec& model, const cluster::Cluster& cluster) {
  check(plan, model, cluster);
  Writer w;
  MadeFor hashes = made_for;
  hashes.model.clear(), hashes.cluster.clear();  // descriptions do not count
  write_made_for(w, hashes);
  write_plan(w, plan, model, cluster);
  return fnv1a(w.str());
}

std::string to_toml(const plan::Decision& decision, const MadeFor& made_for,
                    const model::ModelSpec& model, const cluster::Cluster& cluster) {
  Writer w;
  w.number("version", PlanFile::version);
  w.text("hash", hash_text(hash_of(decision.plan, made_for, model, cluster)));
  write_made_for(w, made_for);
  write_plan(w, decision.plan, model, cluster);
  write_why(w, decision);
  return "# A plan for `[method] plan` of a job (docs/plans.md). It is not to be edited: what "
         "runs\n"
         "# is what was rehearsed. Change the job and plan again.\n" +
         w.str();
}

std::string to_toml(const plan::Decision& decision, const Job& job, const costs::Profile* profile) {
  return to_toml(decision, made_for(job.model, job.cluster, profile), job.model, job.cluster);
}

}  // namespace rehearse::job
