"""Runs a function in a child process with namespaces of its own for network, processes, mounts and host name. All that the child makes
(network interfaces, filter rules, nodes, ranks, daemons) belongs to these namespaces, and the kernel removes it with them when the child
ends, also when somebody kills it. So nothing has to be cleaned up, and nothing is left behind.

As root this needs no more. Others need a kernel that lets them make a user namespace, in which they are root."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import traceback

NEW_MOUNT, NEW_UTS, NEW_USER, NEW_PROCESS, NEW_NETWORK = 0x20000, 0x4000000, 0x10000000, 0x20000000, 0x40000000
SET_PARENT_DEATH_SIGNAL = 1
# program -> its Debian package
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "mount": "mount"}
CANNOT = 3  # exit status if the machine lacks something


class Missing(Exception):
    """What this machine lacks."""


def need(program, package):
    if shutil.which(program) is None:
        raise Missing(f"no program {program} (Debian package {package})")


def call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def enter():
    """Leaves for new namespaces. The process itself stays outside the new process namespace, its children are in it."""
    user, group, is_root = os.getuid(), os.getgid(), os.geteuid() == 0
    flags = NEW_MOUNT | NEW_UTS | NEW_PROCESS | NEW_NETWORK
    try:
        call("unshare", flags if is_root else flags | NEW_USER)
        if not is_root:
            for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
    except OSError as error:
        needed = "root" if is_root else "root, or a kernel that allows user namespaces"
        raise Missing(f"no namespaces of its own ({error}): it needs {needed}") from error


def run(command, **options):
    """Runs a command of set-up; raises Missing with its complaint if it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode:
        raise Missing(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def begin():
    """The first steps of the child, which is process 1 of its namespace."""
    call("prctl", SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    os.setsid()  # Ctrl-C reaches the parent alone, which passes it on once
    run(["mount", "--make-rprivate", "/"])
    run(["mount", "-t", "proc", "proc", "/proc"])
    run(["ip", "link", "set", "lo", "up"])


def inside(function):
    """Calls function() in a child with namespaces of its own. Returns its result as exit status: 0 to 255. Raises Missing if this machine
    cannot do that; then nothing has run. SIGINT and SIGTERM are passed on to the child."""
    for program, package in PROGRAMS.items():
        need(program, package)
    told, tell = os.pipe()
    # Namespaces are left for in a process of its own, so that the caller stays where it is.
    outer = os.fork()
    if outer == 0:
        os._exit(between(function, told, tell))
    os.close(tell)
    before = {s: signal.signal(s, lambda number, _: os.kill(outer, number)) for s in (signal.SIGINT, signal.SIGTERM)}
    with os.fdopen(told) as said:
        complaint = said.read()
    status = os.waitstatus_to_exitcode(os.waitpid(outer, 0)[1])
    for number, handler in before.items():
        signal.signal(number, handler)
    if complaint:
        raise Missing(complaint)
    return status if status >= 0 else 128 - status


def between(function, told, tell):
    """The middle process: makes the namespaces and waits for the child in them. `tell`: where complaints go; closed when all is well."""
    os.close(told)
    try:
        call("prctl", SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        enter()
        child = os.fork()
        if child == 0:
            os._exit(innermost(function, tell))
    except (Missing, OSError) as error:
        os.write(tell, str(error).encode())
        return CANNOT
    os.close(tell)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: kill(child, number))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def kill(process, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def innermost(function, tell):
    try:
        begin()
    except (Missing, OSError) as error:
        os.write(tell, str(error).encode())
        return CANNOT
    os.close(tell)
    # The kernel keeps signals without a handler from process 1.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        return function() or 0
    except Missing as missing:
        print(f"this machine cannot build a network: {missing}", file=sys.stderr)
        return CANNOT
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BaseException:  # must not reach the caller's frames, which run in the parent
        traceback.print_exc()
        return 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
