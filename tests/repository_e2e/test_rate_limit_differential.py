# SPDX-License-Identifier: Apache-2.0
"""The rate limiter beside that of the real Triton: what cannot load and why, and who has turns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import peers
from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import HOLD, code, config, model
from tests.repository_e2e.server_process import COMMAND

START_DEADLINE_S = 120.0
EXPLICIT = ("--rate-limit=execution_count", "--model-control-mode=explicit")
RESOURCES = ("R:3:0", "R:5:1", "S:3", "S:5:0", "T:3:1", "U:5", "U:3", "v:9")
# Writes who runs into a file of the repository, which shows the order.
DIARY = f"""
with open(os.path.join(os.path.dirname(__file__), "..", "..", "diary"), "a") as diary:
    diary.write(self.name)
{HOLD}
y = x
"""


def limited(needs: str, source: str | None = None):
    group = f"instance_group [{{ kind: KIND_CPU rate_limiter {{ {needs} }} }}]"
    return model(source, config(group))


def need(name: str, count: int, more: str = "") -> str:
    return f'resources {{ name: "{name}" count: {count} {more} }}'


SHARED = "global: true"
REFUSED = {
    "shared_by_devices": (need("R", 9, SHARED), "R", 5),
    "first_device": (need("R", 9), "R", 3),
    "every_device": (need("S", 9, SHARED), "S", 5),
    "every_and_first_device": (need("S", 9), "S", 5),
    "other_device": (need("T", 9), "T", 0),
    "given_twice": (need("U", 9), "U", 3),
    "letter_case": (need("V", 9), "V", 0),
    "not_given": (need("W", 9), "W", 0),
    "needed_twice": (need("U", 2) + need("U", 9), "U", 3),
    "one_of_two": (need("S", 1) + need("U", 9), "U", 3),
}
ACCEPTED = {
    "enough": need("R", 3),
    "zero_of_unknown": need("W", 0),
    "no_needs": "priority: 2",
}


@pytest.fixture(
    scope="module", params=["ours", pytest.param("real", marks=pytest.mark.part("peers"))]
)
def start(request, start_module_server):
    """Starts one server or the other."""
    command = COMMAND if request.param == "ours" else peers.triton_command()

    def start(models, *flags):
        server = start_module_server(models, flags=[*EXPLICIT, *flags], command=command)

        def is_alive():
            try:
                return call(server.http_port, "/v2/health/live").status == 200
            except OSError:
                return False

        assert eventually(is_alive, START_DEADLINE_S), server.output
        return server

    return start


@pytest.fixture(scope="module")
def explicit(start):
    models = {name: limited(needs) for name, (needs, _, _) in REFUSED.items()}
    models |= {name: limited(needs) for name, needs in ACCEPTED.items()}
    return start(models, *(f"--rate-limit-resource={each}" for each in RESOURCES))


@pytest.mark.parametrize("name", REFUSED)
def test_model_that_needs_more_than_there_is_cannot_load(explicit, name):
    _, resource, limit = REFUSED[name]
    answer = explicit.load(name)

    assert answer.status == 400
    assert answer.error == (
        f"load failed for model '{name}': version 1 is at UNAVAILABLE state: Invalid argument: "
        f'Resource count for "{resource}" is limited to {limit} which will prevent scheduling of '
        "one or more model instances, the minimum required count is 9;\n"
    )


@pytest.mark.parametrize("name", ACCEPTED)
def test_model_that_needs_what_there_is_loads(explicit, name):
    assert explicit.load(name).status == 200
    assert explicit.infer(name) == [1.0]


@pytest.fixture(scope="module")
def sharing(start):
    source = code(DIARY, initialize="self.name = args['model_name']")
    models = {
        "a": limited(need("R", 2, SHARED) + "priority: 1", source),
        "b": limited(need("R", 2, SHARED) + "priority: 2", source),
        "c": limited(need("R", 2), source),
        "d": limited(need("R", 1) + need("R", 1, SHARED), source),
    }
    server = start(models)
    for name in ("a", "b"):
        assert server.load(name).status == 200
    return server


@pytest.mark.parametrize("name", ["c", "d"])
def test_resource_cannot_be_global_and_of_a_device(sharing, name):
    answer = sharing.load(name)

    assert answer.status == 400
    assert answer.error == (
        f"load failed for model '{name}': version 1 is at UNAVAILABLE state: Invalid argument: "
        'Resource "R" is present as both global and device-specific resource in the model '
        "configuration.;\n"
    )


def test_turns_follow_priorities(sharing):
    diary = sharing.repository / "diary"
    sharing.hold("a")
    with ThreadPoolExecutor(17) as pool:
        first = pool.submit(sharing.infer, "a")
        assert eventually(diary.exists)
        others = [pool.submit(sharing.infer, name) for name in "ab" * 8]
        assert eventually(lambda: sum(map(waiting, (sharing,) * 2, "ab")) == 16)
        sharing.let_go("a")
        for each in (first, *others):
            each.result()
    turns = diary.read_text()

    # While both wait, a has twice the turns of b; then b has the rest.
    assert turns[:12].count("a") in (7, 8, 9), turns
    assert sorted(turns) == list("a" * 9 + "b" * 8)


def waiting(server, name):
    """How many requests of a model were received and do not run yet."""
    page = call(server.metrics_port, "/metrics").body.decode()
    start = f'nv_inference_pending_request_count{{model="{name}"'
    lines = [line for line in page.splitlines() if line.startswith(start)]
    return int(float(lines[0].rsplit(" ", 1)[1])) if lines else 0
