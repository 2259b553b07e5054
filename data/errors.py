"""The exception for errors in the user's input; it ends the program with exit code 2."""


class InputError(Exception):
    """A bad file, flag or value; the message names it and says what is valid."""
