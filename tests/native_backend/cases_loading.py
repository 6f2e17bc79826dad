# SPDX-License-Identifier: Apache-2.0
"""Loading and unloading of models of backends in C."""

from __future__ import annotations

from tests.e2e.waiting import eventually
from tests.native_backend.asking import load, scripted, told, unload
from tests.native_backend.models import AUTO_COMPLETED, CODES
from tests.python_backend_differential import clients
from tests.recorded_suite import Case, Observation, Server

FAILING = (
    "broken nowhere newer without_execute failing_initialize failing_attribute "
    "missing_file_name file_name_outside failing_instance "
    "auto_dynamic_for_sequences auto_smaller_batch auto_bigger_batch auto_own_tensors"
)


def loading(model: str) -> Case:
    is_completed = model.startswith("auto_")
    return Case("load", lambda server: {model: load(server, model, shows_config=is_completed)})


def instance(model: str) -> Case:
    def ask(server: Server) -> dict[str, Observation]:
        seen = {"load": load(server, model), "facts": told(server, model, "GROUP", "instance")}
        seen["facts"] = [  # either instance may answer
            [name, value.replace("instances_0_1", "instances_0_0") if "named" in name else value]
            for name, value in seen["facts"]
        ]
        return seen

    return Case(f"instance of {model}", ask)


def ask_failing_execute(server: Server) -> dict[str, Observation]:
    return {
        "load": load(server, "failing_ModelInstanceExecute"),
        "answer": scripted(server, "failing_ModelInstanceExecute", "fine"),
    }


def unloading(place: str) -> Case:
    def ask(server: Server) -> dict[str, Observation]:
        model = f"failing_{place}"
        seen = {"load": load(server, model)}
        words = f"no luck in {place}"
        before = len(server.log.read_text(errors="replace"))
        unload(server, model)
        eventually(lambda: words in server.log.read_text(errors="replace")[before:])
        [line] = clients.log_lines(server, words, words)[-1:]
        severity, _file, text = line.split(" ", 2)  # the line is one of the server's own code
        return {**seen, "log": [severity, text]}

    return Case(f"unload {place}", ask)


def ask_finalize(server: Server) -> dict[str, Observation]:
    """An instance ends after its threads have ended."""
    unload(server, "repeat_coupled")
    last = "repeat: all threads ended"
    lines = clients.log_lines(server, last, last)
    return {"log": lines[:1], "load": load(server, "repeat_coupled")}


def ask_crashes(server: Server) -> dict[str, Observation]:
    """A backend that dies takes its request along; the next one has a new process."""
    load(server, "crash")
    seen = {}
    for script in ("abort", "segfault", "exit", "thread"):
        before = scripted(server, "crash", "fine")["outputs"]
        failure = scripted(server, "crash", script)
        after = scripted(server, "crash", "fine")["outputs"]
        seen[script] = [failure, "another process" if before != after else "the same process"]
    return {**seen, "while loading": load(server, "crash_at_load")}


def ask_newer(server: Server) -> dict[str, Observation]:
    """A library that needs a function of a later API runs until it calls it."""
    load(server, "newer")
    return {script: scripted(server, "newer", script) for script in ("newer function", "fine")}


LOADING_CASES = [
    *(loading(model) for model in FAILING.split()),
    *(loading(f"failing_{code}") for code in CODES.split()),
    *(loading(f"auto_{name.replace(' ', '_')}") for name in AUTO_COMPLETED),
    *(instance(model) for model in ("two_instances", "kind_model", "another_policy", "file_name")),
    Case("failing Execute", ask_failing_execute),
    unloading("ModelInstanceFinalize"),
    unloading("ModelFinalize"),
    Case("finalize", ask_finalize),
    Case("crash", ask_crashes, only_ours=True),
    Case("newer function", ask_newer, only_ours=True),
]
