#include "cli/chaos/campaign.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "cli/chaos/interruption.h"
#include "cli/console/json_out.h"
#include "engine/base/names.h"
#include "engine/base/units.h"
#include "study/load.h"

namespace rehearse::cli {
namespace {

namespace fs = std::filesystem;

/// Trials that did not strike are drawn anew so often, with the next seeds of their own.
constexpr int draws_at_most = 3;

class Campaign {
 public:
  Campaign(const Context& context, const CampaignOptions& options, Teller& teller)
      : context_(context), options_(options), teller_(teller) {}

  CampaignResult run() {
    prepare();
    std::vector<std::pair<Mishap, std::size_t>> pairs;
    for (const Mishap kind : options_.kinds)
      if (!result_.not_run.contains(kind))
        for (std::size_t s = 0; s < result_.subjects.size(); ++s) pairs.emplace_back(kind, s);
    const int trials = options_.trials > 0 ? options_.trials : static_cast<int>(pairs.size());
    for (int i = 0; i < trials && !pairs.empty() && Interruption::signal() == 0; ++i) {
      const auto& [kind, subject] = pairs[static_cast<std::size_t>(i) % pairs.size()];
      tell(i, trials, kind, subject);
      trial(i, kind, subject);
    }
    return std::move(result_);
  }

 private:
  void prepare() {
    const std::string own = study::load_for(options_.job, context_.set, options_.nproc).plan.method;
    for (const study::MethodChoice& choice :
         study::parse_methods(options_.methods.empty() ? own : options_.methods))
      result_.subjects.push_back(trial_job_for(context_, options_.job, choice, options_.nproc));
    references_.resize(2 * result_.subjects.size());
    std::optional<std::string> network;
    small_disk_ = why_no_small_disk();
    for (const Mishap kind : options_.kinds) {
      if (!needs_network(kind)) continue;
      if (!network) network = why_no_network(options_.folder);
      if (!network->empty()) result_.not_run[kind] = *network;
    }
  }

  void tell(int done, int trials, Mishap kind, std::size_t subject) {
    teller_.say(fmt::format("trial {} of {}: {} of {}; {} survived, {} refused, {} wrong", done + 1,
                            trials, name_of(kind), result_.subjects[subject].label,
                            result_.count(Verdict::survived), result_.count(Verdict::refused),
                            result_.count(Verdict::wrong)));
  }

  const Reference& reference(std::size_t subject, bool network) {
    std::optional<Reference>& known = references_[2 * subject + (network ? 1 : 0)];
    if (!known) {
      const std::string folder =
          fresh(fmt::format("undisturbed-{}{}", subject, network ? "-network" : ""));
      known = run_reference(result_.subjects[subject], folder, network);
      fs::remove_all(folder);
    }
    return *known;
  }

  std::string fresh(const std::string& name) const {
    const fs::path folder = fs::path(options_.folder) / name;
    fs::remove_all(folder);
    fs::create_directories(folder);
    return folder.string();
  }

  void trial(int number, Mishap kind, std::size_t index) {
    const TrialJob& subject = result_.subjects[index];
    TrialRecord record{.number = number + 1,
                       .seed = options_.seed + static_cast<std::uint64_t>(number),
                       .kind = kind,
                       .method = subject.label};
    record.command = command_of(record, subject);
    const Reference& undisturbed = reference(index, needs_network(kind));
    const std::string folder = fresh(fmt::format("trial-{}", number + 1));
    for (int again = 0; again < draws_at_most; ++again) {
      Draws draws = draw(kind, record.seed + (std::uint64_t{1} << 32) * again, subject.shape);
      if (!small_disk_.empty()) draws.real_disk = false;
      // Not every rank is in every phase.
      if (again > 0 && draws.phase != faults::Phase::save) draws.phase = faults::Phase::begin;
      record.what = words_of(kind, draws);
      fresh(fs::path(folder).filename().string());
      const TrialEnd end = run_trial(kind, draws, subject, undisturbed, folder);
      record.wall_s += end.first.wall_s + (end.second ? end.second->wall_s : 0);
      record.judgement = judge(kind, draws, subject, undisturbed, end);
      if (end.struck || !end.first.status) break;
    }
    if (Interruption::signal() != 0) return;  // it ended because of that
    if (record.judgement.verdict == Verdict::wrong && options_.keep)
      record.folder = folder;
    else
      fs::remove_all(folder);
    result_.trials.push_back(std::move(record));
  }

  std::string command_of(const TrialRecord& record, const TrialJob& subject) const {
    std::vector<std::string> words{"rehearse", "chaos", options_.job};
    const auto add = [&](const std::string& option, const std::string& value) {
      words.insert(words.end(), {option, value});
    };
    add("--trials", "1");
    if (options_.nproc > 0) add("--nproc", std::to_string(options_.nproc));
    add("--kinds", std::string(name_of(record.kind)));
    add("--methods", subject.label);
    add("--seed", std::to_string(record.seed));
    for (const std::string& one : options_.set) add("--set", one);
    return command_text(words);
  }

  const Context& context_;
  const CampaignOptions& options_;
  Teller& teller_;
  std::string small_disk_ = {};  // why there is none; empty: there is
  std::vector<std::optional<Reference>> references_ = {};
  CampaignResult result_ = {};
};

}  // namespace

int CampaignResult::count(Verdict verdict) const {
  return static_cast<int>(std::ranges::count_if(
      trials, [&](const TrialRecord& t) { return t.judgement.verdict == verdict; }));
}

CampaignResult run_campaign(const Context& context, const CampaignOptions& options,
                            Teller& teller) {
  return Campaign(context, options, teller).run();
}

}  // namespace rehearse::cli
