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
# Bytes of the handshake in each direction (runtime/control/net/handshake.h), and the headers after it:
# runtime/control/net/frame.h for control, runtime/communication/data_frame.h for data.
FROM_CALLER, FROM_LISTENER = 96, 40 + 36
CONTROL, DATA = 1, 2
HEADERS = {CONTROL: struct.Struct("<IB"), DATA: struct.Struct("<IIQ")}


def preload(folder, source):
    """A library of this C code that LD_PRELOAD can name."""
    library = pathlib.Path(folder) / "preload.so"
    text = library.with_suffix(".c")
    text.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, text, "-ldl"], check=True)
    return str(library)


class Harm:
    """What is done once to one direction of the first connection for `purpose`, from rank `caller` if it is stated. `back`: to what the
    listener sends. `change_at`: that byte after the handshake is changed. `insert`: these bytes come between two messages, which must
    be in the clear: after so many bytes of that connection, or, if it is one for control, of any one for data. The latter carries no
    more until then, so that no run ends before."""

    def __init__(self, purpose=DATA, caller=None, back=False, change_at=None, insert=b"", after=0):
        self.purpose, self.caller, self.back, self.change_at, self.insert = purpose, caller, back, change_at, insert
        self.after = after
        self.due, self.finished = threading.Event(), threading.Event()
        self.victim = None  # the connection that it is done to

    @property
    def done(self):
        return self.finished.is_set()

    def hold(self, connection):
        """Before a connection carries more."""
        if not self.insert or connection.purpose != DATA or len(connection.carried) <= self.after:
            return
        if self.purpose == CONTROL:
            self.due.set()
            self.finished.wait()
        elif connection is self.victim:
            self.due.set()

    def strikes(self, connection, back):
        fits = connection.purpose == self.purpose and self.caller in (None, connection.caller) and back == self.back
        if fits and self.victim is None:
            self.victim = connection
        return fits and not self.done and connection is self.victim


class Direction:
    """One direction of a connection: where it is between two messages."""

    def __init__(self, handshake):
        self.handshake, self.begin = handshake, bytearray()
        self.passed = 0  # bytes after the handshake
        self.header, self.left = bytearray(), 0  # of the message that is under way

    def split(self, data):
        """Cuts off what belongs to the handshake."""
        n = min(len(data), self.handshake - len(self.begin))
        self.begin += data[:n]
        return data[:n], data[n:]

    def between_messages(self):
        return not self.header and self.left == 0

    def message(self, data, layout):
        """How much of `data` is of the message that is under way."""
        if self.left == 0:
            n = min(len(data), layout.size - len(self.header))
            self.header += data[:n]
            if len(self.header) == layout.size:
                fields = layout.unpack(self.header)
                self.left = fields[0] if layout is HEADERS[CONTROL] else fields[2]
                self.header.clear()
            return n
        n = min(len(data), self.left)
        self.left -= n
        return n


class Connection:
    purpose = caller = None

    def __init__(self):
        self.carried = bytearray()  # from the caller, after the handshake


class Proxy:
    def __init__(self, folder, harm=None):
        self.seen = []  # what each data connection carried from the caller to the listener
        self.harm = harm
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._library = preload(folder, LIBRARY)
        threading.Thread(target=self._accept, daemon=True).start()

    def environment(self):
        return os.environ | {"LD_PRELOAD": self._library, "PROXY_PORT": str(self._listener.getsockname()[1])}

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
                connection = Connection()
                back = threading.Thread(target=self._pass_on, args=(listener, caller, connection, True), daemon=True)
                back.start()
                self._pass_on(caller, listener, connection, False)
                back.join()

    def _pass_on(self, source, target, connection, back):
        direction = Direction(FROM_LISTENER if back else FROM_CALLER)
        try:
            while data := source.recv(1 << 16):
                target.sendall(self._look(data, connection, direction, back))
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _look(self, data, connection, direction, back):
        """What becomes of the bytes of a connection as they pass."""
        first, rest = direction.split(data)
        if first and not back and len(direction.begin) == FROM_CALLER:
            connection.purpose, _, connection.caller = struct.unpack_from("<HHI", direction.begin, 8)
            if connection.purpose == DATA:
                self.seen.append(connection.carried)
        if not rest:
            return data
        if not back:
            connection.carried += rest
        if self.harm is not None:
            self.harm.hold(connection)
        with self._lock:
            if self.harm is None or not self.harm.strikes(connection, back):
                return data
            return first + (self._inserted(rest, direction) if self.harm.insert else self._changed(rest, direction))

    def _changed(self, data, direction):
        at = self.harm.change_at - direction.passed
        direction.passed += len(data)
        if not 0 <= at < len(data):
            return data
        self.harm.finished.set()
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    def _inserted(self, data, direction):
        out = bytearray()
        while data:
            if direction.between_messages() and self.harm.due.is_set() and not self.harm.done:
                out += self.harm.insert
                self.harm.finished.set()
            n = direction.message(data, HEADERS[self.harm.purpose])
            out += data[:n]
            data = data[n:]
        return bytes(out)
