#include "runtime/communication/socket_mailbox.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

constexpr std::size_t spare_buffers = 8;

}  // namespace

SocketMailbox::SocketMailbox(Switchboard& switchboard, const Control& control, std::string channel,
                             std::vector<Id> senders, std::vector<Id> receivers, Bytes bound,
                             Seconds patience)
    : switchboard_(switchboard),
      control_(control),
      channel_(std::move(channel)),
      senders_(std::move(senders)),
      receivers_(std::move(receivers)),
      key_(Switchboard::key_of("mailbox " + channel_, receivers_)),
      bound_(static_cast<std::size_t>(bound.value)),
      patience_(patience) {
  switchboard_.deliver(key_, this, [this](Id from, ByteStream stream) {
    const std::lock_guard lock(mutex_);
    in_.push_back({.from = from, .stream = std::move(stream)});
    notify(wake_.get());
  });
  thread_ = std::thread([this] { run(); });
}

SocketMailbox::~SocketMailbox() {
  switchboard_.withdraw(key_, this);
  ending_ = true;
  notify(wake_.get());
  thread_.join();
}

/// One that is not much longer, or an empty one. Called with the mutex held.
std::vector<std::byte> SocketMailbox::spare_buffer(std::size_t bytes) {
  const auto fits = std::ranges::find_if(
      spare_, [&](const auto& b) { return b.size() >= bytes && b.size() / 2 <= bytes; });
  if (fits == spare_.end()) return {};
  std::vector<std::byte> buffer = std::move(*fits);
  spare_.erase(fits);
  return buffer;
}

void SocketMailbox::put(Buffer payload, Id to_rank, bool last) {
  Letter letter;
  letter.from = static_cast<Id>(control_.environment().rank);
  const auto bytes = static_cast<std::size_t>(payload.bytes());
  letter.header.bytes = bytes;
  letter.header.last = last ? 1 : 0;
  {
    std::unique_lock lock(mutex_);
    const auto room = [&] {
      return !failure_.empty() || verdict_ || outbox_bytes_ == 0 || outbox_bytes_ + bytes <= bound_;
    };
    if (!changed_.wait_for(lock, to_duration(patience_), room)) {
      lock.unlock();
      control_.blame(
          fmt::format("channel {}: rank {} has not taken what lies in the mailbox for {}", channel_,
                      to_rank, to_text(patience_)));
    }
    letter.payload = spare_buffer(bytes);
    outbox_bytes_ += bytes;
  }
  if (letter.payload.size() < bytes) letter.payload.resize(bytes);
  if (bytes > 0) std::memcpy(letter.payload.data(), payload.data, bytes);
  post(std::move(letter), to_rank);
}

void SocketMailbox::post(Letter letter, Id to) {
  if (to == static_cast<Id>(control_.environment().rank)) {
    const std::lock_guard lock(mutex_);
    outbox_bytes_ -= letter.header.bytes;
    letter.done = letter.size();
    hand_over(std::move(letter));
    return;
  }
  ByteStream stream;
  bool connected = false;
  {
    const std::lock_guard lock(mutex_);
    connected = out_.contains(to);
  }
  if (!connected) stream = switchboard_.connect(key_, channel_, to);
  {
    const std::lock_guard lock(mutex_);
    Outgoing& line = out_[to];
    if (!line.stream) line.stream = std::move(stream);
    line.letters.push_back(std::move(letter));
  }
  notify(wake_.get());
}

/// Puts a complete letter into the inbox, or counts a sender's end. Called with the mutex held.
void SocketMailbox::hand_over(Letter letter) {
  if (letter.header.kind == LetterKind::end) {
    ++ended_;
  } else {
    inbox_bytes_ += letter.header.bytes;
    inbox_.push_back(std::move(letter));
  }
  changed_.notify_all();
}

bool SocketMailbox::nothing_can_come() const { return inbox_.empty() && ended_ >= senders_.size(); }

/// Copies the first letter of the inbox to `target`. Called with the mutex held and a letter there.
Delivery SocketMailbox::pop_message(Buffer target) {
  Letter letter = std::move(inbox_.front());
  inbox_.pop_front();
  const std::size_t bytes = letter.header.bytes;
  if (bytes != static_cast<std::size_t>(target.bytes())) {
    control_.refuse(letter.from, fmt::format("channel {}: {} bytes came where {} were due",
                                             channel_, bytes, target.bytes()));
  }
  if (bytes > 0) std::memcpy(target.data, letter.payload.data(), bytes);
  inbox_bytes_ -= bytes;
  if (spare_.size() < spare_buffers) spare_.push_back(std::move(letter.payload));
  notify(wake_.get());  // the thread may have stopped reading for lack of room
  return {.from = letter.from, .last = letter.header.last != 0};
}

Delivery SocketMailbox::take(Buffer target) {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(lock, to_duration(patience_), [&] {
    return !inbox_.empty() || nothing_can_come() || verdict_ || !failure_.empty();
  });
  if (!inbox_.empty()) return pop_message(target);
  if (nothing_can_come()) return {};
  const std::string what =
      !failure_.empty() ? failure_
      : came            ? std::string()
             : fmt::format("channel {}: no message came for {}", channel_, to_text(patience_));
  const Id other_end = failed_with_;
  lock.unlock();
  control_.blame(what, other_end);
}

Delivery SocketMailbox::try_take(Buffer target) {
  const std::lock_guard lock(mutex_);
  control_.check();
  return inbox_.empty() ? Delivery() : pop_message(target);
}

void SocketMailbox::close() {
  const auto own = static_cast<Id>(control_.environment().rank);
  if (std::exchange(closed_, true) || std::ranges::find(senders_, own) == senders_.end()) return;
  for (const Id to : receivers_) {
    Letter letter;
    letter.from = own;
    letter.header.kind = LetterKind::end;
    post(std::move(letter), to);
  }
  std::unique_lock lock(mutex_);
  const bool gone = changed_.wait_for(lock, to_duration(patience_), [&] {
    const auto empty = [](const auto& line) { return line.second.letters.empty(); };
    return verdict_ || !failure_.empty() || std::ranges::all_of(out_, empty);
  });
  if (gone && !verdict_ && failure_.empty()) return;
  const std::string what = failure_.empty()
                               ? fmt::format("channel {}: what was put was not taken within {}",
                                             channel_, to_text(patience_))
                               : failure_;
  const Id other_end = failed_with_;
  lock.unlock();
  control_.blame(what, other_end);
}

Traffic SocketMailbox::traffic() const { return {sent_.load(), received_.load()}; }

void SocketMailbox::fail(const std::string& what, Id other_end) {
  if (failure_.empty()) {
    failure_ = what;
    failed_with_ = other_end;
  }
  changed_.notify_all();
}

/// Reads at most one letter of a connection. Returns false when the connection has ended.
bool SocketMailbox::read(Incoming& line) {
  Letter& letter = line.letter;
  letter.from = line.from;
  const auto buffer = [this](std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return spare_buffer(bytes);
  };
  Reading reading = Reading::ended;
  std::string broken;
  try {
    reading = read_letter(line.stream, letter, buffer);
  } catch (const BackendError& error) {
    broken = fmt::format("channel {}: {}", channel_, error.what());
    control_.accuse(line.from, broken);
  }
  const std::lock_guard lock(mutex_);
  if (reading == Reading::cut_off)
    // The control plane knows first if the other end has died or has an error of its own.
    broken = fmt::format("channel {}: the connection ended after {} bytes of a message of {}",
                         channel_, letter.done, letter.size());
  if (!broken.empty()) fail(broken, line.from);
  if (reading == Reading::complete) {
    received_.fetch_add(static_cast<std::int64_t>(letter.header.bytes), std::memory_order_relaxed);
    hand_over(std::exchange(letter, {}));
  }
  return reading == Reading::complete || reading == Reading::incomplete;
}

/// Sends as much of the first letter as the kernel takes. Returns false when the connection has
/// ended.
bool SocketMailbox::write(Outgoing& line) {
  Letter& letter = line.letters.front();
  std::array<iovec, 2> parts = {};
  std::size_t count = 0;
  if (letter.done < sizeof(LetterHeader)) {
    parts[count++] = {reinterpret_cast<std::byte*>(&letter.header) + letter.done,
                      sizeof(LetterHeader) - letter.done};
  }
  const std::size_t of_payload =
      letter.done < sizeof(LetterHeader) ? 0 : letter.done - sizeof(LetterHeader);
  if (letter.header.bytes > of_payload) {
    parts[count++] = {letter.payload.data() + of_payload, letter.header.bytes - of_payload};
  }
  const ssize_t n = line.stream.send(std::span(parts).first(count));
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  letter.done += static_cast<std::size_t>(n);
  if (letter.done < letter.size()) return true;
  const std::lock_guard lock(mutex_);
  outbox_bytes_ -= letter.header.bytes;
  sent_.fetch_add(static_cast<std::int64_t>(letter.header.bytes), std::memory_order_relaxed);
  if (spare_.size() < spare_buffers) spare_.push_back(std::move(letter.payload));
  line.letters.pop_front();
  changed_.notify_all();
  return true;
}

void SocketMailbox::turn() {
  auto& [wait, readers, writers] = turn_;
  wait = {{wake_.get(), POLLIN, 0}, {verdict_ ? -1 : control_.failure_fd(), POLLIN, 0}};
  readers.clear(), writers.clear();
  bool has_input = false;
  {
    // Only this thread closes connections, and neither container moves its elements, so the
    // pointers stay valid.
    const std::lock_guard lock(mutex_);
    for (Incoming& line : in_) {
      if (!line.stream || inbox_bytes_ > bound_) continue;
      has_input = has_input || line.stream.has_input();
      wait.push_back({line.stream.fd(), POLLIN, 0});
      readers.push_back(&line);
    }
    for (auto& [to, line] : out_) {
      if (!line.stream || line.letters.empty()) continue;
      wait.push_back({line.stream.fd(), POLLOUT, 0});
      writers.emplace_back(to, &line);
    }
  }
  poll(wait.data(), wait.size(), has_input ? 0 : -1);
  if (wait[0].revents != 0) clear(wake_.get());
  if (wait[1].revents != 0) {
    const std::lock_guard lock(mutex_);
    verdict_ = true;
    changed_.notify_all();
  }
  for (std::size_t i = 0; i < readers.size(); ++i) {
    const bool ready = wait[2 + i].revents != 0 || readers[i]->stream.has_input();
    if (!ready || read(*readers[i])) continue;
    // The connection has ended: orderly after an `end` letter, else the control plane knows the
    // cause.
    const std::lock_guard lock(mutex_);
    readers[i]->stream = ByteStream();
  }
  for (std::size_t i = 0; i < writers.size(); ++i) {
    const auto& [to, line] = writers[i];
    if (wait[2 + readers.size() + i].revents == 0 || write(*line)) continue;
    const std::lock_guard lock(mutex_);
    line->stream = ByteStream();
    fail(fmt::format("channel {}: the connection to rank {} broke", channel_, to), to);
  }
}

void SocketMailbox::run() {
  while (!ending_.load()) turn();
}

}  // namespace rehearse::runtime
