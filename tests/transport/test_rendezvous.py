# SPDX-License-Identifier: Apache-2.0
"""Finding a server on the same machine by its port, and nobody else's."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from pytriton.runtime.transport import rendezvous
from pytriton.runtime.transport.memory import PORTABLE_SETTING

# Others may run these tests at the same time, and tests beside these start servers with ports. None
# of them has this number or the next, which only are parts of names.
PORT = 100_000 + 2 * os.getpid()
NOBODY = 65_534
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not hasattr(socket, "SO_PEERCRED"),
    reason="only root becomes another user, and only Linux says who a peer is",
)


@pytest.fixture(autouse=True, params=["abstract", "file"])
def kind(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv(PORTABLE_SETTING, "1" if request.param == "file" else "0")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


abstract_only = pytest.mark.parametrize("kind", ["abstract"], indirect=True)
file_only = pytest.mark.parametrize("kind", ["file"], indirect=True)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / f"pytriton-{os.geteuid()}"


@contextlib.contextmanager
def listening(port: int = PORT) -> Iterator[socket.socket]:
    listener = rendezvous.listen(port)
    try:
        yield listener
    finally:
        rendezvous.stop_listening(listener, port)


def as_nobody(code: str) -> subprocess.Popen[bytes]:
    """Code in a process of another user."""
    program = (
        f"import os, socket\nsock = socket.socket(socket.AF_UNIX)\nos.setuid({NOBODY})\n{code}"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def test_both_ends_meet_and_know_each_other() -> None:
    with (
        listening() as listener,
        rendezvous.connect(PORT, 1.0) as ours,
        listener.accept()[0] as theirs,
    ):
        ours.sendall(b"hello")

        assert theirs.recv(5) == b"hello"
        assert rendezvous.is_same_user(theirs)
        if hasattr(socket, "SO_PEERCRED"):
            assert rendezvous.peer_process(theirs) == os.getpid()


def test_nobody_listening_is_said_at_once() -> None:
    with pytest.raises(ConnectionError):
        rendezvous.connect(PORT, 1.0)


def test_nothing_is_left_behind(tmp_path: pathlib.Path) -> None:
    with listening():
        pass

    assert not list(tmp_path.rglob("*.sock"))


def test_socket_of_a_killed_server_is_replaced() -> None:
    rendezvous.listen(PORT).close()
    with listening(), rendezvous.connect(PORT, 1.0) as sock:
        assert sock.getpeername()


def test_socket_of_a_living_server_is_left_alone() -> None:
    with listening() as first:
        with pytest.raises(OSError) as refused:
            rendezvous.listen(PORT)
        first.settimeout(1.0)
        with contextlib.suppress(TimeoutError):  # the second one may have knocked
            first.accept()[0].close()
        with rendezvous.connect(PORT, 1.0) as ours, first.accept()[0] as theirs:
            ours.sendall(b"x")
            answer = theirs.recv(1)

    assert refused.value.errno == errno.EADDRINUSE
    assert answer == b"x"


def test_servers_of_two_ports_are_told_apart() -> None:
    with (
        listening(PORT),
        listening(PORT + 1) as second,
        rendezvous.connect(PORT + 1, 1.0) as ours,
        second.accept()[0] as theirs,
    ):
        ours.sendall(b"x")

        assert theirs.recv(1) == b"x"


def test_full_queue_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_BACKLOG", 0)
    with listening(), rendezvous.connect(PORT, 1.0), pytest.raises(BlockingIOError):
        rendezvous.connect(PORT, 1.0)


@file_only
@pytest.mark.parametrize("use", [rendezvous.listen, lambda port: rendezvous.connect(port, 1.0)])
@pytest.mark.parametrize("trap", ["open to others", "link", "file"])
def test_folder_that_is_not_this_users_alone_is_refused(folder, tmp_path, use, trap) -> None:
    if trap == "open to others":
        folder.mkdir()
        folder.chmod(0o777)
    elif trap == "link":
        private = tmp_path / "private"
        private.mkdir(mode=0o700)
        folder.symlink_to(private)
    else:
        folder.touch()
    with pytest.raises((PermissionError, FileExistsError)):
        use(PORT)


@needs_root
@file_only
@pytest.mark.parametrize("use", [rendezvous.listen, lambda port: rendezvous.connect(port, 1.0)])
def test_folder_of_another_user_is_refused(folder, use) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match="must be a folder that belongs to this user alone"):
        use(PORT)


@file_only
def test_folder_is_closed_to_others(folder) -> None:
    with listening():
        assert folder.stat().st_mode & 0o777 == 0o700


@needs_root
@abstract_only
def test_other_user_is_known_by_the_server() -> None:
    with (
        listening() as listener,
        as_nobody(f"sock.connect({rendezvous._address(PORT)!r}); sock.recv(1)") as process,
    ):
        theirs, _ = listener.accept()
        with theirs:
            assert not rendezvous.is_same_user(theirs)
        process.communicate()


@needs_root
@file_only
def test_other_user_cannot_enter_the_folder(folder) -> None:
    with listening():
        process = as_nobody(
            f"try: sock.connect({rendezvous._address(PORT)!r})\n"
            "except PermissionError: print('refused')"
        )
        assert process.communicate()[0] == b"refused\n"


@needs_root
@abstract_only
def test_server_of_another_user_is_refused_by_who_connects() -> None:
    code = (
        f"sock.bind({rendezvous._address(PORT)!r}); sock.listen(); print(flush=True); "
        "peer, _ = sock.accept(); print(peer.recv(100))"
    )
    with as_nobody(code) as process:
        process.stdout.readline()
        with pytest.raises(PermissionError, match="belongs to another user"):
            rendezvous.connect(PORT, 1.0)
        assert process.communicate()[0] == b"b''\n"  # it was told nothing


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.5", "0.0.0.0"])
def test_own_addresses_are_local(host: str) -> None:
    assert rendezvous.is_local(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_other_addresses_are_not_local(host: str) -> None:
    assert not rendezvous.is_local(host)
