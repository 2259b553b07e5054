// Child processes: how one begins, and how it ended.
#pragma once
#include <sys/types.h>

namespace rehearse {

/// As fork(), but the child dies with this process. What this process has not written yet is
/// written first, because the child would write it a second time.
pid_t fork_child();
/// Waits for the end of a child. Returns what waitpid() says of it.
int wait_for(pid_t child);
/// The exit status in what waitpid() says; 128 + n after signal n, as shells have it.
int exit_status(int waited);

}  // namespace rehearse
