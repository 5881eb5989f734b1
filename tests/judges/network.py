"""A network of one's own: for servers that listen on all interfaces, and only their test may reach."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

_ALONE = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def alone(command: Sequence[str]) -> list[str]:
    """The same command, in a network where there is nothing but itself."""
    return [*_ALONE, *command]


def is_alone() -> bool:
    """Whether this process is in such a network: no route leads out of it."""
    here = Path("/proc/self/net")
    interfaces = {line.split()[0] for line in (here / "route").read_text().splitlines()[1:]}
    if (here / "ipv6_route").exists():
        interfaces |= {line.split()[-1] for line in (here / "ipv6_route").read_text().splitlines()}
    return interfaces <= {"lo"}


def refusal() -> str | None:
    """Why this machine does not give out networks; None if it does."""
    try:
        subprocess.run(alone(["true"]), check=True, capture_output=True, timeout=10)
    except subprocess.CalledProcessError as error:
        return f"a network of one's own is needed, and cannot be had: {error.stderr.decode().strip()}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a network of one's own is needed, and cannot be had: {error}"
    return None
