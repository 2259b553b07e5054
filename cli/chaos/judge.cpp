#include "cli/chaos/judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "cli/chaos/run_traces.h"

namespace rehearse::cli {
namespace {

/// What is wrong with the steps and weights of a run that ended well; empty: nothing.
std::string difference(const TrialJob& subject, const Reference& reference,
                       const std::string& out) {
  const auto losses = losses_in(out);
  for (std::int64_t step = 1; step <= subject.shape.steps; ++step) {
    const auto found = losses.find(step);
    const std::size_t times = found == losses.end() ? 0 : found->second.size();
    if (times != 1) return fmt::format("metrics.jsonl has step {} {} times", step, times);
  }
  if (static_cast<std::int64_t>(losses.size()) != subject.shape.steps)
    return "metrics.jsonl has steps beyond the last one";
  const auto state = state_in(out, subject.shape.steps);
  if (state.empty()) return "there is no last checkpoint";
  if (subject.exact)
    return state == reference.state ? "" : "its last weights are not those of the undisturbed run";
  double sum = 0;
  const auto count = std::max<std::int64_t>(5, subject.shape.steps / 10);
  std::int64_t counted = 0;
  for (auto it = losses.rbegin(); it != losses.rend() && counted < count; ++it, ++counted)
    sum += it->second.back();
  const double loss = sum / static_cast<double>(counted);
  if (!(std::abs(loss - reference.loss) <= loss_tolerance * reference.loss))
    return fmt::format("its last loss is {:.4f}, that of the undisturbed run {:.4f}", loss,
                       reference.loss);
  return "";
}

/// The ranks that messages may blame.
std::set<int> culprits(Mishap kind, const Draws& d, const TrialJob& subject) {
  switch (kind) {
    case Mishap::kill_launcher:
      return {};
    case Mishap::death_during_recovery:
      return {d.rank, d.other};
    case Mishap::truncated_checkpoint:
    case Mishap::flipped_bit:
      return {d.other};
    case Mishap::link_down:
    case Mishap::partition:
      // Behind the cut, rank 0 is the silent one; between two nodes nobody can say who is cut off.
      return subject.shape.ranks == 2 ? std::set<int>{0, 1} : std::set<int>{d.rank, 0};
    default:
      return {d.rank};
  }
}

/// What a run has said since it last went on from a checkpoint.
Ended last_start(const Ended& ended) {
  Ended out = ended;
  if (const auto at = ended.said.rfind("rehearse: recovery "); at != std::string::npos)
    out.said = ended.said.substr(at);
  out.blamed = blamed_in(out.said);
  return out;
}

/// Whether the messages of a run that failed name what is to blame; else what they lack.
std::string lacking(Mishap kind, const Draws& d, const TrialJob& subject, const Ended& ended) {
  const auto says = [&](std::initializer_list<const char*> words) {
    return std::ranges::any_of(
        words, [&](const char* word) { return ended.said.find(word) != std::string::npos; });
  };
  if (kind == Mishap::disk_full)
    return says({"cannot write", "cannot be written", "cannot create"})
               ? ""
               : "its messages do not say that something cannot be written";
  if (kind == Mishap::wrong_numbers && !says({"wrong numbers"}))
    return "its messages do not speak of wrong numbers";
  const std::set<int> culprit_ranks = culprits(kind, d, subject);
  const auto is_culprit = [&](int rank) { return culprit_ranks.contains(rank); };
  if (std::ranges::none_of(ended.blamed, is_culprit))
    return fmt::format("its messages do not name rank {}", fmt::join(culprit_ranks, " or "));
  // Numbers that spread before they are noticed are wrong on other ranks too.
  if (kind == Mishap::wrong_numbers || std::ranges::all_of(ended.blamed, is_culprit)) return "";
  return fmt::format("its messages blame ranks {}, and it was {}", fmt::join(ended.blamed, ", "),
                     fmt::join(culprit_ranks, " or "));
}

/// Something no run may do, however it ends; empty: it has not.
std::string misbehaves(const Ended& ended) {
  if (!ended.status) return fmt::format("it still ran after {:.0f} s", ended.wall_s);
  if (ended.orphans) return "processes of it were still there after its end";
  for (const char* word : {"terminate called", "Backtrace", "Aborted", "internal error"})
    if (ended.said.find(word) != std::string::npos) return fmt::format("it says \"{}\"", word);
  return "";
}

}  // namespace

Judgement judge(Mishap kind, const Draws& d, const TrialJob& subject, const Reference& reference,
                const TrialEnd& end) {
  Judgement out;
  const auto wrong = [&](const std::string& why) {
    out.verdict = Verdict::wrong;
    out.why = why;
    return out;
  };
  if (const std::string why = misbehaves(end.first); !why.empty()) return wrong(why);
  if (!end.struck) return wrong("the mishap has not struck");
  if (end.recoveries > 0)
    out.notes.push_back(
        fmt::format("{} recover{}", end.recoveries, end.recoveries == 1 ? "y" : "ies"));
  if (end.second) {
    if (const std::string why = misbehaves(*end.second); !why.empty())
      return wrong("going on: " + why);
    if (end.second->status != 0) return wrong("going on failed: " + last_error(end.second->said));
    if (const std::string why = difference(subject, reference, end.out); !why.empty())
      return wrong("going on: " + why);
    out.notes.emplace_back("a second run went on, to the weights of the undisturbed one");
  }
  const bool survived = end.first.status == 0 || kind == Mishap::kill_launcher;
  if (!survived || !end.first.blamed.empty())
    if (const std::string why =
            lacking(kind, d, subject, survived ? end.first : last_start(end.first));
        !why.empty()) {
      if (!survived) return wrong(why + ": " + last_error(end.first.said));
      out.notes.push_back(why);
    }
  if (!survived) {
    out.verdict = Verdict::refused;
    out.why = last_error(end.first.said);
    return out;
  }
  if (!end.second)
    if (const std::string why = difference(subject, reference, end.out); !why.empty())
      return wrong(why);
  out.verdict = Verdict::survived;
  return out;
}

}  // namespace rehearse::cli
