"""A progress bar on standard error if that is a terminal; otherwise no output."""

import shutil
import sys
import time


class Progress:
    def __init__(self, quiet=False):
        self._on = not quiet and sys.stderr.isatty()
        self._last, self._stage, self._began = 0.0, "", 0.0

    def stage(self, name):
        """Begins a stage and completes the line of the stage before."""
        self.done()
        self._stage, self._began, self._last = name, time.monotonic(), 0.0
        self.update(0, 1)

    def update(self, at, total):
        now = time.monotonic()
        if not self._on or (now - self._last < 0.1 and at < total):
            return
        self._last = now
        width = max(10, min(40, shutil.get_terminal_size().columns - 45))
        share = min(1.0, at / max(total, 1))
        bar = "█" * int(width * share)
        self._say(f"{bar:·<{width}} {100 * share:3.0f}%")

    def done(self):
        if self._on and self._stage:
            self._say(f"{time.monotonic() - self._began:.1f} s\n")
        self._stage = ""

    def _say(self, text):
        print(f"\r\x1b[K{self._stage:<22} {text}", end="", file=sys.stderr, flush=True)
