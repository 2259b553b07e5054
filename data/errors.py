"""The one exception that means "what the user gave us is wrong": it ends the program with exit code 2."""


class InputError(Exception):
    """A bad file, flag or value; the message names it and says what would be right."""
