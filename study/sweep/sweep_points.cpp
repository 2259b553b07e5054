// The points of a sweep: axes crossed, conditions, and the key of each point's result.
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

#include "engine/base/errors.h"
#include "engine/base/files/config.h"
#include "engine/base/files/data_dir.h"
#include "engine/base/files/files.h"
#include "engine/base/fnv.h"
#include "engine/base/hints.h"
#include "engine/base/names.h"
#include "engine/base/units.h"
#include "engine/job/identity.h"
#include "engine/job/job.h"
#include "study/methods.h"
#include "study/sweep/scaling.h"
#include "study/sweep/sweep.h"

namespace rehearse::study {
namespace {

using Json = nlohmann::ordered_json;
using Values = std::map<std::string, Json>;  // of a point: its axes, and all keys of its job

constexpr std::size_t most_points = 1000000;

/// A text such as "50GB/s" in its unit: what it is an amount of, and how much; none: it is no
/// quantity.
std::optional<std::pair<char, double>> quantity(const Json& value) {
  if (!value.is_string()) return std::nullopt;
  const auto text = value.get<std::string>();
  const auto read = [&](auto parse) -> std::optional<double> {
    try {
      return parse(text).value;
    } catch (const InputError&) {
      return std::nullopt;
    }
  };
  if (const auto rate = read(parse_bandwidth)) return std::pair('r', *rate);
  if (const auto bytes = read(parse_bytes)) return std::pair('b', *bytes);
  if (const auto seconds = read(parse_seconds)) return std::pair('s', *seconds);
  return std::nullopt;
}

/// A condition: comparisons of which one must hold. A side is a key, a literal, or a product of
/// both. A comparison with a key that the point does not state holds.
class Condition {
 public:
  Condition(std::string text, std::string file) : text_(std::move(text)), file_(std::move(file)) {
    std::istringstream in(text_);
    std::vector<std::string> words;
    for (std::string word; in >> word;) {
      if (word.size() > 1 && word.front() == '\'' && word.back() == '\'')
        word = Json(word.substr(1, word.size() - 2)).dump();
      if (word == "or") {
        add(words);
        words.clear();
      } else {
        words.push_back(word);
      }
    }
    add(words);
  }

  bool holds(const Values& values) const {
    return std::any_of(any_.begin(), any_.end(), [&](const Comparison& one) {
      const std::optional<Json> left = value(one.left, values), right = value(one.right, values);
      return !left || !right || compare(*left, one.op, *right);
    });
  }
  /// Throws InputError for a name that is neither a literal nor in `names`.
  void check_names(const std::set<std::string>& names) const {
    for (const Comparison& one : any_)
      for (const auto* side : {&one.left, &one.right})
        for (const std::string& word : *side) {
          if (names.contains(word) || !Json::parse(word, nullptr, false).is_discarded()) continue;
          fail(
              fmt::format("\"{}\" is neither an axis nor a key of a job{}; a text stands "
                          "in quotes",
                          word, did_you_mean(word, {names.begin(), names.end()})));
        }
  }

 private:
  using Side = std::vector<std::string>;  // factors
  struct Comparison {
    Side left = {}, right = {};
    std::string op = {};
  };

  [[noreturn]] void fail(const std::string& why) const {
    throw InputError(fmt::format("{}: key \"where\": \"{}\": {}", file_, text_, why));
  }
  void add(const std::vector<std::string>& words) {
    Comparison out;
    Side* side = &out.left;
    bool operand = true;  // comes next
    for (const std::string& word : words) {
      if (operand) {
        side->push_back(word);
      } else if (word != "*") {
        const std::set<std::string> known{"==", "!=", "<", "<=", ">", ">="};
        if (!known.contains(word) || !out.op.empty()) out.op = "?";
        if (out.op == "?") break;
        out.op = word;
        side = &out.right;
      }
      operand = !operand;
    }
    if (out.op.empty() || out.op == "?" || out.right.empty() || operand)
      fail(
          "must be comparisons such as method.pp * method.tp <= 8, joined by \"or\", with blanks "
          "around ==, !=, <, <=, >, >= and *");
    any_.push_back(std::move(out));
  }
  std::optional<Json> value(const Side& side, const Values& values) const {
    std::optional<Json> out;
    for (const std::string& word : side) {
      const auto found = values.find(word);
      Json one = found != values.end() ? found->second : Json::parse(word, nullptr, false);
      if (one.is_discarded()) return std::nullopt;
      if (!out) {
        out = std::move(one);
        continue;
      }
      if (!out->is_number() || !one.is_number())
        fail(fmt::format("{} * {}: a product needs numbers", out->dump(), one.dump()));
      out = out->get<double>() * one.get<double>();
    }
    return out;
  }
  bool compare(const Json& left, const std::string& op, const Json& right) const {
    if (const auto a = quantity(left), b = quantity(right); a && b && a->first == b->first)
      return compare(a->second, op, b->second);
    if (op == "==") return left == right;
    if (op == "!=") return left != right;
    if (!left.is_number() || !right.is_number())
      fail(fmt::format("{} {} {}: only numbers and quantities of the same unit have an order",
                       left.dump(), op, right.dump()));
    const auto a = left.get<double>(), b = right.get<double>();
    return op == "<" ? a < b : op == "<=" ? a <= b : op == ">" ? a > b : a >= b;
  }

  std::string text_, file_;
  std::vector<Comparison> any_ = {};
};

std::string file_hash(const std::filesystem::path& path) {
  return hash_text(fnv1a(read_file(path.string())));
}

/// Of what decides results besides the job: the code of librehearse.so and the data files.
std::uint64_t surroundings() {
  std::string text;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        const std::string path = info->dlpi_name;
        if (std::filesystem::path(path).filename().string().starts_with("librehearse.so"))
          *static_cast<std::string*>(to) += file_hash(path);
        return 0;
      },
      &text);
  std::vector<std::filesystem::path> files;
  for (const char* folder : {"models", "platforms", "software", "faults"})
    if (const auto at = data_dir() / folder; std::filesystem::is_directory(at))
      for (const auto& entry : std::filesystem::recursive_directory_iterator(at))
        if (entry.path().extension() == ".toml") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& file : files) text += file.filename().string() + file_hash(file);
  return fnv1a(text);
}

/// Hashes of the files that texts of the job name, and of those that these files name: the base of
/// a software file, for example.
class NamedFiles {
 public:
  std::string of(const Json& value) {
    if (value.is_string()) return of_text(value.get<std::string>());
    std::string out;
    if (value.is_structured())
      for (const Json& one : value) out += of(one);
    return out;
  }

 private:
  std::string of_text(const std::string& text) {
    const auto [at, added] = known_.try_emplace(text);
    if (!added) return at->second;  // empty while its own file is read: files may name each other
    std::error_code none;
    // A model may be a folder of Hugging Face, and "rack.toml:4" names a file too.
    for (const std::string& file : {text, text.substr(0, text.rfind(':')), text + "/config.json"})
      if (std::filesystem::is_regular_file(file, none)) {
        at->second = file_hash(file) + of_keys(file);
        break;
      }
    return at->second;
  }
  std::string of_keys(const std::string& file) {
    std::string out;
    if (!file.ends_with(".toml")) return out;
    try {
      for (const Config::Leaf& leaf : Config::load(file).leaves()) out += of(json_of(leaf.toml));
    } catch (const InputError&) {  // NOLINT(bugprone-empty-catch): the point will say what is wrong
    }
    return out;
  }

  std::map<std::string, std::string> known_ = {};
};

/// All options of a point with this choice of a method. `set`: those of the sweep and of the other
/// axes. In front of them, the keys with which the job's own `text` shapes another method get their
/// defaults; behind them are the method's own.
std::vector<std::string> with_method(const std::string& label, const std::string& text,
                                     const std::string& name, const std::vector<std::string>& set) {
  const MethodChoice choice = parse_methods(label).front();
  const Config file = Config::parse(text, name), whole = Config::parse(text, name, set);
  for (const Config::Leaf& leaf : whole.leaves())
    if (leaf.path == "method.plan")
      throw InputError(
          fmt::format("{}: a job with a plan file (method.plan) has no axis \"methods\"", name));
  StatedMethod job{.name = whole.section("method").text("name", "")};
  for (const Config::Leaf& leaf : file.leaves()) job.keys.insert(leaf.path);
  job.shares_by_speed = job.keys.contains("method.shares") &&
                        file.section("method").text("shares", "equal") == "speed";
  std::vector<std::string> out = resets_for(choice, job);
  out.insert(out.end(), set.begin(), set.end());
  out.push_back("method.name=" + choice.method);
  out.insert(out.end(), choice.set.begin(), choice.set.end());
  return out;
}

/// Which value of each axis a point has; none: the job's.
using Chosen = std::vector<std::optional<std::size_t>>;

std::size_t count_of(const Sweep& sweep) {
  std::size_t count = 1;
  for (const Axis& axis : sweep.axes) {
    if (sweep.vary == Vary::alone)
      count += axis.values.size();
    else
      count *= axis.values.size();
    if (count > most_points)
      throw InputError(fmt::format("{}: more than {} points", sweep.file, most_points));
  }
  return count;
}

/// Of the n-th of so many points.
Chosen chosen_of(const Sweep& sweep, std::size_t n, std::size_t count) {
  Chosen out(sweep.axes.size());
  if (sweep.vary == Vary::alone) {
    if (n == 0) return out;
    std::size_t axis = 0;
    for (--n; n >= sweep.axes[axis].values.size(); ++axis) n -= sweep.axes[axis].values.size();
    out[axis] = n;
    return out;
  }
  for (std::size_t axis = 0; axis < out.size(); ++axis) {
    count /= sweep.axes[axis].values.size();
    out[axis] = n / count;
    n %= count;
  }
  return out;
}

/// "method.pp" of "method.pp=2".
std::string key_of(const std::string& option) { return option.substr(0, option.find('=')); }

/// The keys that the axis sets in some point.
std::set<std::string> keys_of(const Axis& axis) {
  std::set<std::string> keys;
  for (const AxisValue& value : axis.values) {
    for (const std::string& option : value.set) keys.insert(key_of(option));
    if (value.method.empty()) continue;
    keys.insert("method.name");
    const MethodChoice choice = parse_methods(value.method).front();
    for (const std::string& option : choice.set) keys.insert(key_of(option));
  }
  return keys;
}

/// Throws InputError when two axes, or an axis and --set, set one key in the same point: the result
/// would state a value that the point does not have.
void check_axes(const Sweep& sweep) {
  if (sweep.vary == Vary::alone) return;
  std::vector<std::pair<std::string, std::string>> set;  // keys, with who sets them
  for (const std::string& option : sweep.base.set)
    set.emplace_back(key_of(option), "--set " + option);
  for (const Axis& axis : sweep.axes) {
    const std::string name = fmt::format("the axis \"{}\"", axis.name);
    std::vector<std::pair<std::string, std::string>> own;
    for (const std::string& key : keys_of(axis)) {
      for (const auto& [other, who] : set)
        if (key == other || key.starts_with(other + ".") || other.starts_with(key + "."))
          throw InputError(fmt::format("{}: {} and {} both set {}; leave it out of one of them",
                                       sweep.file, who, name, key));
      own.emplace_back(key, name);
    }
    set.insert(set.end(), own.begin(), own.end());
  }
}

std::string options_text(const Sweep& sweep) {
  const StudyOptions& o = sweep.options;
  return fmt::format("{} {} {} {} {} {}", name_of(sweep.question), sweep.duration.value,
                     name_of(o.fidelity), o.seeds, o.steps.steady, o.precision);
}

}  // namespace

std::vector<Point> points_of(const Sweep& sweep) {
  check_axes(sweep);
  const std::string& base = sweep.base.text.value();
  std::vector<Condition> conditions;
  for (const std::string& text : sweep.where) conditions.emplace_back(text, sweep.file);
  const std::size_t count = count_of(sweep);
  std::optional<Resizer> resizer;
  if (sweep.scaling) resizer.emplace(*sweep.scaling, sweep.axes.front().values.front().devices);
  const std::string around = options_text(sweep) + hash_text(surroundings());
  NamedFiles files;
  std::set<std::string> names;
  std::vector<Point> out;
  for (std::size_t n = 0; n < count; ++n) {
    Point point;
    std::vector<std::string> set = sweep.base.set;
    std::string method;
    std::int64_t devices = 0;
    const Chosen chosen = chosen_of(sweep, n, count);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const Axis& axis = sweep.axes[i];
      point.values[axis.name] = nullptr;
      if (!chosen[i]) continue;
      const AxisValue& value = axis.values[*chosen[i]];
      point.values[axis.name] = value.label;
      set.insert(set.end(), value.set.begin(), value.set.end());
      if (!value.method.empty()) method = value.method;
      if (value.devices > 0) devices = value.devices;
    }
    if (!method.empty()) set = with_method(method, base, sweep.base.file, set);
    Config job = Config::parse(base, sweep.base.file, set);
    if (devices > 0) {
      const std::vector<std::string> more = resizer->keys_for(job, devices);
      set.insert(set.end(), more.begin(), more.end());
      job = Config::parse(base, sweep.base.file, set);
    }
    Values values;
    std::string text, named;  // equal jobs have equal texts
    for (const Config::Leaf& leaf : job.leaves()) {
      text += leaf.path + " = " + leaf.toml + "\n";
      named += files.of(values[leaf.path] = json_of(leaf.toml));
    }
    for (const auto& [name, label] : point.values.items())
      if (!label.is_null()) values[name] = label;
    for (const auto& [name, value] : values) names.insert(name);
    point.deal = fnv1a(text + options_text(sweep));
    point.key = hash_text(fnv1a(fmt::format("{}{}{}", text, named, around)));
    const bool in = std::all_of(conditions.begin(), conditions.end(),
                                [&](const Condition& c) { return c.holds(values); });
    point.set = std::move(set);
    if (in) out.push_back(std::move(point));
  }
  for (const Config::Key& key : job::job_keys()) names.insert(key.path);
  for (const Condition& condition : conditions) condition.check_names(names);
  if (out.empty()) throw InputError(fmt::format("{}: \"where\" leaves no point", sweep.file));
  return out;
}

}  // namespace rehearse::study
