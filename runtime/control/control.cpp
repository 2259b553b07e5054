#include "runtime/control/control.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "engine/base/heartbeat.h"
#include "runtime/control/control_impl.h"
#include "runtime/control/net/interfaces.h"

namespace rehearse::runtime {
namespace {

constexpr auto answer_within = std::chrono::seconds(2);  // of the supervisor, if it is alive

}  // namespace

Control::Control(const Environment& environment, ControlOptions options)
    : impl_(std::make_unique<Impl>(environment, std::move(options))) {
  if (impl_->options.heartbeat.value <= 0 ||
      impl_->options.heartbeat > longest_heartbeat(impl_->options.timeout))
    throw InputError(fmt::format("a heartbeat of {} with a timeout of {}: at most {}",
                                 to_text(impl_->options.heartbeat), to_text(impl_->options.timeout),
                                 to_text(longest_heartbeat(impl_->options.timeout))));
  try {
    impl_->start();
  } catch (...) {
    impl_->ending = true;
    notify(impl_->wake.get());
    if (impl_->thread.joinable()) impl_->thread.join();
    throw;
  }
}

Control::~Control() {
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->released && !impl_->verdict) {
      impl_->outgoing.push_back(
          Message(MessageKind::fail).put_text("it left the run before its end"));
    }
  }
  impl_->ending = true;
  notify(impl_->wake.get());
  impl_->thread.join();
  // On rank 0: what this rank has just sent must reach the supervisor before the supervisor ends.
  impl_->connection = FrameSocket();
  impl_->supervisor.reset();
}

const Environment& Control::environment() const { return impl_->environment; }
const ControlOptions& Control::options() const { return impl_->options; }

LaneProgress& Control::lane(const std::string& name) {
  const std::lock_guard lock(impl_->mutex);
  impl_->lane_names.push_back(name);
  return impl_->lanes.emplace_back();
}

std::shared_ptr<void> Control::before_beats(std::function<void()> update) {
  const std::lock_guard lock(impl_->updates_lock);
  const auto at = impl_->updates.insert(impl_->updates.end(), std::move(update));
  return {nullptr, [this, at](void*) {
            const std::lock_guard inner(impl_->updates_lock);
            impl_->updates.erase(at);
          }};
}

void Control::publish(const std::string& key, const std::string& value) {
  impl_->queue(Message(MessageKind::set).put_text(key).put_text(value));
}

std::string Control::await(const std::string& key) {
  std::unique_lock lock(impl_->mutex);
  const auto deadline = Clock::now() + to_duration(impl_->options.join);
  if (!impl_->wait_until(lock, deadline, [&] { return impl_->values.contains(key); })) {
    throw BackendError(
        fmt::format("no rank has set \"{}\" within {}", key, to_text(impl_->options.join)));
  }
  return impl_->values.at(key);
}

std::optional<std::string> Control::lookup(const std::string& key) const {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->values.find(key);
  if (found == impl_->values.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> Control::gather(const std::string& key, const std::string& value,
                                         Seconds longer) {
  const int world = impl_->environment.world_size;
  std::unique_lock lock(impl_->mutex);
  // The n-th gathering of a key on this rank belongs to the n-th on every other rank.
  const std::uint64_t turn = impl_->gatherings[key]++;
  const auto key_of = [&](int rank) { return fmt::format("{}#{}/{}", key, turn, rank); };
  lock.unlock();
  publish(key_of(impl_->environment.rank), value);
  lock.lock();
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = 0; r < world; ++r) {
      if (!impl_->values.contains(key_of(r))) ranks.push_back(r);
    }
    return ranks;
  };
  const Seconds patience(impl_->options.join.value + longer.value);
  const auto deadline = Clock::now() + to_duration(patience);
  if (!impl_->wait_until(lock, deadline, [&] { return missing().empty(); })) {
    throw BackendError(fmt::format("waited {} at \"{}\" for rank {}", to_text(patience), key,
                                   fmt::join(missing(), ", ")));
  }
  std::vector<std::string> all;
  for (int r = 0; r < world; ++r) {
    all.push_back(std::move(impl_->values.extract(key_of(r)).mapped()));
  }
  return all;
}

void Control::agree(const std::string& what, const std::string& value) {
  const auto all = gather("agree/" + what, value);
  std::map<std::string, std::vector<std::size_t>> who;
  for (std::size_t r = 0; r < all.size(); ++r) who[all[r]].push_back(r);
  if (who.size() == 1) return;
  std::vector<std::string> parts;
  for (const auto& [v, ranks] : who) {
    parts.push_back(
        fmt::format("{} on rank{} {}", v, ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", ")));
  }
  std::ranges::sort(parts);
  throw BackendError(fmt::format("{} differs between ranks: {}", what, fmt::join(parts, "; ")));
}

void Control::barrier(const std::string& name) { gather("barrier/" + name, ""); }

void Control::report(std::int64_t step, std::span<const double> values) {
  Message message(MessageKind::report);
  message.put(static_cast<Id>(impl_->environment.rank))
      .put(step)
      .put(static_cast<std::uint32_t>(values.size()));
  for (const double value : values) message.put(value);
  impl_->queue(std::move(message));
}

std::optional<StepReport> Control::next_report() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->reports.empty()) return std::nullopt;
  StepReport report = std::move(impl_->reports.front());
  impl_->reports.pop_front();
  return report;
}

void Control::request_stop() noexcept {
  impl_->stop_wanted = true;
  notify(impl_->wake.get());
}

void Control::interrupt(int signal) noexcept {
  impl_->interrupt_wanted = signal;
  notify(impl_->wake.get());
}

void Control::start_at(std::int64_t first, bool free_running) {
  const std::lock_guard lock(impl_->mutex);
  impl_->begun = first - 1;
  impl_->free_running = free_running;
}

bool Control::begin_step(std::int64_t step) {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [&] { return impl_->verdict || impl_->last || !impl_->voting; });
  if (impl_->verdict) throw BackendError(*impl_->verdict);
  if (impl_->last && step > *impl_->last) return false;
  impl_->begun = step;
  return true;
}

std::optional<std::int64_t> Control::last_step() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->last;
}

void Control::fail(const std::string& message) noexcept {
  try {
    impl_->queue(Message(MessageKind::fail).put_text(message));
    std::unique_lock lock(impl_->mutex);
    // Waits until the error comes back as the verdict, so that the process does not end before the
    // supervisor has read it.
    impl_->changed.wait_for(lock, answer_within, [this] { return impl_->verdict.has_value(); });
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
  }
}

std::optional<std::string> Control::failure() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->verdict;
}

void Control::check() const {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->verdict) throw BackendError(*impl_->verdict);
}

int Control::failure_fd() const { return impl_->failed.get(); }

void Control::accuse(Id rank, const std::string& what) const {
  impl_->queue(Message(MessageKind::accuse).put(rank).put_text(what));
}

void Control::refuse(Id rank, const std::string& what) const {
  accuse(rank, what);
  blame(what);
}

void Control::blame(const std::string& otherwise, Id other_end) const {
  std::unique_lock lock(impl_->mutex);
  const auto judged = [this] { return impl_->verdict.has_value(); };
  const auto patience = to_duration(impl_->options.timeout) +
                        3 * to_duration(impl_->options.heartbeat) + std::chrono::seconds(1);
  if (!impl_->changed.wait_for(lock, patience, judged) && other_end != none) {
    lock.unlock();
    accuse(other_end, otherwise);
    lock.lock();
    impl_->changed.wait_for(lock, answer_within, judged);
  }
  throw BackendError(impl_->verdict.value_or(otherwise));
}

void Control::finish() {
  impl_->queue(Message(MessageKind::finish));
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [this] { return impl_->released || impl_->verdict; });
  if (!impl_->released) throw BackendError(*impl_->verdict);
}

const std::vector<MemberInfo>& Members::of(const Control& control) {
  return control.impl_->members;
}
const Secret& Members::data_secret(const Control& control) { return control.impl_->data_secret; }
std::string Members::address(const Control& control) {
  const Environment& here = control.environment();
  const std::string& interface = control.options().interface;
  // Without a word of the user: where this rank reaches rank 0.
  return here.one_host() || interface.empty() ? control.impl_->address
                                              : address_for_other_hosts(interface);
}

}  // namespace rehearse::runtime
