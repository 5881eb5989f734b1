r"""Show text of a peer on a terminal, in a log or in a message: bounded, with control characters escaped.

logger = get_logger("opwire.registry")
logger.warning("%s is ignored", name_from_a_peer)  # a name with "\n" or "\x1b" forges no line
"""

import logging
import re
import sys
import traceback
from collections.abc import Mapping, Sequence

MAX_LOG_TEXT = 64 * 1024
"""Characters of an argument or a traceback in a log: a megabyte of control characters takes 0.6 s to escape."""

# Control characters (C0 without tab and line feed, DEL, C1), line and paragraph separators, characters that change the
# direction of text or are invisible, and halves of surrogate pairs, which cannot be encoded at all. Not the joiners
# and variation selectors (U+200C, U+200D, U+FE0F), which emoji, Persian and Indic scripts need.
# `re` compiles and caches this pattern with its first use: 1.6 ms of `import opwire` otherwise.
_CONTROL_CHARACTERS = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def harmless(text: str) -> str:
    r"""Return text with control characters escaped, so that a terminal displays `\x1b[2J` instead of obeying it."""
    if text.isprintable():  # as most is: a tenth of the time
        return text
    return re.sub(_CONTROL_CHARACTERS, lambda match: match[0].encode("unicode_escape").decode(), text)


def shorten(text: str, longest: int) -> str:
    """Return the text, or its first `longest` characters and an ellipsis."""
    return text if len(text) <= longest else f"{text[:longest]}…"


def one_line(text: str, longest: int = 200) -> str:
    """Return text of a peer for one line of a log or a message: shortened, with control characters escaped."""
    return harmless(shorten(text, longest)).replace("\n", "\\n").replace("\t", "\\t")


def harmless_json(text: str) -> str:
    """Return the same JSON with control characters escaped; it decodes to the same value."""

    def escape(match: re.Match[str]) -> str:
        return re.sub("....", r"\\u\g<0>", match[0].encode("utf-16-be", "surrogatepass").hex())

    return re.sub(_CONTROL_CHARACTERS, escape, text)


def get_logger(name: str, *filters: logging.Filter) -> "EscapingLogger":
    """Return the logger of a package; every log line of opwire goes through one of these.

    Its filters see only the lines of this object, and `logging.getLogger(name)` stays as the program configured it.
    """
    return EscapingLogger(logging.getLogger(name), filters)


class EscapingLogger(logging.LoggerAdapter[logging.Logger]):
    """Log what peers sent so that it forges no line, whatever handlers and formatters the program installs.

    Peers are quoted in arguments and in tracebacks, which formatters take from `exc_text` if it is set. Their control
    characters are escaped, and lines after the first are indented, so that none looks like a record of its own.
    """

    def __init__(self, logger: logging.Logger, filters: Sequence[logging.Filter] = ()) -> None:
        super().__init__(logger)
        self._filters = filters

    def log(
        self,
        level: int,
        msg: object,
        *args: object,
        exc_info: object = None,
        stack_info: bool = False,
        stacklevel: int = 1,
        extra: Mapping[str, object] | None = None,
        **_: object,
    ) -> None:
        """Make the record, escape it, and pass it to the logger."""
        if not self.isEnabledFor(level):
            return
        error = exc_info if isinstance(exc_info, BaseException) else sys.exception() if exc_info else None
        caught = None if error is None else (type(error), error, error.__traceback__)
        path, line, function, stack = self.logger.findCaller(stack_info, stacklevel + 1)
        arguments = tuple(_indented(str(arg)) if isinstance(arg, str | BaseException) else arg for arg in args)
        record = self.logger.makeRecord(
            self.logger.name, level, path, line, msg, arguments, caught, function, extra, stack
        )
        if (traceback_text := traceback_of(record)) is not None:
            record.exc_text = _indented(traceback_text)
        if all(line_filter.filter(record) for line_filter in self._filters):
            self.logger.handle(record)


def traceback_of(record: logging.LogRecord) -> str | None:
    """Return the traceback of a record; a long one loses its beginning."""
    if not record.exc_info or record.exc_info[1] is None:
        return None
    text = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    return text if len(text) <= MAX_LOG_TEXT else f"…{text[-MAX_LOG_TEXT:]}"


def _indented(text: str) -> str:
    return harmless(shorten(text, MAX_LOG_TEXT)).replace("\n", "\n    ")
