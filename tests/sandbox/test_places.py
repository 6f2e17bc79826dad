# SPDX-License-Identifier: Apache-2.0
"""Which files a worker may see, decided without looking at any."""

from __future__ import annotations

import os
import sys
from pathlib import PurePosixPath

import pytest

from pytriton.base.sandbox import Grants, SandboxMachine
from pytriton.runtime.sandbox.places import (
    DEVICES,
    InterpreterPlaces,
    ModelPlaces,
    around,
    make_policy,
    without_nested,
)
from pytriton.serving.repository.loading.sandboxes import interpreter_places

TREE = {
    "/opt/venv": ["/opt/venv/bin", "/opt/venv/lib", "/opt/venv/share"],
    "/opt/venv/share": ["/opt/venv/share/doc", "/opt/venv/share/models"],
}
MACHINE = SandboxMachine(system="Linux", landlock=6, has_mounts=True, groups={"pids": "/g"})
PYTHON = InterpreterPlaces(
    ("/opt/venv", "/usr"), ("/opt/venv/lib/python3/site-packages", "/code", ""), "/opt/venv/bin/py"
)


def policy(grants=Grants(), kept_out=(), **settings):  # noqa: B008  it is frozen
    model = ModelPlaces(("/models/mine",))
    return make_policy(
        grants, MACHINE, PYTHON, model, kept_out=kept_out, listing=TREE.__getitem__, **settings
    )


def sees(made, path):
    path = PurePosixPath(path)
    return any(path.is_relative_to(each) for each in (*made.readable, *made.writable))


def test_worker_sees_its_model_its_python_and_the_system():
    made = policy(kept_out=["/models", "/home/a"])

    for path in ("/models/mine/1/model.py", "/opt/venv/bin/py", "/code/a.py", "/usr/lib/libc.so"):
        assert sees(made, path)
    for path in (
        "/models/other/1/model.py",
        "/models",
        "/home/a/.ssh/id",
        "/etc/shadow",
        "/proc/1",
    ):
        assert not sees(made, path)
    assert made.writable == ()


def test_folder_with_something_to_keep_out_is_taken_apart():
    parts = list(around("/opt/venv", [PurePosixPath("/opt/venv/share/models")], TREE.__getitem__))

    assert parts == ["/opt/venv/bin", "/opt/venv/lib", "/opt/venv/share/doc"]


def test_repository_inside_of_the_environment_is_kept_out():
    made = policy(kept_out=["/opt/venv/share/models"])

    assert sees(made, "/opt/venv/share/doc/x")
    assert not sees(made, "/opt/venv/share/models/other/1/model.py")
    assert not sees(made, "/opt/venv/share")


def test_environment_inside_of_a_home_is_seen_and_the_home_is_not():
    home = InterpreterPlaces(("/home/a/venv", "/usr"), (), "/home/a/venv/bin/python")

    made = make_policy(
        Grants(), MACHINE, home, ModelPlaces(()), kept_out=["/home/a"], listing=TREE.__getitem__
    )

    assert sees(made, "/home/a/venv/lib/x.py")
    assert not sees(made, "/home/a/.ssh/id")


def test_links_are_followed_before_places_are_compared():
    links = {"/lib": "/usr/lib", "/code": "/models"}

    made = policy(kept_out=["/models"], resolve=lambda path: links.get(path, path))

    assert not sees(made, "/models/other")
    assert "/lib" not in made.readable


def test_what_is_kept_out_can_be_granted_by_name():
    made = policy(Grants(readable=("/home/a/data",), writable=("/out",)), kept_out=["/home/a"])

    assert sees(made, "/home/a/data/x")
    assert not sees(made, "/home/a/other")
    assert made.writable == ("/out",)


def test_grants_and_the_machine_are_in_the_policy():
    grants = Grants(has_network=True, devices=("/dev/x",), memory_bytes=5, processes=6, files=7)

    made = policy(grants, found_devices=["/dev/nvidia0"], scratch_folder="/s")

    assert (made.has_network, made.has_unix) == (True, False)
    assert (made.memory_bytes, made.processes, made.files) == (5, 6, 7)
    assert made.devices == (*DEVICES, "/dev/nvidia0", "/dev/x")
    assert (made.landlock, made.has_mounts, made.groups) == (6, True, {"pids": "/g"})
    assert made.scratch_folder == "/s"


def test_places_inside_of_others_are_left_out():
    assert without_nested(["/usr/lib", "/usr", "/usrx", "/a/b/c", "/a/b"]) == [
        "/a/b",
        "/usr",
        "/usrx",
    ]


@pytest.mark.parametrize(
    "python_path, is_seen",
    [("", False), ("/packages", False), ("/packages:/work", True), (":/packages", False),
     (":/work", True)],
)  # fmt: skip
def test_working_directory_is_no_folder_of_packages(monkeypatch, python_path, is_seen):
    named = [each or "/work" for each in python_path.split(":")] if python_path else []
    monkeypatch.setenv("PYTHONPATH", python_path)
    monkeypatch.setattr(os, "getcwd", lambda: "/work")
    monkeypatch.setattr(sys, "path", ["/work", *named, "/usr/lib/python3"])  # as with -m

    folders = interpreter_places().search_paths

    assert ("/work" in folders) is is_seen
    assert set(python_path.split(":")) - {"", "/work"} <= set(folders)
    assert "/usr/lib/python3" in folders
