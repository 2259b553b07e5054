#include "runtime/executor/trace_gather.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <tuple>

#include "engine/link/rendezvous.h"

namespace rehearse::runtime {
namespace {

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Identifies a boot of a host. Processes with the same boot id read the same steady clock.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

struct Record {
  Id rank = 0;
  OpTimes stamp = {};
};

}  // namespace

void gather_trace(const link::LinkedProgram& linked, Executor& executor, Control& control,
                  const std::string& key, execution::TraceSink* sink, std::int64_t& origin) {
  std::vector<OpTimes> mine;
  for (const std::vector<OpTimes>& lane : executor.stamps())
    mine.insert(mine.end(), lane.begin(), lane.end());
  control.barrier(key + " clock");
  const std::int64_t clock = now();
  const std::string boot = boot_id();
  const std::vector<std::string> boots = control.gather(key + " boot", boot);
  const std::vector<std::string> clocks = control.gather(key + " clocks", std::to_string(clock));
  std::string bytes(mine.size() * sizeof(OpTimes), '\0');
  std::memcpy(bytes.data(), mine.data(), bytes.size());
  const std::vector<std::string> all = control.gather(key + " stamps", bytes);
  if (control.environment().rank != 0 || sink == nullptr) return;

  std::vector<Record> records;
  for (Id rank = 0; rank < all.size(); ++rank) {
    const Id process = executor.wiring().process(rank);
    const std::string& stamps = all[process];
    const std::int64_t ahead = boots[process] == boot ? 0 : std::stoll(clocks[process]) - clock;
    for (std::size_t at = 0; at + sizeof(OpTimes) <= stamps.size(); at += sizeof(OpTimes)) {
      Record record{.rank = rank};
      std::memcpy(&record.stamp, stamps.data() + at, sizeof(OpTimes));
      record.stamp.start -= ahead;
      record.stamp.end -= ahead;
      records.push_back(record);
    }
  }
  if (records.empty()) return;
  const bool first = origin == 0;
  if (first) origin = records.front().stamp.start;
  link::RanksThatMeet meet(linked);
  std::map<std::tuple<Id, Id, std::int64_t>, std::int64_t>
      met;  // (event, group, step): start of the last member
  const auto rendezvous = [&](const Record& record) {
    const Id role = linked.role_of[record.rank];
    const std::vector<Id> ranks =
        meet.of(linked.program.roles[role].ops[record.stamp.op].work, record.rank);
    const Id group = ranks.empty() ? none : ranks.front();
    return std::tuple{group == none ? none : linked.event_of[role][record.stamp.op], group,
                      record.stamp.step};
  };
  for (const Record& record : records) {
    if (first) origin = std::min(origin, record.stamp.start);
    const auto where = rendezvous(record);
    if (std::get<1>(where) == none) continue;
    auto [found, added] = met.try_emplace(where, record.stamp.start);
    if (!added) found->second = std::max(found->second, record.stamp.start);
  }
  for (const Record& record : records) {
    std::int64_t start = record.stamp.start;
    if (const auto found = met.find(rendezvous(record)); found != met.end())
      start = std::clamp(found->second, start, record.stamp.end);
    const double begin = static_cast<double>(start - origin) * 1e-9;
    const double end = static_cast<double>(record.stamp.end - origin) * 1e-9;
    sink->record(linked.role_of[record.rank], record.stamp.op, static_cast<int>(record.stamp.step),
                 linked.place_of[record.rank], std::span(&begin, 1), std::span(&end, 1));
  }
}

}  // namespace rehearse::runtime
