"""Where logins are stored: the system's keyring if the package `keyring` is installed and works, else files.

A file has the mode 0600, in a folder of mode 0700, and is replaced atomically. A file or folder that belongs to another
user is not used. Locks are files beside them: two processes never use the same refresh token at the same time, since
servers that rotate refresh tokens revoke a login when one is used twice.

Imports no HTTP client: the command line looks here whether there is a login at all.
"""

import asyncio
import contextlib
import importlib
import os
import secrets
import stat
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode
from opwire.runtime.text import get_logger
from opwire.runtime.workers import WorkerPool

logger = get_logger("opwire.auth.oauth")

_SERVICE = "opwire"
_MAX_FILE_BYTES = 1024 * 1024
KEYRING_TIMEOUT = 10.0
"""Seconds: a keyring may wait for a dialog that is not visible."""

LOCK_TIMEOUT = 60.0
"""Seconds to wait for the process that refreshes a login."""

_LOCK_POLL_SECONDS = 0.02


class LoginKey(Struct, frozen=True):
    """What a login is for. `resource` is the API's origin, or the URL of an MCP server: its token goes nowhere else."""

    resource: str
    name: str = ""  # of the security scheme
    client_id: str = ""

    @property
    def digest(self) -> str:
        """The name of its file."""
        return sha256(msgspec.json.encode(self)).hexdigest()[:32]


class TokenSet(Struct, frozen=True, omit_defaults=True):
    """The tokens of one response. The repr omits them."""

    access_token: str
    expires_at: float | None = None  # seconds since 1970; None: until the API rejects it
    refresh_at: float | None = None  # a little earlier
    refresh_token: str | None = None
    scope: str = ""

    def __repr__(self) -> str:
        return "<TokenSet>"


class StoredLogin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A login: its tokens, and the client and endpoints that refresh and revoke them. The repr omits the secrets."""

    key: LoginKey
    tokens: TokenSet
    client_id: str
    client_secret: str | None = None
    auth: Literal["basic", "body"] = "basic"
    token_url: str
    refresh_url: str = ""  # the token URL by default
    revocation_url: str = ""
    token_resource: str = ""  # RFC 8707
    saved_at: float = 0.0  # seconds since 1970
    wanted: tuple[str, ...] = ()  # scopes that the server demanded since: the next login asks for them
    extra: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<StoredLogin {self.key.resource}>"


def resource_of(url: str) -> str:
    """Return the URL of an MCP server as a resource identifier (RFC 8707): without user, query and fragment."""
    parts = urlsplit(url)
    netloc = parts.netloc.rpartition("@")[2].lower()
    return urlunsplit((parts.scheme.lower(), netloc, parts.path.rstrip("/"), "", ""))


def default_folder() -> Path:
    """Return the user's folder of logins: in XDG_DATA_HOME, on Windows in LOCALAPPDATA."""
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_DATA_HOME"
    folder_text = os.environ.get(variable)
    return (Path(folder_text) if folder_text else Path.home() / ".local" / "share") / "opwire" / "logins"


class TokenStore:
    """Logins of this user, in a keyring or in a folder.

    TokenStore()  # the user's own
    TokenStore("/run/secrets/logins", keyring=False)
    """

    def __init__(self, folder: Path | str | None = None, *, keyring: bool | None = None) -> None:
        """`keyring` is by default whether no folder is given."""
        self.folder = default_folder() if folder is None else Path(folder)
        """Where files are stored, if the keyring does not have the login."""
        self._uses_keyring = folder is None if keyring is None else keyring
        self._threads = WorkerPool(2)  # not those of the event loop, which a hanging keyring would keep from ending

    def __repr__(self) -> str:
        return f"<TokenStore {self.folder}>"

    def may_have(self, key: LoginKey) -> bool:
        """Return whether there ever was a login of a key, without asking the keyring: its lock file is kept."""
        return (self.folder / f"{key.digest}.lock").exists()

    async def read(self, key: LoginKey) -> StoredLogin | None:
        """Return the login of a key, or None.

        Raises:
            CallError: EXECUTION_ERROR, the file is readable by others, or cannot be read.
        """
        text = await self._keyring("get_password", _SERVICE, key.digest)
        stored_logins: list[StoredLogin] = []
        for data in (await asyncio.to_thread(self._read_file, key), text.encode() if text else None):
            try:
                stored_logins += [] if data is None else [msgspec.json.decode(data, type=StoredLogin)]
            except (msgspec.MsgspecError, RecursionError):
                logger.warning("%s: the stored login is invalid and ignored", self._path(key))
        # There are two if a process could not use the keyring; the older refresh token must not be used again.
        return max(
            (login for login in stored_logins if login.key == key), key=lambda login: login.saved_at, default=None
        )

    async def write(self, login: StoredLogin) -> None:
        """Store a login, replacing that of its key.

        Raises:
            CallError: EXECUTION_ERROR, the file cannot be written.
        """
        data = msgspec.json.encode(replace(login, saved_at=time.time()))
        digest = login.key.digest
        if await self._keyring("set_password", _SERVICE, digest, data.decode()) is not None:
            await asyncio.to_thread(self._path(login.key).unlink, missing_ok=True)
            return
        await asyncio.to_thread(self._write_file, login.key, data)
        # A login that the keyring did not take, for its size say, must not be hidden by an older one.
        await self._keyring("delete_password", _SERVICE, digest)

    async def delete(self, key: LoginKey) -> None:
        """Delete the login of a key, if there is one."""
        await self._keyring("delete_password", _SERVICE, key.digest)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._path(key).unlink, missing_ok=True)

    @asynccontextmanager
    async def lock(self, key: LoginKey) -> AsyncGenerator[None]:
        """Hold the lock of a key, which excludes tasks and processes of this user.

        Raises:
            CallError: TIMEOUT, another process has held it for a minute.
        """
        file = await asyncio.to_thread(self._open_lock, key)
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT
            while not _try_lock(file):
                if time.monotonic() > deadline:
                    message = f"another process has been using the login for {key.resource} for {LOCK_TIMEOUT:g} s"
                    raise CallError(ErrorCode.TIMEOUT, message)
                await asyncio.sleep(_LOCK_POLL_SECONDS)
            yield
        finally:
            file.close()  # unlocks it

    # --- files --------------------------------------------------------------------------------------------------------

    def _path(self, key: LoginKey) -> Path:
        return self.folder / f"{key.digest}.json"

    def _own_folder(self) -> Path:
        """Create the folder; make an existing one private."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if sys.platform != "win32":
                status = self.folder.stat()
                if status.st_uid != os.geteuid():
                    raise CallError(ErrorCode.EXECUTION_ERROR, f"{self.folder} belongs to another user")
                if status.st_mode & 0o077:
                    self.folder.chmod(0o700)
        except OSError as error:
            raise _unusable(self.folder, "cannot be created", error) from error
        return self.folder

    def _read_file(self, key: LoginKey) -> bytes | None:
        path = self._path(key)
        try:
            file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(path, "cannot be read", error) from error
        with os.fdopen(file, "rb") as stream:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise CallError(ErrorCode.EXECUTION_ERROR, f"{path} is not a file")
            if sys.platform != "win32" and (status.st_mode & 0o077 or status.st_uid != os.geteuid()):
                message = f"{path} is accessible to other users and not used: delete it, and sign in again"
                raise CallError(ErrorCode.EXECUTION_ERROR, message)
            return stream.read(_MAX_FILE_BYTES)

    def _write_file(self, key: LoginKey, data: bytes) -> None:
        path = self._own_folder() / f"{key.digest}.json"
        temporary_file = path.with_suffix(f".{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(temporary_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())  # a rotated refresh token replaces the only valid one
            temporary_file.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary_file.unlink()
            raise _unusable(path, "cannot be written", error) from error

    def _open_lock(self, key: LoginKey) -> IO[bytes]:
        path = self._own_folder() / f"{key.digest}.lock"
        try:
            return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600), "r+b")
        except OSError as error:
            raise _unusable(path, "cannot be opened", error) from error

    # --- keyring ------------------------------------------------------------------------------------------------------

    async def _keyring(self, function: str, *arguments: str) -> Any:
        """Call a function of `keyring`; return None if that is not installed or fails, True instead of None."""
        if not self._uses_keyring:
            return None

        def call() -> Any:
            result = getattr(importlib.import_module("keyring"), function)(*arguments)
            return True if result is None and function != "get_password" else result

        try:
            async with asyncio.timeout(KEYRING_TIMEOUT):
                return await self._threads.run(call, "the keyring")
        except ImportError:
            self._uses_keyring = False
        except TimeoutError:
            self._uses_keyring = False
            logger.warning("the keyring did not respond within %g s, files are used", KEYRING_TIMEOUT)
        except Exception as error:  # backends raise anything; their texts may contain the secret
            logger.debug("the keyring failed (%s), a file is used", type(error).__name__)
        return None


def _unusable(path: Path, problem: str, error: OSError) -> CallError:
    return CallError(ErrorCode.EXECUTION_ERROR, f"{path} {problem}: {error.strerror}")


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
