"""The reason that a library's exception gives, cut to one line for an error of ours."""


def one_line(error: BaseException) -> str:
    """The first line of an exception's message, or its kind where it has none."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)
