#include "runtime/control/net/handshake.h"

#include <fmt/format.h>
#include <poll.h>
#include <sodium.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

/// The hash of a label, the challenge, and so many bytes of the answer.
Hash hash(const Secret& secret, unsigned char label, const Challenge& challenge,
          const Answer& answer, std::size_t bytes) {
  crypto_auth_hmacsha512256_state state;
  crypto_auth_hmacsha512256_init(&state, secret.data(), secret.size());
  const auto add = [&](const void* data, std::size_t size) {
    crypto_auth_hmacsha512256_update(&state, static_cast<const unsigned char*>(data), size);
  };
  add(&label, sizeof label);
  add(&challenge, sizeof challenge);
  add(&answer, bytes);
  Hash out = {};
  crypto_auth_hmacsha512256_final(&state, out.data());
  return out;
}

/// The verdict of the other end, or nothing when the connection ends without one. Sets the keys of
/// the connection.
std::optional<Verdict> shake_hands(int fd, const Caller& caller, const Secret& secret,
                                   const std::string& place, Deadline deadline, int stop,
                                   std::optional<StreamKeys>& keys) {
  const auto bytes = [](auto& frame) { return std::as_writable_bytes(std::span(&frame, 1)); };
  Challenge challenge;
  if (!recv_all(fd, bytes(challenge), deadline, stop)) return std::nullopt;
  if (challenge.magic != handshake_magic)
    throw BackendError(fmt::format("{} belongs to another program", place));
  Answer answer{.caller = caller};
  fill_randomly(answer.random);
  answer.hash = hash_of_answer(secret, challenge, answer);
  // Also to another version, so that rank 0 can name this one.
  const bool sent = send_all(fd, bytes(answer), deadline);
  if (challenge.version != control_version)
    throw BackendError(fmt::format(
        "{} speaks version {} of the control plane, this rank version {}: start every rank with "
        "the same build",
        place, challenge.version, control_version));
  Acceptance acceptance;
  if (!sent || !recv_all(fd, bytes(acceptance), deadline, stop)) return std::nullopt;
  if (acceptance.verdict == Verdict::accepted &&
      !equal(acceptance.hash, hash_of_acceptance(secret, challenge, answer)))
    return Verdict::other_secret;
  keys = keys_of(secret, challenge, answer, End::caller);
  return acceptance.verdict;
}

}  // namespace

Hash hash_of_answer(const Secret& secret, const Challenge& challenge, const Answer& answer) {
  return hash(secret, 'a', challenge, answer, offsetof(Answer, hash));
}

Hash hash_of_acceptance(const Secret& secret, const Challenge& challenge, const Answer& answer) {
  return hash(secret, 'b', challenge, answer, sizeof answer);
}

std::optional<StreamKeys> keys_of(const Secret& secret, const Challenge& challenge,
                                  const Answer& answer, End end) {
  if (answer.caller.encrypted == 0) return std::nullopt;
  const Secret of_caller = hash(secret, 'c', challenge, answer, sizeof answer);
  const Secret of_listener = hash(secret, 'd', challenge, answer, sizeof answer);
  return end == End::caller ? StreamKeys{.send = of_caller, .receive = of_listener}
                            : StreamKeys{.send = of_listener, .receive = of_caller};
}

bool equal(const Hash& a, const Hash& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

ByteStream connect_as(const Caller& caller, const Secret& secret, const std::string& host,
                      std::uint16_t port, Deadline deadline, int stop) {
  const std::string place = fmt::format("{}:{}", host, port);
  for (int pause_ms = 5;; pause_ms = std::min(2 * pause_ms, 500)) {
    Fd fd = connect_to(host, port, deadline, stop);
    std::optional<StreamKeys> keys;
    const auto verdict = shake_hands(fd.get(), caller, secret, place, deadline, stop, keys);
    if (verdict == Verdict::accepted) return ByteStream(std::move(fd), keys);
    if (verdict == Verdict::other_encryption)
      throw BackendError(fmt::format("{} has run.encrypt = {}, this rank has run.encrypt = {}",
                                     place, caller.encrypted == 0, caller.encrypted != 0));
    if (verdict == Verdict::other_secret)
      throw BackendError(fmt::format(
          "{} has another secret than this rank: give every rank the same {} or run.secret_file",
          place, secret_variable));
    pollfd wait = {stop, POLLIN, 0};
    if (Clock::now() >= deadline || poll(&wait, 1, milliseconds_until(deadline, pause_ms)) > 0)
      throw BackendError(
          fmt::format("{} {}", place,
                      verdict ? "is another rank or in another start" : "ended the connection"));
  }
}

}  // namespace rehearse::runtime
