// Helpers for tests that run once for every registered method.
#pragma once
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <string>
#include <vector>

#include "engine/base/errors.h"
#include "engine/methods/strategy.h"

namespace rehearse::test {

inline std::vector<std::string> all_methods() {
  std::vector<std::string> names;
  for (const auto& [name, strategy] : methods::strategies()) names.push_back(name);
  return names;
}

/// A method's name as part of a test's name.
inline std::string method_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

/// Whether the rules that are common to all methods allow the plan.
inline bool allowed(plan::Plan plan, const model::ModelSpec& model) {
  try {
    if (auto* defaults = methods::strategy_named(plan.method).defaults) defaults(plan);
  } catch (const InputError&) {
    return false;  // the name of the method implies a ZeRO stage other than the plan's
  }
  return plan::splits(model, plan.mesh.tp) &&
         plan.mesh.pp * plan.schedule.virtual_stages <= model.layers;
}

/// Counts the plans that a method refuses although the common rules allow them, so that no plan is
/// skipped silently. A test lists the expected number of each method; without an entry it is 0.
class Refusals {
 public:
  bool refuses(const plan::Plan& plan, const model::ModelSpec& model) {
    if (!allowed(plan, model)) return true;
    try {
      methods::compile(plan, model);
      return false;
    } catch (const InputError& error) {
      ++count_;
      last_ = error.what();
      return true;
    }
  }
  void expect(const std::string& method, const std::map<std::string, int>& known) const {
    const auto at = known.find(method);
    EXPECT_EQ(count_, at == known.end() ? 0 : at->second) << method << ": " << last_;
  }

 private:
  int count_ = 0;
  std::string last_ = {};
};

}  // namespace rehearse::test
