"""Where logins are stored."""

import asyncio
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from opwire.auth.oauth import store as store_module
from opwire.auth.oauth.store import LoginKey, StoredLogin, TokenSet, TokenStore, default_folder
from opwire.errors import CallError, ErrorCode

KEY = LoginKey("https://api.example", "oauth", "cli")
LOGIN = StoredLogin(
    key=KEY,
    tokens=TokenSet("access-s3cret", 100.0, 90.0, "refresh-s3cret", "read"),
    client_id="cli",
    token_url="https://login.example/token",
)
posix = pytest.mark.skipif(sys.platform == "win32", reason="modes of files")


def same(read: StoredLogin | None, login: StoredLogin) -> bool:
    return read is not None and replace(read, saved_at=0.0) == login


def only_file(store: TokenStore, suffix: str = ".json") -> Path:
    (path,) = store.folder.glob(f"*{suffix}")
    return path


async def test_a_login_is_stored_read_replaced_and_deleted(store: TokenStore) -> None:
    assert await store.read(KEY) is None
    await store.write(LOGIN)
    assert same(await store.read(KEY), LOGIN)
    assert same(await TokenStore(store.folder).read(KEY), LOGIN)
    assert await store.read(LoginKey("https://api.example", "oauth", "other")) is None
    await store.delete(KEY)
    await store.delete(KEY)
    assert await store.read(KEY) is None


@posix
async def test_files_and_their_folder_are_for_their_user_alone(store: TokenStore) -> None:
    before = os.umask(0)
    try:
        async with store.lock(KEY):
            await store.write(LOGIN)
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in store.folder.iterdir()} == {0o600}


@posix
async def test_a_folder_that_others_may_read_is_made_private(store: TokenStore) -> None:
    store.folder.mkdir(mode=0o755)
    await store.write(LOGIN)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


@posix
async def test_a_file_that_others_may_read_or_that_is_a_link_is_not_used(store: TokenStore, tmp_path: Path) -> None:
    await store.write(LOGIN)
    path = only_file(store)
    path.chmod(0o644)
    with pytest.raises(CallError, match="accessible to other users") as caught:
        await store.read(KEY)
    assert caught.value.code is ErrorCode.EXECUTION_ERROR
    path.chmod(0o600)
    moved = path.rename(tmp_path / "elsewhere")
    path.symlink_to(moved)
    with pytest.raises(CallError, match="cannot be read"):
        await store.read(KEY)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(CallError, match="is not a file"):
        await asyncio.wait_for(store.read(KEY), 5)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b'{"key": {"resource": "https://evil.example"}}'])
async def test_an_invalid_file_is_ignored(store: TokenStore, content: bytes) -> None:
    await store.write(LOGIN)
    only_file(store).write_bytes(content)
    assert await store.read(KEY) is None


async def test_a_file_under_another_name_is_not_the_login_of_that_name(store: TokenStore) -> None:
    await store.write(LOGIN)
    other = LoginKey("https://evil.example", "oauth", "cli")
    path = only_file(store)
    await store.write(replace(LOGIN, key=other))
    (other_path,) = {*store.folder.glob("*.json")} - {path}
    path.replace(other_path)
    assert await store.read(other) is None


async def test_a_file_is_replaced_atomically(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.write(LOGIN)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CallError, match="No space left"):
        await store.write(LOGIN)
    assert same(await store.read(KEY), LOGIN)
    assert len(list(store.folder.iterdir())) == 1


async def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CallError, match="file/logins cannot be created"):
        await TokenStore(tmp_path / "file" / "logins").write(LOGIN)


@posix
async def test_a_lock_excludes_tasks_and_other_processes(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.flock(file, fcntl.LOCK_EX);"
        "print('locked', flush=True); sys.stdin.readline()"
    )
    async with store.lock(KEY):
        waiting = asyncio.ensure_future(store.lock(KEY).__aenter__())
        await asyncio.sleep(0.05)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 5)
    del waiting  # closes its file
    path = str(only_file(store, ".lock"))
    with subprocess.Popen([sys.executable, "-c", code, path], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"locked\n"
        monkeypatch.setattr(store_module, "LOCK_TIMEOUT", 0.05)
        with pytest.raises(CallError, match="another process"):
            async with store.lock(KEY):
                pass
        process.communicate(b"\n", timeout=10)
    async with store.lock(KEY):
        pass


def test_the_default_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_DATA_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "opwire" / "logins"
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_folder().is_relative_to(Path.home()) or sys.platform == "win32"


# --- keyring ----------------------------------------------------------------------------------------------------------


class Keyring(ModuleType):
    """The three functions of the package `keyring`."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__("keyring")
        self.passwords: dict[tuple[str, str], str] = {}
        self.fails = fails

    def get_password(self, service: str, name: str) -> str | None:
        return self.passwords.get((service, name))

    def set_password(self, service: str, name: str, password: str) -> None:
        if self.fails:
            raise RuntimeError(f"too long: {password}")
        self.passwords[service, name] = password

    def delete_password(self, service: str, name: str) -> None:
        del self.passwords[service, name]  # KeyError, as backends raise PasswordDeleteError


async def test_a_keyring_is_used_if_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keyring = Keyring()
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    store = TokenStore(tmp_path, keyring=True)
    await store.write(LOGIN)
    assert same(await store.read(KEY), LOGIN)
    assert len(keyring.passwords) == 1
    assert not list(tmp_path.iterdir())
    caplog.set_level("DEBUG")
    keyring.fails = True  # the newer login goes to a file, and is not hidden by the older one
    newer = StoredLogin(key=KEY, tokens=TokenSet("newer"), client_id="cli", token_url="https://login.example/token")
    await store.write(newer)
    assert same(await store.read(KEY), newer)
    assert not keyring.passwords
    assert "a file is used" in caplog.text
    assert "newer" not in caplog.text
    keyring.fails = False
    await store.write(LOGIN)
    assert not list(tmp_path.glob("*.json"))
    await store.delete(KEY)
    assert await store.read(KEY) is None


async def test_a_keyring_that_is_missing_is_replaced_by_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)  # as if it were not installed
    store = TokenStore(tmp_path, keyring=True)
    await store.write(LOGIN)
    assert same(await store.read(KEY), LOGIN)
    assert only_file(store).is_file()


def test_a_keyring_that_waits_for_a_dialog_blocks_neither_a_call_nor_the_exit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waiting = threading.Event()

    class Hanging(Keyring):
        def get_password(self, service: str, name: str) -> str | None:
            waiting.wait(60)
            return None

    monkeypatch.setitem(sys.modules, "keyring", Hanging())
    monkeypatch.setattr(store_module, "KEYRING_TIMEOUT", 0.05)

    async def use() -> None:
        store = TokenStore(tmp_path, keyring=True)
        assert await store.read(KEY) is None
        await store.write(LOGIN)
        assert same(await store.read(KEY), LOGIN)

    asyncio.run(asyncio.wait_for(use(), 30))  # returns although the thread still waits
    assert not waiting.is_set()
    waiting.set()


async def test_the_newer_of_two_logins_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keyring = Keyring()
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    desktop, cron = TokenStore(tmp_path, keyring=True), TokenStore(tmp_path, keyring=False)
    await desktop.write(LOGIN)
    newer = replace(LOGIN, tokens=TokenSet("newer"))
    await cron.write(newer)  # a process without a keyring has refreshed it
    assert same(await desktop.read(KEY), newer)
    await desktop.write(LOGIN)
    assert same(await desktop.read(KEY), LOGIN)
    assert await cron.read(KEY) is None
