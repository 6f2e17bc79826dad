# SPDX-License-Identifier: Apache-2.0
"""Finding a server on the same machine by its port."""

from __future__ import annotations

import os
import pathlib
import tempfile

import pytest

from pytriton.transport import rendezvous
from pytriton.transport.memory import PORTABLE_SETTING

PORT = 61_234


@pytest.fixture(autouse=True, params=["abstract", "file"])
def _kind(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv(PORTABLE_SETTING, "1" if request.param == "file" else "0")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_both_ends_meet_and_know_their_user() -> None:
    listener = rendezvous.listen(PORT)
    ours = rendezvous.connect(PORT, 1.0)
    theirs, _ = listener.accept()
    ours.sendall(b"hello")

    assert theirs.recv(5) == b"hello"
    assert rendezvous.is_same_user(theirs)
    for sock in (ours, theirs):
        sock.close()
    rendezvous.stop_listening(listener, PORT)


def test_nobody_listening_is_said_at_once() -> None:
    with pytest.raises(ConnectionError):
        rendezvous.connect(PORT, 1.0)


def test_nothing_is_left_behind(tmp_path: pathlib.Path) -> None:
    rendezvous.stop_listening(rendezvous.listen(PORT), PORT)

    assert not list(tmp_path.rglob("*.sock"))


def test_socket_of_a_killed_server_is_replaced() -> None:
    rendezvous.listen(PORT).close()
    listener = rendezvous.listen(PORT)
    rendezvous.connect(PORT, 1.0).close()
    rendezvous.stop_listening(listener, PORT)


def test_folder_that_others_can_enter_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PORTABLE_SETTING, "1")
    folder = tmp_path / f"pytriton-{os.getuid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="must belong to this user alone"):
        rendezvous.listen(PORT)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.5", "0.0.0.0"])
def test_own_addresses_are_local(host: str) -> None:
    assert rendezvous.is_local(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_other_addresses_are_not_local(host: str) -> None:
    assert not rendezvous.is_local(host)
