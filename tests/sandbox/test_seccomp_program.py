# SPDX-License-Identifier: Apache-2.0
"""The program of seccomp, run by an interpreter of its instructions, without being applied."""

from __future__ import annotations

import errno
import pathlib
import re
import struct

import pytest

from pytriton.runtime.sandbox import seccomp
from pytriton.runtime.sandbox.seccomp import (
    ALLOW,
    ERROR,
    JUMP_BITS,
    JUMP_EQUAL,
    JUMP_FROM,
    KILL,
    LOAD,
    RETURN,
    SYSTEM_CALLS,
    make_program,
    rules,
)

PID = 1000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
DENIED, ACCESS, UNKNOWN = (ERROR | each for each in (errno.EPERM, errno.EACCES, errno.ENOSYS))
NOTHING = ERROR  # the call succeeds and does nothing
HEADERS = pathlib.Path("/usr/include")
MAX_INSTRUCTIONS = 4096  # of the kernel


def run(program, number, arguments, architecture):
    """Interpret a program as the kernel does."""
    words = [each & 0xFFFFFFFFFFFFFFFF for each in (*arguments, *[0] * 6)][:6]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *words)
    accumulator = at = 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == RETURN:
            return value
        if code == LOAD:
            (accumulator,) = struct.unpack_from("<I", data, value)
            continue
        holds = {
            JUMP_EQUAL: accumulator == value,
            JUMP_FROM: accumulator >= value,
            JUMP_BITS: bool(accumulator & value),
        }[code]
        at += if_true if holds else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def judge(request):
    """Judges a call by its name and arguments, for each processor."""
    processor = request.param

    def judge(name, *arguments, **settings):
        number = SYSTEM_CALLS[name][["x86_64", "aarch64"].index(processor)]
        if number is None:
            pytest.skip(f"{processor} has no {name}")
        program = make_program(rules(PID, **settings), processor)
        return run(program, number, arguments, ARCHITECTURES[processor])

    return judge


def has_argument_rule(name):
    return any(rule.checks for rule in rules(PID) if rule.name == name)


@pytest.mark.parametrize("name", [each for each in SYSTEM_CALLS if not has_argument_rule(each)])
def test_call_without_checks_is_never_made(judge, name):
    if name == "truncate":
        assert judge(name, has_truncate_right=False) == DENIED
        assert judge(name) == ALLOW
    else:
        assert judge(name, 1, 2, 3) in (DENIED, UNKNOWN, NOTHING)


@pytest.mark.parametrize("name", ["io_uring_setup", "clone3"])
def test_call_that_hides_others_looks_as_on_an_older_kernel(judge, name):
    assert judge(name) == UNKNOWN


@pytest.mark.parametrize(
    "arguments, settings, verdict",
    [
        ((1,), {}, ACCESS),
        ((2, 1, 0), {}, ACCESS),
        ((16, 3, 0), {}, ACCESS),
        ((1,), {"has_unix": True}, ALLOW),
        ((2, 1, 6), {"has_unix": True}, ACCESS),
        ((2, 1, 6), {"has_network": True}, ALLOW),
        ((10, 2, 17), {"has_network": True}, ALLOW),
        ((1,), {"has_network": True}, ACCESS),
        ((16, 3, 0), {"has_network": True}, ALLOW),
        ((16, 3, 16), {"has_network": True}, ACCESS),
        ((17, 3, 0), {"has_network": True}, ACCESS),
        ((40, 1, 0), {"has_network": True, "has_unix": True}, ACCESS),
    ],
)
def test_families_of_sockets_need_their_grants(judge, arguments, settings, verdict):
    assert judge("socket", *arguments, **settings) == verdict


def test_pairs_of_sockets_need_no_grant(judge):
    assert judge("socketpair", 1, 1) == ALLOW
    assert judge("socketpair", 1, 5 | 0x80000 | 0x800) == ALLOW
    assert judge("socketpair", 2, 1) == ACCESS


@pytest.mark.parametrize("kind", [2, 3, 2 | 0x80000, 2 | 0x800])
def test_pairs_that_could_send_to_sockets_with_names_are_denied(judge, kind):
    assert judge("socketpair", 1, kind) == ACCESS


@pytest.mark.parametrize("has_signal_scope", [True, False])
def test_leases_on_files_are_denied(judge, has_signal_scope):
    verdicts = [
        judge("fcntl", 3, command, 1, has_signal_scope=has_signal_scope)
        for command in (1024, 1040, 1, 6)
    ]

    assert verdicts == [DENIED, DENIED, ALLOW, ALLOW]


@pytest.mark.parametrize("name", ["kill", "tkill", "tgkill", "rt_sigqueueinfo"])
def test_signals_stay_with_the_worker_where_landlock_does_not_keep_them(judge, name):
    verdicts = [judge(name, pid, 9) for pid in (0, PID, PID + 1, -PID, 1, PID - 1, -1, -PID - 1)]

    assert verdicts == [ALLOW] * 4 + [DENIED] * 4


def test_signals_are_left_to_landlock_where_it_keeps_them(judge):
    assert judge("kill", 1, 9, has_signal_scope=True) == ALLOW
    assert judge("pidfd_send_signal", 5, 9, has_signal_scope=True) == ALLOW
    assert judge("kill", -1, 9, has_signal_scope=True) == DENIED
    assert judge("pidfd_send_signal", 5, 9) == DENIED


def test_new_namespaces_are_denied_and_threads_and_processes_are_not(judge):
    thread, process = 0x3D0F00, 0x1200011

    assert [judge("clone", thread), judge("clone", process)] == [ALLOW, ALLOW]
    assert {judge("clone", process | 1 << bit) for bit in (17, 25, 26, 27, 28, 29, 30)} == {DENIED}


def test_terminals_get_no_input_and_other_requests_are_made(judge):
    assert [judge("ioctl", 0, each) for each in (0x5412, 0x541C, 0x541D)] == [DENIED] * 3
    assert judge("ioctl", 0, 0x5413) == ALLOW
    # The kernel looks at the lower half of the number only, and so does the program.
    assert judge("ioctl", 0, 0xFFFFFFFF00005412) == DENIED


def test_limits_and_schedules_of_other_processes_are_not_changed(judge):
    assert [judge("prlimit64", pid, 7) for pid in (0, PID, 1, PID + 1)] == [
        ALLOW, ALLOW, DENIED, DENIED,
    ]  # fmt: skip
    assert [judge("sched_setaffinity", pid) for pid in (0, PID, PID + 7, 1)] == [
        ALLOW, ALLOW, ALLOW, DENIED,
    ]  # fmt: skip
    assert [judge("setpriority", *each) for each in ((0, 0), (0, PID), (0, 1), (1, 0), (2, 0))] == [
        ALLOW, ALLOW, DENIED, DENIED, DENIED,
    ]  # fmt: skip


def test_owner_of_signals_of_a_file_is_not_changed(judge):
    assert judge("fcntl", 3, 8, 1) == DENIED
    assert judge("fcntl", 3, 2, 1) == ALLOW
    assert judge("fcntl", 3, 8, 1, has_signal_scope=True) == ALLOW


@pytest.mark.parametrize("name", ["fchmod", "fchownat", "utimensat", "setxattr"])
def test_modes_and_times_are_the_business_of_mounts(judge, name):
    assert judge(name, has_mounts=True) == ALLOW
    assert judge(name) == NOTHING


@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_usual_calls_are_allowed(processor):
    listed = {numbers[seccomp._COLUMNS[processor]] for numbers in SYSTEM_CALLS.values()}
    program = make_program(rules(PID), processor)
    others = set(range(462)) - listed

    assert {run(program, each, (), ARCHITECTURES[processor]) for each in others} == {ALLOW}
    assert len(program) < MAX_INSTRUCTIONS
    assert all(0 <= jump < 256 for each in program for jump in (each.if_true, each.if_false))


def test_calls_of_other_interfaces_are_not_made():
    program = make_program(rules(PID), "x86_64")

    assert run(program, 11, (), 0x40000003) == KILL  # 32 bits, with other numbers
    assert run(program, 0x40000000 | 1, (), ARCHITECTURES["x86_64"]) == UNKNOWN


@pytest.mark.parametrize(
    "column, file, prefix",
    [
        (0, "x86_64-linux-gnu/asm/unistd_64.h", "__NR_"),
        (1, "asm-generic/unistd.h", "__NR(?:3264)?_"),
    ],
)
def test_numbers_are_those_of_the_kernel(column, file, prefix):
    path = HEADERS / file
    if not path.exists():
        pytest.skip(f"there is no {path}")
    found = re.findall(rf"#define {prefix}(\w+)\s+(\d+)", path.read_text())
    known = {name: int(number) for name, number in found}

    shared = SYSTEM_CALLS.keys() & known.keys()
    assert len(shared) > 90
    assert {each: SYSTEM_CALLS[each][column] for each in shared} == {
        each: known[each] for each in shared
    }
