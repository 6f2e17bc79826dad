# SPDX-License-Identifier: Apache-2.0
"""The words of operators and models about sandboxes, and who may loosen what."""

from __future__ import annotations

import msgspec
import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.sandbox import (
    Grants,
    SandboxChoice,
    SandboxMachine,
    SandboxPolicy,
    SandboxSettings,
    allowed_variables,
    missing_parts,
    parse_choice,
    parse_grants,
    read_sandbox_settings,
    settle,
)

COMPLETE = SandboxMachine(
    system="Linux",
    processor="x86_64",
    landlock=7,
    has_filters=True,
    has_mounts=True,
    groups={"pids": "/p", "memory": "/m"},
)


def settings(sandbox="on", *allowed):
    return read_sandbox_settings(sandbox, allowed)


@pytest.mark.parametrize(
    "text, choice",
    [
        ("off", SandboxChoice("off")),
        ("ON", SandboxChoice("on")),
        (" strict , network", SandboxChoice("strict", Grants(has_network=True))),
        ("on,unix,control", SandboxChoice("on", Grants(has_unix=True, has_control=True))),
        (
            "on,read=/a,read=/b/,write=/c,device=/dev/x,env=TOKEN",
            SandboxChoice(
                "on",
                Grants(
                    readable=("/a", "/b"),
                    writable=("/c",),
                    devices=("/dev/x",),
                    variables=("TOKEN",),
                ),
            ),
        ),
        (
            "on,memory=4GiB,processes=64,files=9,scratch=5",
            SandboxChoice(
                "on", Grants(memory_bytes=4 << 30, processes=64, files=9, scratch_bytes=5)
            ),
        ),
    ],
)
def test_choice_is_read(text, choice):
    assert parse_choice(text) == choice


@pytest.mark.parametrize(
    "text",
    ["", "yes", "off,network", "on,", "on,net", "on,network=1", "on,read=", "on,read=relative",
     "on,read=/a/../b", "on,memory=0", "on,memory=4GB", "on,memory=-1", "on,processes=x",
     "on,env=a=b", "on,files=0", "on,write=/a\0"],
)  # fmt: skip
def test_wrong_choice_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="Expected"):
        parse_choice(text)


def test_sandbox_of_the_operator_is_that_of_a_model_without_a_parameter():
    assert settle(settings("off"), None) is None
    assert settle(settings("on,network"), None) == Grants(has_network=True)
    assert settle(settings("strict"), None) == Grants()


def test_model_may_have_a_sandbox_of_its_own_where_the_operator_has_none():
    assert settle(settings("off"), "on,read=/data") == Grants(readable=("/data",))
    assert settle(settings("off"), "off") is None


@pytest.mark.parametrize(
    "asked",
    ["off", "on,network", "on,unix", "on,control", "on,read=/data", "on,write=/data",
     "on,env=A_KEY", "on,device=/dev/x", "on,processes=5000", "on,files=5000", "on,scratch=2GiB"],
)  # fmt: skip
def test_model_cannot_loosen_the_sandbox_of_the_operator(asked):
    option = asked.removeprefix("on,")

    with pytest.raises(InvalidArgumentError, match="does not allow; --sandbox-allow="):
        settle(settings("on"), asked)
    assert settle(settings("on", option), asked) != Grants()


def test_model_may_loosen_what_the_operator_allows_and_no_more():
    allowed = settings("on,read=/common", "network,read=/data", "memory=8GiB")

    given = settle(allowed, "on,network,read=/data/images")

    assert given == Grants(has_network=True, readable=("/common", "/data/images"))
    with pytest.raises(InvalidArgumentError, match="'read=/database'"):
        settle(allowed, "on,read=/database")
    with pytest.raises(InvalidArgumentError, match="'write=/data'"):
        settle(allowed, "on,write=/data")


def test_model_may_read_what_the_operator_lets_it_write():
    assert settle(settings("on", "write=/out"), "on,read=/out") == Grants(readable=("/out",))


def test_model_may_lower_every_limit_of_the_operator():
    given = settle(settings("on,memory=4GiB"), "on,memory=1GiB,processes=8,files=16,scratch=1MiB")

    assert given == Grants(memory_bytes=1 << 30, processes=8, files=16, scratch_bytes=1 << 20)


def test_model_may_raise_a_limit_to_what_the_operator_allows():
    allowed = settings("on,memory=4GiB", "memory=8GiB")

    assert settle(allowed, "on,memory=8GiB").memory_bytes == 8 << 30
    assert settle(allowed, "on").memory_bytes == 4 << 30
    with pytest.raises(InvalidArgumentError, match="memory="):
        settle(allowed, "on,memory=9GiB")


def test_strict_is_not_for_models():
    with pytest.raises(InvalidArgumentError, match="strict is for --sandbox"):
        settle(settings("on"), "strict")


def test_sandbox_gets_a_list_of_variables_and_what_is_granted():
    usual = ("PATH", "LANG", "LC_ALL", "TZ", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HOME")
    secret = (
        "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "TRITON_ACCESS_TOKEN", "PYTRITON_PAGE_TOKEN",
        "MYSQL_PWD", "DATABASE_URL", "AZURE_STORAGE_CONNECTION_STRING", "HTTPS_PROXY", "no_such",
        "PYTRITON_TRITON_CONFIG_HTTP_RESTRICTED_API", "HF_TOKEN", "NVIDIA_API_KEY", "VLLM_API_KEY",
    )  # fmt: skip
    variables = dict.fromkeys((*usual, *secret, "PARTNER_URL"), "x")

    kept = allowed_variables(variables, granted=["PARTNER_URL"])

    assert kept == dict.fromkeys((*usual, "PARTNER_URL"), "x")


def test_complete_machine_lacks_nothing():
    assert missing_parts(COMPLETE) == []


@pytest.mark.parametrize(
    "lack, name, is_essential",
    [
        ({"landlock": 0}, "Landlock", True),
        ({"landlock": 2}, "truncation", True),
        ({"has_filters": False}, "seccomp", True),
        ({"has_mounts": False, "mounts_problem": "denied"}, "a mount namespace (denied)", False),
        ({"groups": {"memory": "/m"}}, "a control group for processes", False),
        ({"groups": {"memory": "/m"}, "is_root": True}, "a control group for processes", True),
        ({"groups": {"pids": "/p"}}, "a control group for memory", False),
        ({"system": "Darwin"}, "a sandbox on Darwin", True),
    ],
)
def test_missing_part_is_named(lack, name, is_essential):
    (part,) = missing_parts(msgspec.structs.replace(COMPLETE, **lack))

    assert part.name.startswith(name)
    assert part.is_essential is is_essential
    assert str(part) == f"{part.name}: {part.consequence}"


def test_records_survive_the_way_between_processes():
    policy = SandboxPolicy(readable=("/a",), memory_bytes=5, groups={"pids": "/g"})
    encoded = msgspec.msgpack.encode(policy)

    assert msgspec.msgpack.decode(encoded, type=SandboxPolicy) == policy


def test_settings_are_off_by_default():
    assert settle(SandboxSettings(), None) is None
    assert not SandboxSettings().is_strict
    assert parse_grants([]) == Grants()
