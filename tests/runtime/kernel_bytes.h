// The number of bytes that this process has sent, counted by the Linux kernel and not by the code
// under test.
#pragma once
// linux/tcp.h, because tcp_info of glibc's netinet/tcp.h lacks the byte counters.
#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace rehearse::runtime {

/// Bytes that this process has passed to TCP, over all its open sockets: those that were sent,
/// without retransmissions, and those that still wait in the send buffers.
inline std::int64_t kernel_bytes_sent() {
  std::int64_t sum = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = readdir(folder.get())) {
    tcp_info info = {};
    socklen_t size = sizeof info;
    if (getsockopt(std::atoi(entry->d_name), IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
      sum += static_cast<std::int64_t>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans) +
             info.tcpi_notsent_bytes;
    }
  }
  return sum;
}

}  // namespace rehearse::runtime
