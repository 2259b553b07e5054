// The secret of a run: 256 bits that its ranks share and nobody else knows. It is never on a
// command line and never in a log.
#pragma once
#include <array>
#include <optional>
#include <span>
#include <string>

#include "engine/base/units.h"

namespace rehearse::runtime {

/// A key of libsodium's crypto_auth. All zeros: the run has none.
using Secret = std::array<unsigned char, 32>;

/// The variable by which launchers and users hand a secret to ranks: 64 hexadecimal digits.
inline constexpr const char* secret_variable = "REHEARSE_SECRET";

void fill_randomly(std::span<unsigned char> bytes);
Secret random_secret();
std::string to_hex(const Secret& secret);
/// Nothing unless the text is 64 hexadecimal digits; a newline may follow.
std::optional<Secret> secret_from(const std::string& hex);

/// A secret for what is derived from `parent` and `label`: whoever knows one derived secret knows
/// neither the parent nor another one.
Secret derived(const Secret& parent, const Secret& label);

/// The secret in a file with mode 600 of this user; waits until the file is there. `make`: makes
/// the file if there is none, whole or not at all. Throws InputError when others may read the file
/// or it holds no secret, BackendError when it cannot be written or does not appear in time.
Secret secret_in(const std::string& path, bool make, Seconds patience);

}  // namespace rehearse::runtime
