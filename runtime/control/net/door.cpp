#include "runtime/control/net/door.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

namespace rehearse::runtime {
namespace {

constexpr std::size_t most_told = 32;  // lines in the log

template <class Frame>
bool send_frame(int fd, const Frame& frame) {
  // A few bytes fit the buffer of a socket that has sent nothing else.
  return send(fd, &frame, sizeof frame, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof frame);
}

}  // namespace

void Door::add_to(std::vector<pollfd>& wait) const {
  wait.push_back({listener_.get(), POLLIN, 0});
  for (const Waiting& w : waiting_) wait.push_back({w.fd.get(), POLLIN, 0});
}

int Door::milliseconds() const {
  return waiting_.empty() ? -1 : milliseconds_until(waiting_.front().until);
}

void Door::greet(Fd fd) {
  Waiting caller{.fd = std::move(fd), .until = Clock::now() + to_duration(patience)};
  caller.address = peer_address(caller.fd.get());
  fill_randomly(caller.challenge.random);
  if (!send_frame(caller.fd.get(), caller.challenge)) return;
  if (waiting_.size() == most_waiting) {
    refuse(waiting_.front(), "it has not proven that it belongs to this run, and others wait");
    waiting_.pop_front();
  }
  waiting_.push_back(std::move(caller));
}

void Door::refuse(const Waiting& caller, const std::string& why) {
  // A port scanner that says nothing is not worth a line.
  if (caller.bytes == 0 || told_.size() >= most_told) return;
  const std::string line =
      fmt::format("rehearse: a connection from {} is refused: {}\n", caller.address, why);
  if (!told_.insert(line).second) return;
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

Door::Progress Door::read(Waiting& caller) {
  for (;;) {
    const ssize_t n = recv(caller.fd.get(), caller.answer.data() + caller.bytes,
                           caller.answer.size() - caller.bytes, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) return Progress::ended;
    caller.bytes += static_cast<std::size_t>(n);
    if (caller.bytes == caller.answer.size()) break;
  }
  return judge(caller);
}

Door::Progress Door::judge(Waiting& caller) {
  Answer answer;
  std::memcpy(&answer, caller.answer.data(), caller.bytes);
  if (caller.bytes >= sizeof answer.magic && answer.magic != handshake_magic) {
    refuse(caller, "it is no rank of this build");
    return Progress::ended;
  }
  if (caller.bytes >= offsetof(Answer, caller) && answer.version != control_version) {
    refuse(caller, fmt::format("it speaks version {} of the control plane, this rank version {}: "
                               "start every rank with the same build",
                               answer.version, control_version));
    return Progress::ended;
  }
  if (caller.bytes < sizeof answer) return Progress::none;
  Acceptance acceptance;
  const Caller& c = answer.caller;
  if (!equal(answer.hash, hash_of_answer(secret_, caller.challenge, answer))) {
    acceptance.verdict = Verdict::other_secret;
    refuse(caller, fmt::format("it says that it is rank {}, but it has another secret", c.from));
  } else if (c.purpose != admitted_.purpose || c.to != admitted_.to || c.start != admitted_.start) {
    // A rank of an earlier start, as a rule: its process has not noticed the end yet.
    acceptance.verdict = Verdict::misdirected;
  } else if (c.encrypted != admitted_.encrypted) {
    acceptance.verdict = Verdict::other_encryption;
    refuse(caller, fmt::format("rank {} has run.encrypt = {}, this rank has run.encrypt = {}",
                               c.from, c.encrypted != 0, admitted_.encrypted != 0));
  } else {
    acceptance.hash = hash_of_acceptance(secret_, caller.challenge, answer);
  }
  const bool sent = send_frame(caller.fd.get(), acceptance);
  return sent && acceptance.verdict == Verdict::accepted ? Progress::accepted : Progress::ended;
}

void Door::turn(const std::function<void(const Caller&, ByteStream)>& take) {
  const auto now = Clock::now();
  for (std::size_t i = 0; i < waiting_.size();) {
    Waiting& caller = waiting_[i];
    const Progress progress = read(caller);
    const bool late = progress == Progress::none && now >= caller.until;
    if (late) refuse(caller, "it has not proven in time that it belongs to this run");
    if (progress == Progress::none && !late) {
      ++i;
      continue;
    }
    Waiting gone = std::move(caller);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    if (progress == Progress::accepted) {
      Answer answer;
      std::memcpy(&answer, gone.answer.data(), sizeof answer);
      take(answer.caller,
           ByteStream(std::move(gone.fd), keys_of(secret_, gone.challenge, answer, End::listener)));
    }
  }
  // At most so many in one turn: ranks that are already known are served in between.
  for (std::size_t i = 0; i < most_waiting; ++i) {
    Fd fd = accept_from(listener_.get());
    if (!fd) break;
    greet(std::move(fd));
  }
}

}  // namespace rehearse::runtime
