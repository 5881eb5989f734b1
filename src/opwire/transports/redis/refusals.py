"""What Redis refuses, in words that say what to do about it."""

import re
from typing import TypeGuard

from hiredis import ReplyError

from opwire.errors import CallError, ErrorCode

_MEANINGS = {
    "NOAUTH": "wants a password: put it into the URL, as in redis://user:password@host",
    "WRONGPASS": "does not know this user with this password: look at the URL",
    "NOPERM": "does not permit this user what opwire needs: look at its ACL",
    "DENIED": "is in protected mode, which lets in clients of its own machine alone: give it a password",
    "LOADING": "is still loading its data: try again in a moment",
    "BUSY": "is busy with a script that does not end: see SCRIPT KILL",
    "OOM": "has no memory left: raise its maxmemory, or let it evict keys",
    "MISCONF": "refuses to write, since it cannot save its data: see its log",
    "READONLY": "is a read-only replica, perhaps a primary that was demoted: connect to its primary",
    "SENTINEL": "is a Sentinel, which holds no data: connect to the primary that it watches, as told by "
    "`redis-cli -p <port> SENTINEL GET-MASTER-ADDR-BY-NAME <name>`",
    "MASTERDOWN": "is a replica that has lost its primary: connect to the primary",
    "MOVED": "is part of a cluster, and opwire needs a single server",
    "CLUSTERDOWN": "is part of a cluster, and opwire needs a single server",
    "CROSSSLOT": "is part of a cluster, and opwire needs a single server",
    "NOPROTO": "does not speak RESP3: opwire needs Redis 6.2 or newer",
}


_SCRIPT = re.compile(r"ERR Error running script \(call to \w+\): (?:@user_script: ?\d+: )*-?")


def is_refusal(reply: object, *codes: str) -> TypeGuard[ReplyError]:
    """Whether a reply is an error, and one of these where some are named."""
    return isinstance(reply, ReplyError) and (not codes or _split(reply)[0] in codes)


def refusal(name: str, reply: ReplyError) -> CallError:
    """The error for what a server refused.

    A reply that is not foreseen is repeated, unless it is about an unknown command: Redis then repeats the arguments
    itself, and the password may be among them.
    """
    code, text = _split(reply)
    if code in _MEANINGS:
        meaning = f"{_MEANINGS[code]} ({code})"
    elif "unknown command" in text.lower():
        meaning = "does not know a command: opwire needs Redis 6.2 or newer, with no commands renamed"
    else:
        meaning = f"refused: {text:.200}"
    return CallError(ErrorCode.UNAVAILABLE, f"{name} {meaning}")


def _split(reply: ReplyError) -> tuple[str, str]:
    """The first word, which says what it is, and all of it. Redis 6 hides both where a script was refused something."""
    text = _SCRIPT.sub("", str(reply))
    return text.partition(" ")[0], text
