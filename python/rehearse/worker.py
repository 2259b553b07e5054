"""Each question to librehearse.so is answered by a process of its own, a new interpreter without anything else in it.

The process of the user is never forked: the linear algebra of numpy hangs in threads beside a fork. So other threads, crashes and Ctrl-C do
no harm: who asks only waits, and ends the process when it is interrupted.
"""

import ctypes
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from rehearse import _core, errors

START = "import sys; sys.path.insert(0, sys.argv[1]); from rehearse import worker; worker.answer()"
ANSWERS = {
    "check": _core.check,
    "simulate": _core.simulate,
    "compare": _core.compare,
    "goodput": _core.goodput,
    "plan": _core.plan,
}


def ask(name: str, source: _core.Source | str, *arguments: Any, progress: Callable[[str], Any] | None = None) -> Any:
    """What the function of _core returns. `progress`: of sweeps, is called here."""
    said = [source.name, source.toml, source.set] if isinstance(source, _core.Source) else source
    request = json.dumps([name, said, *arguments])
    command = [sys.executable, "-I", "-S", "-c", START, str(pathlib.Path(__file__).parents[1])]
    with tempfile.TemporaryFile() as complaints:
        # In a session of its own, so that a terminal's Ctrl-C comes here alone.
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, encoding="utf-8", start_new_session=True
        )
        try:
            assert worker.stdin is not None and worker.stdout is not None
            try:
                worker.stdin.write(request)
                worker.stdin.close()
            except BrokenPipeError:
                pass  # it has ended, which is said below
            for line in worker.stdout:
                what, *values = json.loads(line)
                if what == "answer":
                    return values[0]
                if what == "progress":
                    if progress is not None:
                        progress(values[0])
                else:
                    raise getattr(errors, what)(values[0])
            status = worker.wait()
            complaints.seek(0)
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            last = complaints.read().decode(errors="replace").strip()[-2000:]
            raise errors.BackendError(f"the process of the study {how} and gave no answer" + (f". It said:\n{last}" if last else ""))
        finally:
            worker.kill()
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    pipe.close()


def choose(state: str) -> str:
    """What the optimiser of a search asks for. It runs in an interpreter that has the user's packages, which this process lacks."""
    script = pathlib.Path(_core.data_dir()) / "search/suggest.py"
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as file:
        file.write(state)
        file.flush()
        command, patience = [sys.executable, script, file.name], _core.patience_with_programs()
        try:
            ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=patience)
        except subprocess.TimeoutExpired:
            raise errors.BackendError(
                f"the optimiser had not ended after {patience:g} s and was stopped; the environment variable REHEARSE_PROGRAM_TIMEOUT sets "
                "another limit, as in 1h"
            ) from None
    if ran.returncode != 0:
        raise errors.BackendError(f"the optimiser ended with status {ran.returncode}. It said:\n{ran.stderr.strip()[-2000:]}")
    return ran.stdout


def answer() -> None:
    """In the process: reads a question, and writes lines of JSON."""
    kill_when_the_parent_ends = 1
    ctypes.CDLL(None).prctl(kill_when_the_parent_ends, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def tell(*words: Any) -> None:
        print(json.dumps(words), flush=True)

    def progress(text: str) -> None:
        tell("progress", text)

    name, source, *arguments = json.load(sys.stdin)
    try:
        if name == "sweep_file":
            settings, flags = arguments
            said = _core.sweep_file(source, settings, _core.SweepFlags(**flags), choose, progress)
        elif name == "sweep_job":
            text, flags = arguments
            said = _core.sweep_job(_core.Source(*source), text, _core.SweepFlags(**flags), choose, progress)
        else:
            said = ANSWERS[name](_core.Source(*source), *arguments)
        tell("answer", said)
    except (errors.InputError, errors.ProgramError, errors.BackendError) as error:
        tell(type(error).__name__, str(error))
