# SPDX-License-Identifier: Apache-2.0
"""The files of a policy: changes are noticed, and keys are written in one step."""

from __future__ import annotations

import asyncio
import logging
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytriton.base.errors import UnavailableError
from pytriton.serving.server.access import files as module
from pytriton.serving.server.access.files import (
    PolicyWatch,
    changed_keys,
    read_keys,
    read_policy,
)
from pytriton.serving.server.access.in_force import PolicyInForce, read_first
from pytriton.serving.server.access.keys import make_key
from pytriton.serving.server.access.policy import PolicyError
from tests.access_policies import PolicyFolder
from tests.e2e.waiting import DEADLINE_S

TEXT = '[principals.a]\napis = ["inference"]\n'
OTHER = TEXT + '[principals.b]\napis = ["health"]\n'


@pytest.fixture
def folder(tmp_path):
    return PolicyFolder(tmp_path, TEXT)


@pytest.fixture
def watch(folder):
    watch = PolicyWatch(folder.path, read_policy(folder.path))
    watch.told = []
    watch.add(watch.told.append)
    return watch


def test_change_of_the_policy_is_told(folder, watch):
    watch.look()
    folder.write(OTHER)
    watch.look()
    watch.look()

    assert [list(policy.principals) for policy in watch.told] == [["a", "b"]]


def test_change_of_the_keys_is_told(folder, watch):
    key = folder.key("a")
    watch.look()
    folder.revoke(key)
    watch.look()

    assert [len(policy.keys) for policy in watch.told] == [1, 1]
    assert next(iter(watch.policy.keys.values())).revoked_s is not None


def test_file_that_says_the_same_is_not_told(folder, watch):
    folder.write(TEXT + "# a comment\n")
    watch.look()

    assert not watch.told


@pytest.mark.parametrize("what", ["x =", "", "# nothing but this\n", "keys"])
def test_file_that_is_broken_changes_nothing_and_is_logged_once(folder, watch, caplog, what):
    with caplog.at_level(logging.ERROR):
        if what != "keys":
            folder.write(what)
        else:
            folder.keys_file.write_text("{")
        watch.look()
        watch.look()

    assert not watch.told
    assert len(caplog.records) == watch.failure_count == 1
    assert "The former policy stays in force" in caplog.text


def test_file_that_is_mended_counts_again(folder, watch):
    folder.write("x =")
    watch.look()
    folder.write(OTHER)
    watch.look()

    assert not watch.failure
    assert list(watch.policy.principals) == ["a", "b"]


def test_file_that_goes_changes_nothing(folder, watch):
    folder.path.unlink()
    watch.look()

    assert "cannot be read: No such file" in watch.failure
    assert list(watch.policy.principals) == ["a"]


def test_new_file_that_the_policy_names_may_come_later(folder, watch):
    folder.write(
        TEXT + '[[oidc]]\nissuer = "x"\naudience = "y"\njwks_file = "jwks.json"\n'
        'principals = { "*" = "a" }\n'
    )
    watch.look()
    failure = watch.failure
    (folder.path.parent / "jwks.json").write_text('{"keys": []}')
    watch.look()

    assert "jwks.json cannot be read" in failure
    assert not watch.failure
    assert watch.policy.issuers[0].jwks == '{"keys": []}'


def test_key_of_an_unknown_principal_is_warned_of(folder, caplog):
    folder.key("gone")
    with caplog.at_level(logging.WARNING):
        read_policy(folder.path)

    assert "is of the principal 'gone', which" in caplog.text


def test_key_of_an_unknown_principal_is_not_warned_of_while_files_are_missing(folder, caplog):
    folder.key("b")
    folder.write(
        TEXT + '[[oidc]]\nissuer = "x"\naudience = "y"\nprincipals = { a = "a" }\n'
        'jwks_file = "missing.json"\n'
    )

    with pytest.raises(PolicyError, match=r"missing\.json cannot be read"):
        read_policy(folder.path)

    assert not caplog.records


def test_file_of_keys_that_cannot_be_looked_up_is_an_error(folder):
    folder.write(f'keys_file = "{"x" * 300}"\n' + TEXT)

    with pytest.raises(PolicyError, match="cannot be read: File name too long"):
        read_policy(folder.path)


def test_set_of_keys_that_is_nested_too_deeply_is_an_error(folder):
    (folder.path.parent / "keys.jwks").write_text("[" * 100_000)
    folder.write(
        TEXT + '[[oidc]]\nissuer = "x"\naudience = "y"\nprincipals = { a = "a" }\n'
        'jwks_file = "keys.jwks"\n'
    )

    with pytest.raises(PolicyError, match=r"keys\.jwks is no JSON"):
        read_policy(folder.path)


def test_change_after_one_that_could_not_be_used_is_noticed(folder, monkeypatch):
    monkeypatch.setattr("pytriton.serving.server.access.files.LOOK_S", 0.001)
    watch = PolicyWatch(folder.path, read_policy(folder.path))
    told = asyncio.Event()

    def fail_once(policy):
        if "b" in policy.principals:
            folder.write(TEXT)
            raise RuntimeError("no use")
        told.set()

    async def run():
        watch.add(fail_once)
        watch.start(asyncio.get_running_loop())
        folder.write(OTHER)
        await asyncio.wait_for(told.wait(), 30)
        watch.stop()

    asyncio.run(run())

    assert list(watch.policy.principals) == ["a"]


def test_server_does_not_start_with_a_broken_policy(tmp_path):
    path = tmp_path / "auth.toml"
    path.write_text("x =")

    with pytest.raises(UnavailableError, match=r"auth\.toml is no TOML"):
        read_first(str(path))
    path.write_text("")
    with pytest.raises(UnavailableError, match=r"auth\.toml has no policy"):
        read_first(str(path))
    with pytest.raises(UnavailableError, match=r"none\.toml cannot be read: No such file"):
        read_first(str(tmp_path / "none.toml"))


def test_change_reaches_decisions(folder):
    in_force = PolicyInForce(str(folder.path), "own")
    told = []
    in_force.add(told.append)
    folder.write(OTHER)
    in_force.watch.look()
    in_force.count_elsewhere({"missing": 2})

    assert told == [in_force.policy]
    assert in_force.refusals == {"missing": 2}


# Writing keys


def test_change_is_noticed_while_all_threads_of_others_hang(folder, watch, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0)
    key = folder.key("a")
    go_on = threading.Event()

    async def run():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        hanging = loop.run_in_executor(None, go_on.wait, DEADLINE_S)
        watch.start(loop)
        try:
            for count in (1, 2):
                deadline_s = loop.time() + DEADLINE_S
                while len(watch.told) < count:
                    assert loop.time() < deadline_s
                    await asyncio.sleep(0)
                folder.revoke(key)
        finally:
            watch.stop()
            go_on.set()
            assert await hanging

    asyncio.run(run())

    assert [each.revoked_s is None for policy in watch.told for each in policy.keys.values()] == [
        True,
        False,
    ]


def test_keys_are_written_for_their_owner_only(folder):
    with changed_keys(folder.keys_file) as keys:
        _, record = make_key("a", 0)
        keys[record.id] = record

    assert stat.S_IMODE(folder.keys_file.stat().st_mode) == 0o600
    assert read_keys(folder.keys_file) == {record.id: record}
    assert not [path for path in folder.path.parent.iterdir() if path.name.startswith(".")]


def test_keys_of_several_commands_are_all_kept(folder):
    def add(count):
        for _ in range(count):
            with changed_keys(folder.keys_file) as keys:
                _, record = make_key("a", 0)
                keys[record.id] = record

    threads = [threading.Thread(target=add, args=(10,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(read_keys(folder.keys_file)) == 40


def test_keys_that_cannot_be_read_are_not_replaced(folder):
    folder.keys_file.write_text("{")

    with pytest.raises(PolicyError), changed_keys(folder.keys_file):
        pass

    assert folder.keys_file.read_text() == "{"
