// One round of a secure sum as a program: ranks 0, 1, ... are clients, the last rank is the server.
// All messages of a client and an answer are transfers of their own, so clients contend for the
// server's links. Masks and levels take time; all other work takes none.
//
//   client i   work | to_server | from_server   work.r reads answer r - 1 and makes message r
//   server     from.i ... | work | to.i ...     work.r reads all messages r and makes the answers
#pragma once
#include "engine/base/units.h"
#include "engine/program/program.h"
#include "engine/secure/group.h"

namespace rehearse::methods {

/// `mask_rate`: bytes of masks that a rank makes and adds in a second.
program::Program secure_round(const secure::Group& group, const secure::Leaving& leaving,
                              BytesPerSecond mask_rate = BytesPerSecond(secure::mask_rate));

}  // namespace rehearse::methods
