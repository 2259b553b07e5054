#include "runtime/control/net/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "engine/base/errors.h"
#include "runtime/control/net/socket.h"

namespace rehearse::runtime {
namespace {

constexpr std::size_t digits = 2 * sizeof(Secret);
constexpr auto look_every = std::chrono::milliseconds(50);

/// Writes the file beside its place and links it there, which fails when another process was first.
void make_file(const std::string& path) {
  const std::string beside = fmt::format("{}.{}.{}.part", path, host_name(), getpid());
  const std::string text = to_hex(random_secret()) + "\n";
  const Fd file(open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool written =
      file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(file.get()) == 0;
  const int error =
      written && (link(beside.c_str(), path.c_str()) == 0 || errno == EEXIST) ? 0 : errno;
  unlink(beside.c_str());
  if (error != 0)
    throw BackendError(
        fmt::format("{}: a secret cannot be written here: {}", path, error_text(error)));
}

/// Nothing when there is no such file.
std::optional<Secret> read_file(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && (errno == ENOENT || errno == ESTALE)) return std::nullopt;
  struct stat about = {};
  if (!file || fstat(file.get(), &about) != 0)
    throw InputError(fmt::format("{}: cannot be read: {}", path, error_text(errno)));
  if (about.st_uid != geteuid() || (about.st_mode & 0077) != 0)
    throw InputError(fmt::format(
        "{}: a secret must belong to the user of the run, and nobody else may read it: remove the "
        "file, or use chown and chmod 600",
        path));
  std::string text(digits + 2, '\0');
  const ssize_t n = read(file.get(), text.data(), text.size());
  text.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
  const auto secret = secret_from(text);
  if (!secret)
    throw InputError(fmt::format(
        "{}: is no secret, which is {} hexadecimal digits: remove the file, and the next run makes "
        "another one",
        path, digits));
  return secret;
}

}  // namespace

void fill_randomly(std::span<unsigned char> bytes) {
  static const int ready = sodium_init();
  if (ready < 0) throw BackendError("libsodium finds no source of random numbers");
  randombytes_buf(bytes.data(), bytes.size());
}

Secret random_secret() {
  Secret secret = {};
  fill_randomly(secret);
  return secret;
}

std::string to_hex(const Secret& secret) {
  std::string hex(digits + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), secret.data(), secret.size());
  hex.resize(digits);
  return hex;
}

std::optional<Secret> secret_from(const std::string& hex) {
  const bool line = hex.size() == digits + 1 && hex.back() == '\n';
  Secret secret = {};
  std::size_t bytes = 0;
  if ((hex.size() != digits && !line) ||
      sodium_hex2bin(secret.data(), secret.size(), hex.data(), digits, nullptr, &bytes, nullptr) !=
          0 ||
      bytes != secret.size())
    return std::nullopt;
  return secret;
}

Secret derived(const Secret& parent, const Secret& label) {
  Secret secret = {};
  crypto_auth(secret.data(), label.data(), label.size(), parent.data());
  return secret;
}

Secret secret_in(const std::string& path, bool make, Seconds patience) {
  const Deadline deadline = Clock::now() + to_duration(patience);
  for (;;) {
    if (const auto secret = read_file(path)) return *secret;
    if (make) {
      make_file(path);
    } else if (Clock::now() > deadline) {
      throw BackendError(
          fmt::format("{}: rank 0 has made no secret here within {}: the file must be on a file "
                      "system that all hosts share",
                      path, to_text(patience)));
    } else {
      std::this_thread::sleep_for(look_every);
    }
  }
}

}  // namespace rehearse::runtime
