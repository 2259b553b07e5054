"""The errors of the package. Their texts are those that the command prints."""


class InputError(ValueError):
    """A job, a file that it names, or an argument is wrong, or the job cannot run. The text names file, key, value and what would fit."""


class ProgramError(ValueError):
    """A compiled program breaks a rule of the program language: a race, a deadlock, a layout mismatch."""


class BackendError(RuntimeError):
    """The machine failed: a file cannot be written, a simulation crashed."""


for _error in (InputError, ProgramError, BackendError):
    _error.__module__ = "rehearse"
