#include "study/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/files/config.h"
#include "engine/base/names.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "study/planning/decision.h"
#include "study/prediction/explain.h"
#include "study/progress.h"

namespace rehearse::study {
namespace {

using Json = nlohmann::ordered_json;
using Keys = std::map<std::string, std::string>;  // values as TOML, by key

Keys keys_of(const Config& config) {
  Keys out;
  for (const Config::Leaf& leaf : config.leaves()) out[leaf.path] = leaf.toml;
  return out;
}

/// The keys of the plan as `method.plan` files have them.
Keys plan_keys(const job::Job& job) {
  return keys_of(Config::parse(plan_text({.plan = job.plan}, job), "plan").section("plan"));
}

std::vector<KeyDifference> differing(const Keys& a, const Keys& b) {
  std::vector<KeyDifference> out;
  Keys all = a;
  all.insert(b.begin(), b.end());
  const auto value = [](const Keys& keys, const std::string& key) {
    const auto found = keys.find(key);
    return found == keys.end() ? std::string() : found->second;
  };
  for (const auto& [key, _] : all)
    if (value(a, key) != value(b, key)) out.push_back({key, value(a, key), value(b, key)});
  return out;
}

std::string last_name(const std::string& key) { return key.substr(key.rfind('.') + 1); }

/// Without keys that the jobs state with the same values: method.pp and the plan's pp.
std::vector<KeyDifference> without(std::vector<KeyDifference> plan,
                                   const std::vector<KeyDifference>& job) {
  std::erase_if(plan, [&](const KeyDifference& of_plan) {
    return std::ranges::any_of(job, [&](const KeyDifference& stated) {
      const bool same_key = last_name(stated.key) == last_name(of_plan.key) ||
                            (stated.key == "method.name" && of_plan.key == "method");
      return same_key && stated.a == of_plan.a && stated.b == of_plan.b;
    });
  });
  return plan;
}

/// A job with its keys, and the prediction.
struct Read {
  Keys job = {}, plan = {};
  Side side = {};
};

Read read(const JobSource& source, const StudyOptions& options) {
  try {
    Read out{.job = keys_of(config_of(source))};
    job::Job job = load(source);
    const std::optional<plan::Decision> decided = decide_plan(job, options.progress);
    out.plan = plan_keys(job);
    std::string name = source.file;
    for (const std::string& set : source.set) name += " --set " + set;
    out.side = {
        .name = std::move(name), .study = predict(job, options), .explanation = explain(job)};
    if (decided) add_warnings(*decided, out.side.study);
    return out;
  } catch (const InputError& error) {
    const std::string what = error.what();
    if (what.starts_with(source.file)) throw;
    throw InputError(fmt::format("{}: {}", source.file, what));
  }
}

/// A figure of both jobs. `text` prints one.
struct Figure {
  std::string key = {}, name = {};
  double a = 0, b = 0;
  std::function<std::string(double)> text = {};
  bool share = false;  // a fraction, printed in percent
};

std::vector<Figure> figures(const Difference& d) {
  const auto seconds = [](double s) { return to_text(Seconds(s)); };
  const auto bytes = [](double n) { return to_text(Bytes(n)); };
  const auto plain = [](double n) { return fmt::format("{:.5g}", n); };
  const auto share = [](double x) { return percent(x, 2); };
  const auto peak = [](const Side& side) { return static_cast<double>(peak_memory(side.study)); };
  const execution::Summary &a = d.a.study.summary, &b = d.b.study.summary;
  std::vector<Figure> out{
      {"step_time_s", "step time", a.step_time.mean, b.step_time.mean, seconds},
      {"samples_per_s", "samples/s", a.samples_per_s, b.samples_per_s, plain},
      {"tokens_per_s", "tokens/s", a.tokens_per_s, b.tokens_per_s, plain},
      {"mfu", "MFU", a.mfu, b.mfu, share, true},
      {"bubble_fraction", "bubble", a.bubble_fraction, b.bubble_fraction, share, true},
      {"exposed_comm_s", "exposed communication", a.exposed_comm_s, b.exposed_comm_s, seconds},
      {"bytes_sent_per_rank", "sent per rank", a.bytes_sent_mean, b.bytes_sent_mean, bytes},
      {"peak_memory_bytes", "peak memory", peak(d.a), peak(d.b), bytes},
      {"joules_per_step", "energy a step", a.joules_per_step, b.joules_per_step,
       [](double j) { return to_text(Joules(j)); }},
  };
  // Not known of a cluster of which a peak rate or a power is not known.
  std::erase_if(out, [](const Figure& f) {
    return (f.key == "mfu" || f.key == "joules_per_step") && (f.a <= 0 || f.b <= 0);
  });
  const std::optional<Cost> cost_a = cost_of(d.a.study), cost_b = cost_of(d.b.study);
  if (cost_a && cost_b && cost_a->currency == cost_b->currency)
    out.push_back({"cost_per_step", "cost a step", cost_a->per_step, cost_b->per_step,
                   [currency = cost_a->currency](double c) { return money_text(c, currency); }});
  return out;
}

/// Whether nobody can see the difference of two values: sums in another order make one.
bool as_good_as(double a, double b, double scale) { return std::abs(b - a) <= 1e-9 * scale; }

/// In percent of A; of shares in points, because 5% of 20% could mean either.
std::string change(const Figure& f) {
  const auto [a, b] = std::pair(f.a, f.b);
  if (as_good_as(a, b, std::max(std::abs(a), std::abs(b)))) return "=";
  if (f.share) return fmt::format("{:+.2f} points", 100 * (b - a));
  return a == 0 ? "" : fmt::format("{:+.1f}%", 100 * (b / a - 1));
}

/// Seconds of something on both critical paths.
struct Both {
  std::string name = {}, kind = {};
  double a = 0, b = 0;
  double begins_a = -1, begins_b = -1;  // the first time; -1: it is not on that path
  double by() const { return b - a; }
};

std::vector<Both> parts(const Difference& d) {
  std::vector<Both> out;
  const auto add = [&](const execution::Explanation& e, double Both::*seconds) {
    for (const execution::ExplainedPart& part : e.parts) {
      const std::string kind(name_of(part.part.kind));
      auto found = std::ranges::find_if(
          out, [&](const Both& one) { return one.kind == kind && one.name == part.part.name; });
      if (found == out.end()) found = out.insert(out.end(), {.name = part.part.name, .kind = kind});
      *found.*seconds += part.path;
    }
  };
  add(d.a.explanation, &Both::a);
  add(d.b.explanation, &Both::b);
  std::erase_if(out, [](const Both& one) { return one.a == 0 && one.b == 0; });
  std::ranges::stable_sort(
      out, [](const Both& x, const Both& y) { return std::abs(x.by()) > std::abs(y.by()); });
  return out;
}

/// The stretches of both critical paths by what they are, in the order in which they first begin.
std::vector<Both> timeline(const Difference& d) {
  std::vector<Both> out;
  const auto add = [&](const execution::Explanation& e, double Both::*seconds,
                       double Both::*begins) {
    for (const execution::Stretch& stretch : e.path) {
      auto found = std::ranges::find(out, stretch.what, &Both::name);
      if (found == out.end()) found = out.insert(out.end(), {.name = stretch.what});
      *found.*seconds += stretch.seconds();
      if (*found.*begins < 0) *found.*begins = stretch.start;
    }
  };
  add(d.a.explanation, &Both::a, &Both::begins_a);
  add(d.b.explanation, &Both::b, &Both::begins_b);
  std::ranges::stable_sort(out, std::less(), [](const Both& one) {
    return one.begins_a < 0 ? one.begins_b : one.begins_a;
  });
  return out;
}

/// At most 36 characters of a value: a longer one from shortly before `differs`, the place of its
/// first difference from the other job's.
std::string shortened(const std::string& value, std::size_t differs) {
  constexpr std::size_t most = 36, kept = 8;  // kept: characters shown ahead of the difference
  if (value.empty()) return "-";
  if (value.size() <= most) return value;
  const std::size_t begin = differs + kept < most ? 0 : std::min(differs, value.size()) - kept;
  const std::string from = begin == 0 ? value : "..." + value.substr(begin);
  return from.size() <= most ? from : from.substr(0, most - 3) + "...";
}

std::string key_table(const std::string& title, const std::vector<KeyDifference>& keys) {
  std::vector<std::vector<std::string>> rows{{title, "A", "B"}};
  for (const KeyDifference& one : keys) {
    const auto differs =
        static_cast<std::size_t>(std::ranges::mismatch(one.a, one.b).in1 - one.a.begin());
    rows.push_back({one.key, shortened(one.a, differs), shortened(one.b, differs)});
  }
  return table(rows) + "\n";
}

double step_of(const Side& side) { return side.study.summary.step_time.mean; }

/// B - A, of seconds of the step: those of a part may be the rest of larger ones.
std::string difference_text(double a, double b, const Difference& d) {
  if (as_good_as(a, b, std::max(step_of(d.a), step_of(d.b)))) return "=";
  return (b < a ? "-" : "+") + to_text(Seconds(std::abs(b - a)));
}

/// Whether a predicted step is another one than that of the analytic schedule.
bool goes_beyond(const Difference& d) {
  return std::ranges::any_of(std::array{&d.a, &d.b}, [](const Side* side) {
    return !as_good_as(side->explanation.step_s, step_of(*side), step_of(*side));
  });
}

std::string part_table(const Difference& d) {
  constexpr std::size_t shown = 12;
  const std::vector<Both> all = parts(d);
  std::vector<std::vector<std::string>> rows{{"on the critical path", "A", "B", "B - A"}};
  const auto line = [&](const std::string& name, double a, double b) {
    rows.push_back({name, to_text(Seconds(a)), to_text(Seconds(b)), difference_text(a, b, d)});
  };
  double rest_a = 0, rest_b = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i < shown)
      line(all[i].kind == all[i].name ? all[i].name : all[i].kind + ": " + all[i].name, all[i].a,
           all[i].b);
    else
      rest_a += all[i].a, rest_b += all[i].b;
  }
  if (all.size() > shown) line(fmt::format("{} more", all.size() - shown), rest_a, rest_b);
  const double sum_a = d.a.explanation.step_s, sum_b = d.b.explanation.step_s;
  const double step_a = step_of(d.a), step_b = step_of(d.b);
  line("sum", sum_a, sum_b);
  if (goes_beyond(d)) {
    const double by = (step_b - sum_b) - (step_a - sum_a);
    rows.push_back({"beyond this schedule", difference_text(sum_a, step_a, d),
                    difference_text(sum_b, step_b, d), difference_text(0, by, d)});
    line("step time", step_a, step_b);
  }
  return table(rows);
}

std::string timeline_table(const Difference& d) {
  std::vector<std::vector<std::string>> rows{
      {"timeline", "A begins", "takes", "B begins", "takes", "B - A"}};
  const auto cells = [](double begins, double seconds) {
    return begins < 0 ? std::pair<std::string, std::string>("", "")
                      : std::pair(to_text(Seconds(begins)), to_text(Seconds(seconds)));
  };
  for (const Both& one : timeline(d)) {
    const auto [begins_a, a] = cells(one.begins_a, one.a);
    const auto [begins_b, b] = cells(one.begins_b, one.b);
    rows.push_back({one.name, begins_a, a, begins_b, b, difference_text(one.a, one.b, d)});
  }
  return table(rows);
}

Json keys_json(const std::vector<KeyDifference>& keys) {
  const auto value = [](const std::string& toml) { return toml.empty() ? Json() : Json(toml); };
  Json out = Json::array();
  for (const KeyDifference& one : keys)
    out.push_back({{"key", one.key}, {"a", value(one.a)}, {"b", value(one.b)}});
  return out;
}

Json side_json(const Side& side) {
  Json path = Json::array();
  for (const execution::Stretch& stretch : side.explanation.path)
    path.push_back({{"what", stretch.what},
                    {"start_s", stretch.start},
                    {"seconds", stretch.seconds()},
                    {"communication_s", stretch.communication_s}});
  return {{"job", side.name},
          {"result", to_json(side.study)},
          {"explained_step_time_s", side.explanation.step_s},
          {"critical_path", std::move(path)}};
}

}  // namespace

Difference difference_of(const JobSource& a, const JobSource& b, const StudyOptions& options) {
  const auto say = [&](const char* what) {
    if (options.progress != nullptr) options.progress->say(what);
  };
  say("predicting A");
  Read of_a = read(a, options);
  say("predicting B");
  Read of_b = read(b, options);
  Difference out{.job = differing(of_a.job, of_b.job)};
  out.plan = without(differing(of_a.plan, of_b.plan), out.job);
  out.a = std::move(of_a.side);
  out.b = std::move(of_b.side);
  return out;
}

std::string describe(const Difference& d) {
  std::string out = fmt::format("A: {}\nB: {}\n\n", d.a.name, d.b.name);
  if (d.job.empty())
    out += "both jobs state the same\n\n";
  else
    out += key_table("stated", d.job);
  if (!d.plan.empty()) out += key_table("so the plan's", d.plan);
  std::vector<std::vector<std::string>> rows{{"predicted", "A", "B", "change"}};
  for (const Figure& f : figures(d)) rows.push_back({f.name, f.text(f.a), f.text(f.b), change(f)});
  out +=
      table(rows) + "\n" + part_table(d) + "\n" + timeline_table(d) +
      "of the analytic schedule without jitter, as simulate --explain" +
      (goes_beyond(d) ? fmt::format("; beyond it is {}jitter",
                                    d.a.study.fidelity == Fidelity::analytic
                                        ? ""
                                        : "what ops cost each other on links that they share, and ")
                      : "") +
      "\n";
  const auto warned = [](const Side& side, const std::string& of) {
    return std::ranges::count(side.study.warnings, of) > 0;
  };
  for (const std::string& warning : d.a.study.warnings)
    out += fmt::format("warning: {}: {}\n", warned(d.b, warning) ? "A and B" : "A", warning);
  for (const std::string& warning : d.b.study.warnings)
    if (!warned(d.a, warning)) out += fmt::format("warning: B: {}\n", warning);
  return out;
}

Json to_json(const Difference& d) {
  Json predicted = Json::object(), all_parts = Json::array();
  for (const Figure& f : figures(d)) predicted[f.key] = {{"a", f.a}, {"b", f.b}};
  for (const Both& one : parts(d))
    all_parts.push_back({{"kind", one.kind}, {"name", one.name}, {"a_s", one.a}, {"b_s", one.b}});
  return {{"schema_version", 1},
          {"diff", {{"job", keys_json(d.job)}, {"plan", keys_json(d.plan)}}},
          {"predicted", std::move(predicted)},
          {"parts", std::move(all_parts)},
          {"a", side_json(d.a)},
          {"b", side_json(d.b)}};
}

}  // namespace rehearse::study
