// Reads SWEEP.toml: the job, the axes with their values, the options of a study.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/base/choose.h"
#include "engine/base/errors.h"
#include "engine/base/files/config.h"
#include "engine/base/files/file_kinds.h"
#include "engine/base/files/files.h"
#include "engine/base/hints.h"
#include "engine/base/numbers/limits.h"
#include "engine/job/job.h"
#include "study/methods.h"
#include "study/sweep/sweep.h"

namespace rehearse::study {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_values = 100000;

class AxisReader {
 public:
  explicit AxisReader(std::vector<Axis>& out) : out_(out) {
    for (const Config::Key& key : job::job_keys()) known_.push_back(key.path);
  }

  /// The values of a list or a range of numbers.
  static std::vector<AxisValue> numbers(const Config& table, const std::string& key) {
    if (table.shape(key) == Config::Shape::table) return range(table.section(key), key);
    return listed(table, key, key);
  }

  /// `path`: of the table from [axes] on.
  void read(const Config& table, const std::string& path) {
    for (const std::string& key : table.names()) {
      const std::string name = path.empty() ? key : fmt::format("{}.{}", path, key);
      switch (table.shape(key)) {
        case Config::Shape::table:
          if (const Config inner = table.section(key); inner.has("from") || inner.has("to")) {
            check_key(table, key, name);
            add(table, key, name, range(inner, name));
          } else {
            read(inner, name);
          }
          break;
        case Config::Shape::table_list:
          add(table, key, name, zipped(table, key));
          break;
        case Config::Shape::list:
          if (name != "methods") check_key(table, key, name);
          add(table, key, name, name == "methods" ? methods(table) : listed(table, key, name));
          break;
        default:
          throw table.error(key,
                            "must be a list of values, a range { from, to, steps } or { from, "
                            "to, factor }, or a list of tables");
      }
    }
  }

 private:
  void check_key(const Config& table, const std::string& key, const std::string& name) const {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) return;
    throw table.error(key, fmt::format("{} is no key of a job (docs/job.md){}", name,
                                       did_you_mean(name, known_)));
  }

  void add(const Config& table, const std::string& key, const std::string& name,
           std::vector<AxisValue> values) {
    if (values.empty()) throw table.error(key, "an axis needs at least one value");
    out_.push_back({name, std::move(values)});
  }

  static std::vector<AxisValue> listed(const Config& table, const std::string& key,
                                       const std::string& name) {
    std::vector<AxisValue> out;
    for (const std::string& toml : table.elements(key))
      out.push_back({json_of(toml), {fmt::format("{}={}", name, toml)}, {}});
    return out;
  }

  static std::vector<AxisValue> methods(const Config& table) {
    std::vector<AxisValue> out;
    for (const std::string& one : table.texts("methods")) {
      try {
        for (const MethodChoice& choice : parse_methods(one))
          out.push_back({choice.label, {}, choice.label});
      } catch (const InputError& error) {
        throw table.error("methods", error.what());
      }
      if (one == "plan") throw table.error("methods", "a sweep has no \"plan\"; set method.plan");
    }
    return out;
  }

  std::vector<AxisValue> zipped(const Config& table, const std::string& key) const {
    std::vector<AxisValue> out;
    for (const Config& one : table.sections(key)) {
      AxisValue value;
      const std::string label = one.text("label", "");
      std::string text;
      for (const Config::Leaf& leaf : one.leaves()) {
        if (leaf.path == "label") continue;
        check_key(one, leaf.path, leaf.path);
        value.set.push_back(leaf.path + "=" + leaf.toml);
        const Json shown = json_of(leaf.toml);
        text += fmt::format("{}{}={}", text.empty() ? "" : " ", leaf.path,
                            shown.is_string() ? shown.get<std::string>() : leaf.toml);
      }
      if (value.set.empty()) throw table.error(key, "a table sets no key of the job");
      value.label = label.empty() ? text : label;
      out.push_back(std::move(value));
    }
    return out;
  }

  static std::vector<AxisValue> range(const Config& c, const std::string& name) {
    const double from = c.number("from", std::nullopt), to = c.number("to", std::nullopt);
    const std::string unit = c.text("unit", "");
    const auto steps = c.maybe_integer("steps", between(2, most_values));
    const bool by_factor = c.has("factor");
    if (steps.has_value() == by_factor)
      throw c.error(steps ? "factor" : "steps", "a range has either steps or factor");
    if (to <= from) throw c.error("to", fmt::format("{}: must be above from = {}", to, from));
    std::vector<double> numbers;
    if (by_factor) {
      const double factor = c.number("factor", std::nullopt, above(1));
      if (from <= 0) throw c.error("from", fmt::format("{}: must be above 0 with factor", from));
      for (double x = from; x <= to * (1 + 1e-9); x *= factor) {
        numbers.push_back(x);
        if (numbers.size() > most_values)
          throw c.error("factor", fmt::format("gives more than {} values", most_values));
      }
    } else {
      for (std::int64_t i = 0; i < *steps; ++i)
        numbers.push_back(from +
                          (to - from) * static_cast<double>(i) / static_cast<double>(*steps - 1));
    }
    std::vector<AxisValue> out;
    for (const double x : numbers) {
      const double near = std::round(x);
      const bool whole = std::abs(x - near) <= 1e-9 * std::abs(x) && std::abs(near) < 1e15;
      const std::string number =
          whole ? fmt::format("{}", static_cast<std::int64_t>(near)) : fmt::format("{:.12g}", x);
      const std::string toml = unit.empty() ? number : fmt::format("\"{}{}\"", number, unit);
      out.push_back({json_of(toml), {fmt::format("{}={}", name, toml)}, {}});
    }
    return out;
  }

  std::vector<Axis>& out_;
  std::vector<std::string> known_ = {};
};

}  // namespace

Json json_of(const std::string& toml) {
  Json out = Json::parse(toml, nullptr, false);
  return out.is_discarded() ? Json(toml) : out;
}

namespace {

/// Reads the section [scaling]: the axis `devices`.
void read_scaling(const Config& c, Sweep& out) {
  out.scaling = choose(c, "kind", Scaling::strong);
  if (out.question == Question::goodput)
    throw c.error("kind", "what = \"goodput\" has no scaling; it is for simulate and plan");
  if (!c.has("devices")) throw c.error("devices", "a scaling needs it, as in [8, 16, 32]");
  Axis axis{.name = "devices", .values = AxisReader::numbers(c, "devices")};
  std::int64_t previous = 0;
  for (AxisValue& value : axis.values) {
    value.set.clear();
    value.devices = value.label.is_number_integer() ? value.label.get<std::int64_t>() : 0;
    if (value.devices <= previous)
      throw c.error("devices", fmt::format("{}: must be whole numbers that rise, as in [8, 16, 32]",
                                           value.label.dump()));
    previous = value.devices;
  }
  if (axis.values.empty()) throw c.error("devices", "needs at least one number");
  out.axes.push_back(std::move(axis));
}

/// What `c` says of a sweep of the job `base`.
Sweep sweep_of(const Config& c, JobSource base) {
  Sweep out{.file = c.file(), .base = std::move(base)};
  out.question = choose(c, "what", Question::simulate);
  StudyOptions& how = out.options;
  if (out.question == Question::plan)
    for (const char* key : {"seeds", "precision", "steps"})
      if (c.has(key)) throw c.error(key, "is not for what = \"plan\"");
  if (out.question == Question::goodput)
    out.duration = c.seconds("duration", std::nullopt, limits::long_run);
  else if (c.has("duration"))
    throw c.error("duration", "is for what = \"goodput\"");
  how.fidelity = choose(c, "fidelity", Fidelity::fluid);
  if (out.question == Question::plan && how.fidelity == Fidelity::chunk)
    throw c.error("fidelity", "chunk: what = \"plan\" knows analytic and fluid");
  how.seeds = static_cast<int>(c.integer("seeds", 1, between(1, 10000)));
  how.steps.steady = static_cast<int>(c.integer("steps", how.steps.measured(),
                                                between(how.steps.warm_up + 1, 1000000))) -
                     how.steps.warm_up;
  how.precision = c.number("precision", how.precision, between(0, 1));
  how.jobs = 1;  // points are parallel, seeds of a point are not
  out.vary = choose(c, "vary", Vary::together);
  if (out.vary == Vary::alone && c.has("scaling"))
    throw c.error("vary", "\"alone\": a scaling varies its devices with all other axes");
  if (c.has("scaling")) read_scaling(c.section("scaling"), out);
  AxisReader(out.axes).read(c.section("axes"), "");
  for (std::size_t i = 1; out.scaling && i < out.axes.size(); ++i)
    for (const char* key : {"devices", "cluster.world_size", "cluster.devices"})
      if (out.axes[i].name == key)
        throw c.section("axes").error(key, "[scaling] chooses the devices; leave it out");
  out.where = c.texts("where");
  c.finish();
  if (out.axes.empty()) throw c.error("axes", "no axis; a sweep needs at least one");
  return out;
}

}  // namespace

Sweep read_sweep(const std::string& path, const std::vector<std::string>& set) {
  const Config c = Config::load(path);
  check_kind(c, FileKind::sweep);
  if (c.shape("job") == Config::Shape::table)
    return sweep_of(c, {.file = path + " [job]", .text = c.section("job").toml(), .set = set});
  const std::filesystem::path job = c.text("job", std::nullopt);
  const std::string file = (std::filesystem::path(path).parent_path() / job).string();
  if (!std::filesystem::is_regular_file(file))
    throw c.error(
        "job", fmt::format("{}: no such file (a path starts from the folder of {})", file, path));
  return sweep_of(c, {.file = file, .text = read_file(file), .set = set});
}

Sweep sweep_of_job(const JobSource& base, const std::string& toml, const std::string& name) {
  JobSource with_text = base;
  if (!base.text) with_text.text = read_file(base.file);
  return sweep_of(Config::parse(toml, name), std::move(with_text));
}

}  // namespace rehearse::study
