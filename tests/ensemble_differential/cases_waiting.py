# SPDX-License-Identifier: Apache-2.0
"""Requests that wait in a step: while their ensemble is unloaded, and for too long."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.waiting import eventually
from tests.ensemble_differential import asking
from tests.python_backend_differential import clients
from tests.recorded_suite import Case, Observation, Server


class Held:
    """A request that a step holds until it is told to go on."""

    def __init__(self, server: Server, name: str) -> None:
        self.path = str(server.repository.parent / name)
        self.inputs = {"FILE": clients.text(self.path)}

    def await_start(self) -> None:
        assert eventually(Path(f"{self.path}.started").exists)

    def let_go(self) -> None:
        Path(f"{self.path}.go").touch()


def outcome(answer: Observation) -> Observation:
    """An answer without the name of a file."""
    return answer if "error" in answer else len(answer["outputs"])


def unloaded_while_running(server: Server) -> Observation:
    held = Held(server, "unloading")
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(asking.by_http, server, "waits_twice", held.inputs)
        held.await_start()
        seen = [asking.unload(server, "waits_twice"), asking.states(server, "waits_twice")]
        late = asking.by_http(server, "waits_twice", held.inputs)
        held.let_go()
        seen += [late, outcome(answer.result())]
    eventually(lambda: "UNLOADING" not in str(asking.states(server, "waits_twice")))
    return [*seen, asking.states(server, "waits_twice")]


def queue_of_a_step_is_full(server: Server) -> Observation:
    """One request runs; of the others, more come than the queue of the step takes."""
    helds = [Held(server, f"queue{number}") for number in range(5)]
    with ThreadPoolExecutor() as threads:
        first = threads.submit(asking.by_http, server, "waits_in_queues", helds[0].inputs)
        helds[0].await_start()
        others = [
            threads.submit(asking.by_http, server, "waits_in_queues", held.inputs)
            for held in helds[1:]
        ]
        eventually(lambda: any(other.done() for other in others))
        for held in helds:
            held.let_go()
        answers = [outcome(one.result()) for one in (first, *others)]
    return next(answer for answer in answers if answer != 1)


def timed_out_in_the_queue_of_a_step(server: Server) -> Observation:
    """Requests that may wait for a millisecond, behind one that runs."""
    held = Held(server, "timeout")
    with ThreadPoolExecutor() as threads:
        first = threads.submit(asking.by_http, server, "waits_in_queues", held.inputs)
        held.await_start()
        others = [
            threads.submit(
                asking.by_grpc,
                server,
                "waits_in_queues",
                held.inputs,
                timeout=1000,
                request_id="late",
            )
            for _ in range(2)
        ]
        eventually(lambda: any(other.done() for other in others))
        held.let_go()
        answers = [outcome(one.result()) for one in (first, *others)]
    return next((answer for answer in answers if answer != 1), None)


CASES = (
    Case("ensemble is unloaded while a request runs", unloaded_while_running),
    Case("queue of a step is full", queue_of_a_step_is_full),
    Case("request waits too long for a step", timed_out_in_the_queue_of_a_step),
)
