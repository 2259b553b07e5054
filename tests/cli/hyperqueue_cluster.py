"""A real HyperQueue on this machine: a server and workers, each a process of its own that can be killed. They are those of the PyPI package
hyperqueue, which lacks HyperQueue's own program `hq`: this file stands for it, with the commands and the JSON that `rehearse sweep --on hq`
uses (HyperQueue's docs/cli/output-mode.md), in front of the real server.

As a program: `server FOLDER`, `worker FOLDER OWN_FOLDER CORES`, or the command line of hq with HQ_SERVER_DIR."""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from cli_test_case import PATIENCE
from stand_in_slurm import numbers


class HyperQueue:
    """Starts a server in `folder`. `env` is the environment in which `hq` is in PATH and finds it."""

    def __init__(self, folder):
        self.folder, self.workers = folder, []
        folder.mkdir()
        (folder / "bin").mkdir()
        program = folder / "bin/hq"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
        program.chmod(0o755)
        path = os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        self.env = os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}", "HQ_SERVER_DIR": str(folder / "server"), "PYTHONPATH": path}
        self.server = self._start("server", folder / "server")
        self._until(lambda: "ready" in self._said("server"))

    def _said(self, name):
        path = self.folder / f"{name}.out"
        return path.read_text() if path.exists() else ""

    def _start(self, name, *words):
        with (self.folder / f"{name}.out").open("w") as out:
            command = [sys.executable, __file__, name.split("-")[0], *map(str, words)]
            return subprocess.Popen(command, env=self.env, stdout=out, stderr=out, process_group=0)

    def _until(self, holds):
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                raise RuntimeError("\n".join(path.read_text()[-800:] for path in self.folder.glob("*.out")))
            time.sleep(0.05)

    def add_worker(self, cores=1):
        name = f"worker-{len(self.workers)}"
        self.workers.append(self._start(name, self.folder / "server", self.folder / name, cores))
        self._until(lambda: "ready" in self._said(name))
        return self.workers[-1]

    def submitted(self):
        """The words of each `hq submit`."""
        return [json.loads(line) for line in (self.folder / "server/submitted").read_text().splitlines()]

    def stop(self):
        for process in [*self.workers, self.server]:
            process.kill()
            process.wait(PATIENCE)


def local(folder):
    """The access file of a server, for processes of this machine alone."""
    path = pathlib.Path(folder) / "hq-current/access.json"
    access = json.loads(path.read_text())
    for side in ("client", "worker"):
        access[side]["host"] = "127.0.0.1"
    return json.dumps(access)


def serve(folder):
    from hyperqueue.ffi.cluster import Cluster

    cluster = Cluster(folder)
    path = pathlib.Path(folder) / "hq-current/access.json"
    path.write_text(local(folder))
    print("ready", flush=True)
    signal.pause()
    cluster.stop()


def work(folder, own, cores):
    """The package starts workers only beside a server. So there is one, and the worker is given the other server's address."""
    from hyperqueue.ffi.cluster import Cluster

    cluster = Cluster(own)
    (pathlib.Path(own) / "hq-current/access.json").write_text(local(folder))
    cluster.add_worker(int(cores))
    print("ready", flush=True)
    signal.pause()


def submit(folder, words):
    from hyperqueue.ffi.client import ClientConnection
    from hyperqueue.ffi.protocol import JobDescription, ResourceRequest, TaskDescription

    with open(f"{folder}/submitted", "a") as out:
        out.write(json.dumps(words) + "\n")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("name", "array", "cpus", "cwd", "stdout", "stderr", "crash-limit"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(words)
    assert given.stdout == given.stderr == "none", words
    # The package cannot cancel. So tasks look whether they are to begin, and say whom to kill.
    begin = f'cd {folder}; [ -e cancelled-$HQ_JOB_ID ] && exit 1; echo $$ > pid-$HQ_JOB_ID-$HQ_TASK_ID; cd "$OLDPWD"; exec "$@"'
    tasks = [
        TaskDescription(
            id=number,
            args=["/bin/sh", "-c", begin, "sh", *given.command],
            cwd=given.cwd,
            stdout=None,
            stderr=None,
            stdin=None,
            env=dict(one.split("=", 1) for one in given.env),
            dependencies=[],
            task_dir=False,
            priority=0,
            resource_request=[ResourceRequest(cpus=int(given.cpus))],
            crash_limit=int(given.crash_limit or 5),
        )
        for number in numbers(given.array)
    ]
    return {"id": ClientConnection(folder).submit_job(JobDescription(name=given.name, tasks=tasks, max_fails=None))}


class Seen(Exception):
    pass


def info(folder, job):
    """As much as the package tells: it does not say which of the tasks that have not ended run."""
    from hyperqueue.ffi.client import ClientConnection

    counts = {}

    def look(jobs):
        counts.update(jobs)
        raise Seen

    with contextlib.suppress(Seen):
        ClientConnection(folder).wait_for_jobs((job,), look)
    if job not in counts:
        return []
    found = counts[job]
    stats = {"running": 0, "finished": found["finished"], "failed": found["failed"], "canceled": 0}
    stats["waiting"] = 0 if found["completed"] else found["total"] - found["finished"] - found["failed"]
    return [{"info": {"id": job, "name": "rehearse-sweep", "task_count": found["total"], "task_stats": stats}}]


def cancel(folder, job):
    (folder / f"cancelled-{job}").touch()
    for path in folder.glob(f"pid-{job}-*"):
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int(path.read_text()), signal.SIGKILL)


def hq(words):
    folder = os.environ["HQ_SERVER_DIR"]
    assert words.pop(0) == "--output-mode=json"
    if words[:1] == ["submit"]:
        return submit(folder, words[1:])
    if words[:2] == ["job", "info"]:
        return info(folder, int(words[2]))
    if words[:2] == ["job", "cancel"]:
        return cancel(pathlib.Path(folder), int(words[2]))
    assert words == ["server", "info"], words
    from hyperqueue.ffi.client import ClientConnection

    ClientConnection(folder)
    return {"server_dir": folder}


def main():
    command, *words = sys.argv[1:]
    if command in {"server", "worker"}:
        (serve if command == "server" else work)(*words)
        return 0
    try:
        said, status = hq([command, *words]), 0
    except RuntimeError as error:
        said, status = {"error": str(error)}, 1
    if said is not None:
        print(json.dumps(said, indent=2))
    return status


if __name__ == "__main__":
    sys.exit(main())
