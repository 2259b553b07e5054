// A campaign of trials: kinds of mishaps x methods, in turn, until there are so many trials. Each
// trial has a seed of its own, the campaign's plus its number.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/chaos/judge.h"
#include "cli/console/context.h"
#include "cli/console/teller.h"

namespace rehearse::cli {

struct CampaignOptions {
  std::string job = {}, methods = {};  // methods empty: the job's own
  std::vector<Mishap> kinds = {};
  std::vector<std::string> set = {};  // the user's --set
  int trials = 0;                     // 0: each kind once with each method
  int nproc = 0;                      // 0: the job's ranks
  std::uint64_t seed = 1;
  std::string folder = {};  // for the runs; exists
  bool keep = false;        // the runs that went wrong
};

struct TrialRecord {
  int number = 0;
  std::uint64_t seed = 0;
  Mishap kind = Mishap::kill;
  std::string method = {};
  std::string what = {};  // where it struck
  Judgement judgement = {};
  double wall_s = 0;
  std::string command = {};  // that repeats it
  std::string folder = {};   // of its runs, if they are kept
};

struct CampaignResult {
  std::vector<TrialRecord> trials = {};
  std::vector<TrialJob> subjects = {};
  std::map<Mishap, std::string> not_run = {};  // why
  int count(Verdict verdict) const;
};

/// Runs a campaign. Throws InputError for a job that cannot run, or whose undisturbed run fails.
CampaignResult run_campaign(const Context& context, const CampaignOptions& options, Teller& teller);

/// A table of kinds and methods, what was not run, and each wrong trial in words.
std::string describe(const CampaignResult& result);
nlohmann::ordered_json to_json(const CampaignResult& result, const CampaignOptions& options);

}  // namespace rehearse::cli
