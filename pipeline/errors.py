"""The one exception for mistakes of the user: shown as a line, never as a traceback."""


class UserError(Exception):
    """Something the user can put right; the message says what, where and how. Exit code 2."""
