# SPDX-License-Identifier: Apache-2.0
"""Programs in C with a server in their process, and the same programs with the real library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.c_library.building import MODELS, missing, run
from tests.c_library.recording import COMPARED, real_print, recorded

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(missing()), reason=missing())]

NO_BACKENDS = "/no/backends"


@pytest.mark.parametrize("name", COMPARED)
def test_program_prints_what_it_prints_with_the_real_library(name):
    done = run(name, MODELS, NO_BACKENDS, *COMPARED[name])

    assert done.stdout == recorded(name)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.part("peers")
@pytest.mark.parametrize("name", COMPARED)
def test_recording_is_what_the_real_library_does(name):
    assert real_print(name) == recorded(name)


@pytest.fixture(scope="module")
def endings() -> dict[str, list[str]]:
    """What the program printed on each subject."""
    done = run("endings", MODELS, NO_BACKENDS)
    assert (done.returncode, done.stderr) == (0, "")
    sections: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("== "):
            sections[line[3:]] = lines = []
        else:
            lines.append(line)
    return sections


def results(lines: list[str]) -> list[str]:
    return [line.partition("): ")[2] for line in lines]


def test_server_that_is_deleted_answers_first(endings):
    assert endings["delete"] == [
        "deleted: final 1, released 1, 1 response",
        "  response of patient 1 to '', flags 1",
        "  output OUT FP32 [1] 4 bytes: 00 00 00 3f",
    ]


def test_callback_may_ask_the_server_but_not_end_it(endings):
    refusal = "3 a server cannot be stopped or deleted by one of its callbacks: it waits for them"

    assert results(endings["callback"])[:3] == ["ok", refusal, "ok"]


def test_wrong_uses_are_errors(endings):
    busy = "3 expected a request that no server has; this one was sent and is not released yet"
    lines = results(endings["wrong"])

    assert lines[:3] == [busy] * 3
    assert lines[3].startswith("3 expected a request with an allocator and a response callback")
    assert lines[4] == "ok"
    assert lines[5].startswith("3 expected a handle of a request, got 0x")
    assert lines[6:] == [
        "3 expected a handle of a request, got NULL",
        "3 expected a text, got NULL",
        "ok",
        "4 Server exiting",
    ]


def test_end_of_one_server_leaves_the_other_alone(endings):
    assert endings["two"][0] == "the second:"
    assert endings["two"][-1] == "  responses 1, starts 1, allocations 1, releases 1"


def test_responses_have_parameters(endings):
    assert endings["parameters"][2:] == [
        "  parameter a STRING b",
        "  parameter i INT -5",
        "  parameter t BOOL 1",
        "  responses 1, starts 1, allocations 0, releases 0",
    ]


def test_program_may_exit_while_a_server_runs():
    done = run("endings", MODELS, NO_BACKENDS, "exit")  # returns only if the workers end, too

    assert (done.returncode, done.stderr) == (7, "")


def test_python_starts_at_the_first_call_of_any_thread():
    done = run("version", LC_ALL="C")

    assert done.stdout == "version 1.34\n" * 3 + "names, locale C\n"


def test_program_of_python_is_named_if_it_is_not_there():
    done = run("version", PYTRITON_PYTHON="/no/such/python")

    text = "Unavailable: Python cannot be started: there is no program /no/such/python; "
    assert done.stdout.startswith(text)
    assert done.stdout.endswith("no names, locale C\n")


def test_library_of_python_is_named_if_it_is_not_there():
    done = run("version", PYTRITON_LIBPYTHON="/no/libpython.so")

    assert done.stdout.startswith("Unavailable: Python cannot be started: /no/libpython.so: ")
    assert "PYTRITON_LIBPYTHON names the shared library of that Python\n" in done.stdout


def test_other_library_than_that_of_python_is_refused():
    done = run("version", PYTRITON_LIBPYTHON="libm.so.6")

    assert "its library has no Py_IsInitialized, expected Python 3.10 to 3.14" in done.stdout


def test_python_without_this_package_is_refused():
    python = Path(sys.base_prefix, "bin", "python3")
    if not python.exists() or sys.base_prefix == sys.prefix:
        pytest.skip("there is no other environment")
    done = run("version", PYTRITON_PYTHON=str(python), PYTHONPATH="")

    expected = "Unavailable: pytriton cannot be used: ModuleNotFoundError: No module named 'pytrit"
    assert done.stdout.startswith(expected)
