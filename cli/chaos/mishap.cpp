#include "cli/chaos/mishap.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace rehearse::cli {
namespace {

using faults::Kind;
using faults::Phase;

/// The step, not before `step`, after which the next checkpoint is saved.
std::int64_t next_save(std::int64_t step, const Shape& shape) {
  return (step + shape.save_every - 1) / shape.save_every * shape.save_every;
}

faults::Event event_at(Kind kind, int rank, std::int64_t step, Phase phase = Phase::begin) {
  return {.kind = kind, .rank = static_cast<Id>(rank), .step = step, .phase = phase};
}

}  // namespace

bool needs_network(Mishap kind) {
  return kind == Mishap::link_down_up || kind == Mishap::link_down || kind == Mishap::loss_1 ||
         kind == Mishap::loss_5 || kind == Mishap::partition;
}

std::vector<Mishap> parse_mishaps(const std::string& list) {
  std::vector<Mishap> out;
  const std::vector<std::string> all = names_of<Mishap>();
  if (list == "all") {
    for (const std::string& name : all) out.push_back(*from_name<Mishap>(name));
    return out;
  }
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const auto kind = from_name<Mishap>(word);
    if (!kind) {
      const std::string near = nearest(word, all);
      throw InputError(fmt::format("--kinds: \"{}\" is not known{}; known are {}", word,
                                   near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near),
                                   fmt::join(all, ", ")));
    }
    out.push_back(*kind);
  }
  if (out.empty()) throw InputError("--kinds: names no kind; \"all\" names every one");
  return out;
}

Draws draw(Mishap kind, std::uint64_t seed, const Shape& shape) {
  std::mt19937_64 bits(seed * 64 + static_cast<std::uint64_t>(kind));
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(bits() %
                                     static_cast<std::uint64_t>(std::max<std::int64_t>(limit, 1)));
  };
  Draws d;
  // Neither the first step, in which nothing is saved, nor the last, in which all is done.
  d.step = 2 + below(shape.steps - 2);
  constexpr std::array phases{Phase::begin, Phase::forward, Phase::backward, Phase::exchange,
                              Phase::update};
  d.phase = phases[static_cast<std::size_t>(below(phases.size()))];
  d.rank = static_cast<int>(below(shape.ranks));
  d.other = static_cast<int>(below(shape.ranks));
  d.share = 0.1 + 0.6 * static_cast<double>(below(1000)) / 1000;
  d.real_disk = below(2) == 1;
  switch (kind) {
    case Mishap::kill_rank_0:
      d.rank = 0;
      break;
    case Mishap::truncated_checkpoint:
    case Mishap::flipped_bit:
      // A step lies between the damage and the death, and another checkpoint before both.
      d.step = std::min(next_save(d.step, shape), shape.steps - 1);
      d.step = std::max(d.step / shape.save_every * shape.save_every, shape.save_every);
      d.phase = Phase::save;
      break;
    case Mishap::death_during_recovery:
      d.step = std::max(d.step, shape.save_every + 1);  // there is a checkpoint to go on from
      d.other %= shape.ranks_left;
      break;
    case Mishap::death_during_save:
      d.step =
          std::min(next_save(d.step, shape), shape.steps / shape.save_every * shape.save_every);
      d.phase = Phase::save;
      break;
    default:
      break;
  }
  return d;
}

faults::Trace trace_of(Mishap kind, const Draws& d, const Shape& shape) {
  faults::Trace trace;
  const auto add = [&](faults::Event event) { trace.events.push_back(std::move(event)); };
  switch (kind) {
    case Mishap::kill:
    case Mishap::kill_rank_0:
    case Mishap::death_during_save:
      add(event_at(Kind::rank_dies, d.rank, d.step, d.phase));
      break;
    case Mishap::stop:
      add(event_at(Kind::freezes, d.rank, d.step, d.phase));
      break;
    case Mishap::stop_continue:
      add(event_at(Kind::freezes, d.rank, d.step, d.phase));
      trace.events.back().duration = Seconds(1);
      break;
    case Mishap::slow:
      add(event_at(Kind::slows, d.rank, d.step, d.phase));
      trace.events.back().duration = Seconds(1);
      trace.events.back().factor = 5;
      break;
    case Mishap::hang:
      add(event_at(Kind::hangs, d.rank, d.step, d.phase));
      break;
    case Mishap::disk_full:
      if (!d.real_disk) add(event_at(Kind::disk_full, d.rank, d.step, d.phase));
      break;
    case Mishap::truncated_checkpoint:
    case Mishap::flipped_bit:
      // Not every rank has a file in a checkpoint: all of those that are there are damaged.
      for (int rank = 0; rank < shape.ranks; ++rank)
        add(event_at(
            kind == Mishap::flipped_bit ? Kind::checkpoint_flipped : Kind::checkpoint_truncated,
            rank, d.step, Phase::save));
      add(event_at(Kind::rank_dies, d.other, d.step + 1));
      break;
    case Mishap::death_during_recovery:
      add(event_at(Kind::rank_dies, d.rank, d.step, d.phase));
      add(event_at(Kind::rank_dies, d.other, 0, Phase::recovery));
      break;
    case Mishap::wrong_numbers:
      add(event_at(Kind::wrong_numbers, d.rank, d.step, d.phase));
      break;
    default:
      break;
  }
  return trace;
}

std::string words_of(Mishap kind, const Draws& d) {
  if (needs_network(kind))
    return kind == Mishap::loss_1 || kind == Mishap::loss_5
               ? fmt::format("node {}", d.rank)
               : fmt::format("node {} after {:.0f}% of the steps' time", d.rank, 100 * d.share);
  if (kind == Mishap::kill_launcher) return fmt::format("after step {}", d.step);
  if (kind == Mishap::segfault) return fmt::format("rank {} after step {}", d.rank, d.step);
  if (kind == Mishap::disk_full && d.real_disk) return "a file system without space";
  const bool damage = kind == Mishap::truncated_checkpoint || kind == Mishap::flipped_bit;
  if (damage)
    return fmt::format("the checkpoint after step {}, then rank {} dies", d.step, d.other);
  std::string text = fmt::format("rank {} at step {}, {}", d.rank, d.step, name_of(d.phase));
  if (kind == Mishap::death_during_recovery)
    text += fmt::format(", and rank {} when the run goes on", d.other);
  return text;
}

}  // namespace rehearse::cli
