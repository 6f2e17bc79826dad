# SPDX-License-Identifier: Apache-2.0
"""`pytriton key` makes, lists and revokes keys, whose secrets nobody can read again."""

from __future__ import annotations

import json
import stat

import pytest

from pytriton.__main__ import main
from pytriton.serving.server.access.files import read_keys
from pytriton.serving.server.access.keys import has_secret, split_key

POLICY = '[principals.team-a]\napis = ["inference"]\n\n[principals.admin]\napis = ["*"]\n'


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "auth.toml"
    path.write_text(POLICY)
    return path


def key(policy, capsys, *arguments):
    """Run the command; returns its exit code, and what it prints for others and for people."""
    code = main(["key", *arguments, "--auth-config", str(policy)])
    printed = capsys.readouterr()
    return code, printed.out.strip(), printed.err.strip()


def test_key_is_printed_once_and_stored_as_a_hash(policy, capsys):
    code, made, said = key(policy, capsys, "create", "--principal", "team-a")
    key_id, secret = split_key(made)
    file = policy.with_name("auth.keys.json")
    (record,) = read_keys(file).values()

    assert code == 0
    assert said == f"The key {key_id} of team-a is valid until it is revoked. It is shown only now."
    assert has_secret(record, secret)
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_key_expires_if_that_is_wanted(policy, capsys):
    _, text, _ = key(
        policy,
        capsys,
        "create",
        "--principal",
        "admin",
        "--expires",
        "90d",
        "--note",
        "x",
        "--json",
    )
    document = json.loads(text)
    (record,) = read_keys(policy.with_name("auth.keys.json")).values()

    assert record.expires_s - record.created_s == 90 * 86400
    assert document["note"] == record.note == "x"
    assert document["key"].startswith(f"ptk_{record.id}_")


def test_list_has_no_secrets(policy, capsys):
    made = [key(policy, capsys, "create", "--principal", "team-a")[1] for _ in range(2)]
    key(policy, capsys, "revoke", made[0])

    _, shown, _ = key(policy, capsys, "list")
    _, as_json, _ = key(policy, capsys, "list", "--json", "--principal", "team-a")
    _, of_admin, _ = key(policy, capsys, "list", "--json", "--principal", "admin")

    assert [line.split()[2] for line in shown.splitlines()] == ["STATE", "revoked", "valid"]
    assert [each["state"] for each in json.loads(as_json)] == ["revoked", "valid"]
    assert json.loads(of_admin) == []
    assert not [each for each in made if split_key(each)[1] in shown + as_json]


@pytest.mark.parametrize("what", ["key", "id"])
def test_key_is_revoked_by_its_id_or_itself(policy, capsys, what):
    made = key(policy, capsys, "create", "--principal", "team-a")[1]
    key_id = split_key(made)[0]

    code, said, _ = key(policy, capsys, "revoke", made if what == "key" else key_id)

    assert (code, said) == (0, f"The key {key_id} of team-a is revoked.")
    assert read_keys(policy.with_name("auth.keys.json"))[key_id].revoked_s is not None


def test_keys_are_where_the_policy_says(policy, capsys):
    policy.write_text('keys_file = "other.json"\n' + POLICY)

    key(policy, capsys, "create", "--principal", "team-a")

    assert len(read_keys(policy.with_name("other.json"))) == 1


@pytest.mark.parametrize(
    "arguments,problem",
    [
        (("create", "--principal", "team-b"), "has no principal team-b; it has team-a, admin."),
        (("revoke", "000000000000"), "has no key 000000000000."),
    ],
)
def test_what_is_not_there_is_said(policy, capsys, arguments, problem):
    code, _, said = key(policy, capsys, *arguments)

    assert code == 1
    assert problem in said


@pytest.mark.parametrize("text,problem", [("x =", "is no TOML"), (None, "cannot be read")])
def test_policy_that_is_wrong_is_said(policy, capsys, text, problem):
    if text is None:
        policy.unlink()
    else:
        policy.write_text(text)

    code, _, said = key(policy, capsys, "list")

    assert code == 1
    assert problem in said


@pytest.mark.parametrize("expires", ["90", "0d", "d", "-1d", "1y"])
def test_duration_that_is_wrong_is_refused(policy, capsys, expires):
    arguments = ["key", "create", "--principal", "admin", f"--expires={expires}"]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--auth-config", str(policy)])

    assert end.value.code == 2
    assert "expected a duration such as 90d" in capsys.readouterr().err


def test_policy_may_be_in_the_environment(policy, capsys, monkeypatch):
    monkeypatch.setenv("PYTRITON_AUTH_CONFIG", str(policy))

    assert main(["key", "list"]) == 0
    assert capsys.readouterr().out.startswith("ID")
