// What the kernel says that this process has sent, so that a test of bytes does not ask the code
// under test.
#pragma once
// The kernel's own header: glibc's lacks the byte counters.
#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace rehearse::runtime {

/// Bytes that this process has handed to TCP, by the kernel's count, over all its open sockets:
/// those that have left and those that wait in the kernel for the receiver to read.
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
