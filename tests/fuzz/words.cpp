// The words of the formats whose keys are said in tables of the code.
#include <ranges>
#include <set>

#include "engine/cluster/cluster.h"
#include "engine/cluster/platform/platform.h"
#include "engine/faults/failure_model.h"
#include "engine/faults/trace_file.h"
#include "engine/job/job.h"
#include "engine/methods/strategy.h"
#include "engine/model/model.h"
#include "engine/model/model_file.h"
#include "engine/plan/fields.h"
#include "engine/software/software.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {
namespace {

std::vector<std::string> parts_of(std::string_view text, std::string_view between) {
  std::vector<std::string> parts;
  for (const auto part : std::views::split(text, between))
    parts.emplace_back(part.begin(), part.end());
  return parts;
}

/// Adds words as TOML writes them.
void add_values(std::set<std::string>& words, const std::vector<std::string>& values) {
  for (const std::string& value : values) words.insert("\\x22" + value + "\\x22");
}

/// Adds the words that a key accepts, if its type lists them: "fused, written, flash".
void add_type(std::set<std::string>& words, const Config::Key& key) {
  const std::vector<std::string> values = parts_of(key.type, ", ");
  if (values.size() > 1) add_values(words, values);
}

/// Adds the keys, in one piece and in parts.
void add(std::set<std::string>& words, const std::vector<Config::Key>& keys) {
  for (const Config::Key& key : keys) {
    std::string path = key.path;
    for (auto at = path.find("[]"); at != path.npos; at = path.find("[]")) path.erase(at, 2);
    words.insert(path);
    for (const std::string& part : parts_of(path, ".")) words.insert(part);
    add_type(words, key);
  }
}

void add_methods(std::set<std::string>& words) {
  for (const auto& [name, strategy] : methods::strategies()) add_values(words, {name});
}

}  // namespace

std::set<std::string> words_of(std::string_view target) {
  std::set<std::string> words;
  if (target == "job" || target == "sweep") {
    add(words, job::job_keys());
    add_methods(words);
    add_values(words, model::known_models());
    add_values(words, cluster::known_clusters());
  }
  if (target == "platform") {
    add(words, cluster::platform_keys());
    add_values(words, cluster::known_devices());
  }
  if (target == "software") {
    add(words, software::software_keys());
    add_values(words, software::known_software());
  }
  if (target == "model") add(words, model::model_keys());
  if (target == "faults") {
    add(words, rehearse::faults::trace_keys());
    add(words, rehearse::faults::model_file_keys());
  }
  if (target == "plan") {
    plan::Plan plan;
    plan::each_field(plan,
                     [&](const char* key, const auto&, const plan::Rule&) { words.insert(key); });
    for (const Config::Key& key : job::job_keys())
      if (key.path.starts_with("method.")) add_type(words, key);
    add_methods(words);
  }
  return words;
}

}  // namespace rehearse::fuzz
