#include "runtime/control/membership/rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr Seconds beat_every = Seconds(0.25);

void write_beside(const std::string& path, const std::string& text) {
  const std::string beside = fmt::format("{}.{}.part", path, getpid());
  if (!(std::ofstream(beside) << text).flush() || rename(beside.c_str(), path.c_str()) != 0)
    throw BackendError(fmt::format("{}: cannot be written", path));
}

/// Nothing when the file is not there, or no JSON object: another launcher may just be writing it.
std::optional<json> read_json(const fs::path& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  json text = json::parse(in, nullptr, false);
  return text.is_object() ? std::optional(std::move(text)) : std::nullopt;
}

json to_json(const RendezvousNode& n) {
  return {{"name", n.name},
          {"host", n.host},
          {"address", n.address},
          {"port", n.port},
          {"nproc", n.nproc},
          {"start", n.start},
          {"state", name_of(n.state)},
          {"status", n.status},
          {"died", n.died},
          {"stuck", n.stuck},
          {"beat", n.beat}};
}

std::optional<RendezvousNode> node_from(const json& j) {
  try {
    const auto state = from_name<NodeState>(j.at("state").get<std::string>());
    if (!state) return std::nullopt;
    return RendezvousNode{.name = j.at("name"),
                          .host = j.at("host"),
                          .address = j.at("address"),
                          .port = j.at("port"),
                          .nproc = j.at("nproc"),
                          .start = j.at("start"),
                          .state = *state,
                          .status = j.at("status"),
                          .died = j.at("died"),
                          .stuck = j.at("stuck"),
                          .beat = j.at("beat")};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

std::string file_of_start(int number) { return fmt::format("start-{:06}.json", number); }

}  // namespace

Rendezvous::Rendezvous(std::string folder, int nproc, std::string address, std::uint16_t port,
                       Seconds silence)
    : folder_(std::move(folder)), silence_(silence) {
  std::error_code error;
  fs::create_directories(folder_, error);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  self_ = {.name = fmt::format("{:016}-{}-{}",
                               std::chrono::duration_cast<std::chrono::microseconds>(now).count(),
                               host_name(), getpid()),
           .host = host_name(),
           .address = std::move(address),
           .port = port,
           .nproc = nproc,
           .start = newest().number};
  tick();
}

Rendezvous::~Rendezvous() {
  std::error_code ignored;
  fs::remove(path_of(fmt::format("node-{}.json", self_.name)), ignored);
}

std::string Rendezvous::path_of(const std::string& file) const {
  return (fs::path(folder_) / file).string();
}

void Rendezvous::tick() {
  const Deadline now = Clock::now();
  if (now - told_ < to_duration(beat_every)) return;
  told_ = now;
  ++self_.beat;
  write_beside(path_of(fmt::format("node-{}.json", self_.name)), to_json(self_).dump());
  std::error_code ignored;
  std::map<std::string, Seen> seen;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ignored)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with("node-") || !file.ends_with(".json")) continue;
    const auto text = read_json(entry.path());
    const auto node = text ? node_from(*text) : std::nullopt;
    if (!node) continue;
    const auto before = seen_.find(node->name);
    // A launcher counts from the first beat after the one that was found.
    const bool moved = before != seen_.end() && before->second.node.beat != node->beat;
    seen[node->name] = {*node, moved                   ? now
                               : before != seen_.end() ? before->second.changed
                                                       : Deadline{}};
  }
  seen_ = std::move(seen);
}

void Rendezvous::say(int start, NodeState state, int status, std::vector<int> died,
                     std::vector<int> stuck) {
  self_.start = start;
  self_.state = state;
  self_.status = status;
  self_.died = std::move(died);
  self_.stuck = std::move(stuck);
  told_ = {};
  tick();
}

std::vector<RendezvousNode> Rendezvous::alive() const {
  std::vector<RendezvousNode> all;
  for (const auto& [name, seen] : seen_)
    if (name != self_.name && Clock::now() - seen.changed < to_duration(silence_))
      all.push_back(seen.node);
  all.push_back(self_);
  std::ranges::sort(all, {}, &RendezvousNode::name);
  return all;
}

RendezvousStart Rendezvous::newest() const {
  RendezvousStart newest;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ignored)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with("start-") || file <= file_of_start(newest.number)) continue;
    const auto text = read_json(entry.path());
    if (!text) continue;
    try {
      newest = {.number = text->at("number"),
                .recoveries = text->at("recoveries"),
                .ranks = text->at("ranks"),
                .first = text->at("first"),
                .over = text->at("over"),
                .status = text->at("status"),
                .ranks_of_node = text->at("nodes"),
                .address = text->at("address"),
                .port = text->at("port"),
                .resume_from = text->at("resume_from"),
                .set = text->at("set")};
    } catch (const json::exception&) {
      throw BackendError(fmt::format("{}: is no start of an elastic run; remove the folder {}",
                                     entry.path().string(), folder_));
    }
  }
  return newest;
}

void Rendezvous::publish(const RendezvousStart& start) const {
  const json text{{"number", start.number},
                  {"recoveries", start.recoveries},
                  {"ranks", start.ranks},
                  {"first", start.first},
                  {"over", start.over},
                  {"status", start.status},
                  {"nodes", start.ranks_of_node},
                  {"address", start.address},
                  {"port", start.port},
                  {"resume_from", start.resume_from},
                  {"set", start.set}};
  const std::string beside = path_of(fmt::format("start.{}.part", self_.name));
  write_beside(beside, text.dump());
  // A link fails when the file is there already, whoever wrote it.
  const int refused = link(beside.c_str(), path_of(file_of_start(start.number)).c_str());
  std::error_code ignored;
  fs::remove(beside, ignored);
  if (refused != 0 && !fs::exists(path_of(file_of_start(start.number))))
    throw BackendError(fmt::format("{}: cannot be written", path_of(file_of_start(start.number))));
}

Secret Rendezvous::secret() const { return secret_in(path_of("secret"), true, silence_); }

void Rendezvous::request_drain(int start) const {
  std::ofstream(path_of(fmt::format("drain-{:06}", start))) << self_.name;
}
bool Rendezvous::drain_requested(int start) const {
  return fs::exists(path_of(fmt::format("drain-{:06}", start)));
}

}  // namespace rehearse::runtime
