// Tests that run once for every registered method.
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

/// A method's name as a test's.
inline std::string method_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

/// Whether the rules that hold for all methods allow a plan of what one combines with.
inline bool allowed(plan::Plan plan, const model::ModelSpec& model) {
  try {
    if (auto* defaults = methods::strategy_named(plan.method).defaults) defaults(plan);
  } catch (const InputError&) {
    return false;  // a name that implies a level of ZeRO takes no other
  }
  return plan::splits(model, plan.mesh.tp) &&
         plan.mesh.pp * plan.schedule.virtual_stages <= model.layers &&
         (plan.mesh.pp == 1 || plan.exchange.zero < 2);
}

/// Plans that tests make of what methods combine with: none may get lost in silence. A method may
/// refuse some for reasons of its own, which the test counts here; of one that is not listed all
/// plans compile.
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
