"""Somebody between the ranks of a run, who reads and changes what they send to each other. A library that is loaded into the ranks before
all others sends each of their connections to this process, and says first which port it was meant for."""

import os
import pathlib
import socket
import struct
import subprocess
import threading

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

int connect(int fd, const struct sockaddr* to, socklen_t size) {
  int (*next)(int, const struct sockaddr*, socklen_t) = dlsym(RTLD_NEXT, "connect");
  int type = 0;
  socklen_t type_size = sizeof type;
  getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size);
  if (to->sa_family != AF_INET || type != SOCK_STREAM) return next(fd, to, size);
  struct sockaddr_in proxy = *(const struct sockaddr_in*)to;
  proxy.sin_port = htons(atoi(getenv("PROXY_PORT")));
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  const int failed = next(fd, (struct sockaddr*)&proxy, sizeof proxy);
  if (!failed) send(fd, &((const struct sockaddr_in*)to)->sin_port, 2, MSG_NOSIGNAL);
  fcntl(fd, F_SETFL, flags);
  return failed;
}
"""
ANSWER = 96  # bytes of the caller's part of the handshake; its purpose is at byte 8 (runtime/control/handshake.h)
DATA = 2


class Proxy:
    def __init__(self, folder, change_at=None):
        """`change_at`: changes this byte of what the first data connection carries after the handshake."""
        self.seen = []  # what each data connection carried from the caller to the listener
        self.changed = False
        self._change_at = change_at
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._library = pathlib.Path(folder) / "proxy.so"
        source = self._library.with_suffix(".c")
        source.write_text(LIBRARY)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self._library, source, "-ldl"], check=True)
        threading.Thread(target=self._accept, daemon=True).start()

    def environment(self):
        return os.environ | {"LD_PRELOAD": str(self._library), "PROXY_PORT": str(self._listener.getsockname()[1])}

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(caller,), daemon=True).start()

    def _join(self, caller):
        with caller:
            try:
                [port] = struct.unpack(">H", caller.recv(2, socket.MSG_WAITALL))
                listener = socket.create_connection(("127.0.0.1", port))
            except (OSError, struct.error):  # nobody listens there yet, or the caller is gone
                return
            with listener:
                back = threading.Thread(target=self._pass_on, args=(listener, caller, lambda data: data), daemon=True)
                back.start()
                self._pass_on(caller, listener, self._look())
                back.join()

    def _pass_on(self, source, target, look):
        try:
            while data := source.recv(1 << 16):
                target.sendall(look(data))
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _look(self):
        """What is done to the bytes of one connection as they pass."""
        begin, carried = bytearray(), None

        def look(data):
            nonlocal carried
            if carried is None:
                begin.extend(data)
                if len(begin) < ANSWER:
                    return data
                carried = bytearray()
                if struct.unpack_from("<H", begin, 8) == (DATA,):
                    self.seen.append(carried)
                return data  # the caller waits for the other end now
            before = len(carried)
            carried.extend(data)
            with self._lock:
                if self._change_at is None or self.changed or carried is not next(iter(self.seen), None):
                    return data
                at = self._change_at - before
                if not 0 <= at < len(data):
                    return data
                self.changed = True
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

        return look
