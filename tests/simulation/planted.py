# SPDX-License-Identifier: Apache-2.0
"""Bugs to be found: each breaks the project a little, while a scenario runs.

`BUGS` is the table. `python -m tests.simulation.planted` looks for all of them in ordinary
scenarios, one seed after the other, and prints at which one each was found; with `--write` it keeps
that in `planted.json`, from which `test_planted.py` knows where to look.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import io
import json
import pathlib
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from pytriton.protocol.http2.connection import Http2Connection
from pytriton.protocol.http2.core import ConnectionCore
from pytriton.protocol.http2.frames import ACK, parse_settings
from pytriton.protocol.http2.receiving import ControlFrames
from pytriton.runtime.executor import launcher
from pytriton.runtime.executor.batch_tracker import BatchTracker
from pytriton.runtime.executor.call_server import _InferenceCall
from pytriton.runtime.functions.host import StreamBatch
from pytriton.runtime.transport import credit
from pytriton.runtime.transport.arena import Arena, MemoryTrimmer
from pytriton.runtime.transport.link import _MISSING, Link
from pytriton.runtime.transport.loop_channel import LoopChannel
from pytriton.runtime.transport.memory_channel import BlockTracker
from pytriton.runtime.transport.response_outbox import ResponseOutbox
from pytriton.serving.engine.answer_cache import CacheKeys
from pytriton.serving.engine.batcher import GreedyBatcher
from pytriton.serving.engine.delivery import ResponseCredit
from pytriton.serving.engine.engine import RequestEngine
from pytriton.serving.engine.ensemble.column_run import Slab
from pytriton.serving.engine.instance_pool import Outage
from pytriton.serving.engine.model import Model
from pytriton.serving.engine.rate_limiter import ModelTurns
from pytriton.serving.engine.request_queue import RequestQueue
from pytriton.serving.engine.sequence.scheduler import END, SequenceScheduler
from pytriton.serving.engine.stats import ModelStatistics
from pytriton.serving.repository.loading.python_version import PythonVersion, RestartPolicy
from pytriton.serving.repository.model_set import ModelSet
from pytriton.serving.server.core import Core
from pytriton.serving.server.frontend.pool import FrontEndPool
from pytriton.serving.server.frontend.reply_outbox import ReplyOutbox
from pytriton.serving.server.frontend.session import FrontEndRequest
from pytriton.serving.server.grpc.connection import GrpcConnection
from pytriton.serving.server.http.http1_connection import Http1Connection
from tests.simulation.faults import HANG_S
from tests.simulation.scenario import Run, Scenario, make_scenario

RECORD = pathlib.Path(__file__).with_name("planted.json")
# What ordinary scenarios have not found yet: a workload, a fault or a check is missing for each.
NOT_FOUND = frozenset(
    {
        "grpc_pause_is_forgotten",
        "replies_without_memory_are_lost",
        "step_is_not_waited_for",
        "dead_instance_keeps_resources",
        "helper_thread_is_taken_for_granted",
        "full_socket_is_not_watched",
    }
)
MOST_CALLS = 240  # of a scenario in which bugs are looked for: small ones are quick
MANY_CALLS = "many calls"  # what some bugs need
_MOST_OF_MANY = 640
LONGEST_S = 600.0  # of the search for one bug


class Patches:
    """Changes of the project that are undone."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace a member of a class or a module."""
        before = vars(owner)[name]
        self._stack.callback(setattr, owner, name, before)
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function by one that is made of it."""
        self.set(owner, name, make(vars(owner)[name]))

    def everywhere(self, module: types.ModuleType, name: str, value: Any) -> None:
        """Replace a function in its module, and in those that have imported it."""
        original = vars(module)[name]
        for other in list(sys.modules.values()):
            is_ours = getattr(other, "__name__", "").startswith("pytriton")
            if is_ours and vars(other).get(name) is original:
                self.set(other, name, value)


Patch = Callable[[Patches], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Bug:
    """A bug.

    Args:
        name: of the row.
        sentence: what the broken code does.
        patch: breaks it.
        profile: of the clients among whom it is looked for.
        needs: what a scenario has to have, else it is not tried: words of `words_of`. It saves the
            time of scenarios that do not run the broken code.
        first_seed: where the search begins.
    """

    name: str
    sentence: str
    patch: Patch
    profile: str = "mixed"
    needs: tuple[str, ...] = ()
    first_seed: int = 0

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """The project has the bug."""
        with contextlib.ExitStack() as stack:
            self.patch(Patches(stack))
            yield


BUGS: dict[str, Bug] = {}


def bug(sentence: str, profile: str = "mixed", *needs: str) -> Callable[[Patch], Patch]:
    """Put a bug into the table, under the name of the function that plants it."""

    def add(patch: Patch) -> Patch:
        BUGS[patch.__name__] = Bug(patch.__name__, sentence, patch, profile, needs)
        return patch

    return add


def words_of(scenario: Scenario) -> set[str]:
    """What there is in a scenario: its kind of system, its faults, and those that come often."""
    words = {"repository" if scenario.has_repository else "bound"}
    if scenario.call_count > MOST_CALLS:
        words.add(MANY_CALLS)
    if scenario.front_ends:
        words.add("front ends")
    faults = collections.Counter(f"{each.kind} {each.role}".strip() for each in scenario.faults)
    for name, count in faults.items():
        words |= {name, *(f"{number} x {name}" for number in range(2, count + 1))}
    if any(each.kind == "stop" and each.for_s >= HANG_S for each in scenario.faults):
        words.add("hang")
    return words


def _nothing(*_: object, **__: object) -> None:
    """Stands for what is left out."""


# HTTP


@bug("Of pipelined requests that wait, the last one is answered first.")
def pipelined_answers_out_of_order(patches: Patches) -> None:
    def process(original: Any) -> Any:
        def process_waiting(connection: Any) -> None:
            connection._waiting.reverse()
            original(connection)

        return process_waiting

    patches.wrap(Http1Connection, "_process_waiting", process)


@bug("A request whose HTTP client has left is not cancelled.", "streams")
def http_client_that_left_is_served(patches: Patches) -> None:
    def abandon(connection: Any) -> None:
        connection._reader.stop()
        connection._waiting.clear()
        connection._exchange = connection._current = None

    patches.set(Http1Connection, "_abandon_requests", abandon)


@bug("A model is not told that an HTTP client reads again after it was slow.", "streams")
def http_stream_never_resumes(patches: Patches) -> None:
    def resume_writing(connection: Any) -> None:
        connection.is_writing_paused = False
        connection._process_waiting_soon()

    patches.set(Http1Connection, "resume_writing", resume_writing)


# gRPC


@bug(
    "A gRPC stream that was paused counts as writable as soon as its queue is shorter.",
    "streams",
    MANY_CALLS,
)
def grpc_pause_is_forgotten(patches: Patches) -> None:
    def send_data(original: Any) -> Any:
        def forget(connection: Any, stream_id: int, data: Any, *, end_stream: bool = False) -> bool:
            is_ready = original(connection, stream_id, data, end_stream=end_stream)
            stream = connection._core.streams.open.get(stream_id)
            if stream is not None and stream.is_paused:
                high = connection._core.limits.high_water_bytes
                stream.is_paused = stream.queued_bytes >= high
            return bool(is_ready)

        return forget

    patches.wrap(Http2Connection, "send_data", send_data)


@bug("The window of a connection loses the bytes of streams that were reset.", "hostile")
def connection_window_leaks(patches: Patches) -> None:
    def close(core: Any, stream_id: int, state: Any) -> None:
        stream = core.streams.close(stream_id, state)
        if stream is not None and stream.queue:
            core.outbox.drop(stream)

    patches.set(ConnectionCore, "close", close)


@bug("The stream of a call that was answered at once stays open.")
def answered_stream_stays_open(patches: Patches) -> None:
    def end_sent(original: Any) -> Any:
        def keep(core: Any, stream: Any, output: Any = None) -> None:
            original(core, stream, output)
            if output is None:
                core.streams.open[stream.id] = stream

        return keep

    patches.wrap(ConnectionCore, "end_sent", end_sent)


@bug("A call that its gRPC client has reset is not cancelled.", "streams", MANY_CALLS)
def grpc_call_that_was_reset_is_served(patches: Patches) -> None:
    def on_event(original: Any) -> Any:
        def ignore_resets(connection: Any, event: Any) -> None:
            if type(event).__name__ != "StreamReset":
                original(connection, event)

        return ignore_resets

    patches.wrap(GrpcConnection, "_on_event", on_event)


@bug("Every entry of a SETTINGS frame walks through all open streams.", "floods")
def settings_walk_all_streams(patches: Patches) -> None:
    def on_settings(original: Any) -> Any:
        def one_by_one(control: Any, flags: int, stream_id: int, payload: bytes) -> None:
            core = control._core
            for _, value in () if flags & ACK else parse_settings(payload):
                for stream in core.streams.open.values():
                    stream.send_window += value - core.peer.initial_window
                    core.outbox.schedule(stream)
                core.peer.initial_window = value
            original(control, flags, stream_id, payload)

        return one_by_one

    patches.wrap(ControlFrames, "on_settings", on_settings)


# Front ends and their sessions


@bug("Front ends are not pinged, so that one that hangs is never replaced.", "mixed", "hang")
def hung_front_end_stays(patches: Patches) -> None:
    patches.set(FrontEndPool, "_beat", _nothing)


@bug("Credit of a front end does not resume the model that was paused.", "streams", "front ends")
def stream_of_front_end_never_resumes(patches: Patches) -> None:
    def on_consumed(request: Any, count: int) -> None:
        if request._window is not None:
            request._window.add(count)

    patches.set(FrontEndRequest, "on_consumed", on_consumed)


@bug(
    "The core keeps the sockets of clients that it has passed to a front end.",
    "mixed",
    "front ends",
)
def core_keeps_passed_clients(patches: Patches) -> None:
    kept = []

    def pass_client(original: Any) -> Any:
        def keep(pool: Any, service: Any, client: Any) -> None:
            kept.append(client.dup())
            original(pool, service, client)

        return keep

    patches.wrap(FrontEndPool, "pass_client", pass_client)


@bug(
    "Replies for which a front end could not get memory are lost.",
    "mixed",
    "front ends",
    "leave no shared memory",
    MANY_CALLS,
)
def replies_without_memory_are_lost(patches: Patches) -> None:
    patches.set(ReplyOutbox, "_send_failures", _nothing)


# Schedulers


@bug("A request that was cancelled in the queue keeps its deadline.", "hostile")
def cancelled_request_keeps_deadline(patches: Patches) -> None:
    def remove(queue: Any, inference: Any) -> bool:
        level = queue._level_of(inference)
        if level.waiting.pop(inference, None) is None:
            return level.delayed.pop(inference, None) is not None
        return True

    patches.set(RequestQueue, "remove", remove)


@bug("An instance that becomes free does not look for requests that wait.")
def free_instance_is_not_woken(patches: Patches) -> None:
    def use_again(model: Any, instance: Any) -> None:
        if model._turns is not None:
            model._turns.settle(instance)
        if instance.free_slots and (not model._pool.retiring or model._pool.may_go_on(instance)):
            model._free[instance] = None

    patches.set(Model, "_use_again", use_again)


@bug("A batch may have one row more than the model allows.", "crowd")
def batch_is_too_large(patches: Patches) -> None:
    def init(original: Any) -> Any:
        def larger(batcher: Any, spec: Any, max_rows: int, **options: Any) -> None:
            original(batcher, spec, max_rows + 1, **options)

        return larger

    patches.wrap(GreedyBatcher, "__init__", init)


# Statistics


@bug("A request that failed counts twice.")
def failures_count_twice(patches: Patches) -> None:
    def record(original: Any) -> Any:
        def twice(statistics: Any, count: int, ns: int, reason: Any) -> None:
            original(statistics, 2 * count, ns, reason)

        return twice

    patches.wrap(ModelStatistics, "record_failures", record)


# Sequences


@bug(
    "The slot of a sequence is free as soon as its last request is queued.", "sequences", MANY_CALLS
)
def slot_is_freed_early(patches: Patches) -> None:
    freed: set[Any] = set()

    def add(original: Any) -> Any:
        def free_slot(scheduler: Any, inference: Any, now_ns: int) -> None:
            original(scheduler, inference, now_ns)
            sequence = scheduler._owners[inference]
            if inference.request.flags & END and sequence.slots is not None:
                sequence.slots.release(sequence)
                freed.add(sequence)

        return free_slot

    def end(original: Any) -> Any:
        def without_release(scheduler: Any, sequence: Any) -> None:
            if sequence in freed:
                sequence.slots = None
            original(scheduler, sequence)

        return without_release

    patches.wrap(SequenceScheduler, "add", add)
    patches.wrap(SequenceScheduler, "_end", end)


@bug("Sequences of an instance that ended are not ended.", "sequences", "kill worker")
def sequences_outlive_their_instance(patches: Patches) -> None:
    def remove_instance(scheduler: Any, instance: Any) -> list[Any]:
        scheduler.retire_instance(instance)
        scheduler._slots.pop(instance, None)
        return []

    patches.set(SequenceScheduler, "remove_instance", remove_instance)


@bug("Sequences without requests keep their slots for ever.", "sequences")
def idle_sequences_stay(patches: Patches) -> None:
    patches.set(SequenceScheduler, "_end_idle", _nothing)


@bug("A request of a sequence overtakes those that wait before it.", "sequences")
def steps_are_reordered(patches: Patches) -> None:
    def add(original: Any) -> Any:
        def at_once(scheduler: Any, inference: Any, now_ns: int) -> None:
            original(scheduler, inference, now_ns)
            sequence = scheduler._owners[inference]
            if len(sequence.waiting) > 1:
                sequence.waiting.rotate(1)

        return at_once

    patches.wrap(SequenceScheduler, "add", add)


@bug("A batch beside null requests counts as one that is queued again.", "sequences")
def null_requests_count_as_queued_again(patches: Patches) -> None:
    def finished(original: Any) -> Any:
        def keep(scheduler: Any, batch: Any, outcomes: Any, now_ns: int) -> Any:
            passed_on = original(scheduler, batch, outcomes, now_ns)
            batch.is_rescheduled = len(passed_on) != len(outcomes)
            return passed_on

        return keep

    patches.wrap(SequenceScheduler, "finished", finished)


# Ensembles


@bug(
    "Several requests that ran together leave out a step of their ensemble.", "crowd", "repository"
)
def ensemble_drops_a_step(patches: Patches) -> None:
    def after_step(original: Any) -> Any:
        def drop(slab: Any, extent: Any, outputs: Any, row: int) -> Any:
            following = original(slab, extent, outputs, row)
            chain = slab.plan.chain
            if extent[1] - extent[0] > 1 and following.position < len(chain):
                written = chain[following.position]
                tensor = next(iter(chain[slab.position].outputs.values()))
                following.sources[next(iter(written.outputs.values()))] = following.sources[tensor]
                following.position += 1
            return following

        return drop

    patches.wrap(Slab, "after_step", after_step)


@bug(
    "A step's model is unloaded although requests of ensembles need it.",
    "management",
    "repository",
    MANY_CALLS,
)
def step_is_not_waited_for(patches: Patches) -> None:
    def init(original: Any) -> Any:
        def without(models: Any, settings: Any, engine: Any, *args: Any, **kwargs: Any) -> None:
            original(models, settings, engine, *args, **kwargs)
            engine.released = None

        return without

    patches.wrap(ModelSet, "__init__", init)


# Rate limiter


@bug("Resources of an instance that died stay in use.", "crowd", "kill zygote of workers")
def dead_instance_keeps_resources(patches: Patches) -> None:
    def remove(turns: Any, instance: Any, *, with_seat: bool = False) -> None:
        seat = turns._taken.pop(instance, None)
        if seat is None:
            return
        turns._turns.disable(instance)
        if turns._is_closed or with_seat:
            turns._drop(seat)

    patches.set(ModelTurns, "remove", remove)


@bug("Instances that wait for resources are not told that some are free.", "crowd")
def free_resources_wake_nobody(patches: Patches) -> None:
    def give_back(turns: Any, seat: Any, executing_count: int) -> None:
        while seat.held > executing_count:
            turns._limiter.end(seat)

    patches.set(ModelTurns, "_give_back", give_back)


# Cache


@bug("The key of an answer in the cache has only the first element of the request.")
def cache_mixes_up_keys(patches: Patches) -> None:
    def key(original: Any) -> Any:
        def shorten(keys: Any, request: Any) -> bytes:
            return bytes(original(keys, request)[:-15])

        return shorten

    patches.wrap(CacheKeys, "key", key)


# Loads and unloads


@bug("An unload does not wait for the requests that run.", "management", "repository", MANY_CALLS)
def unload_does_not_drain(patches: Patches) -> None:
    async def drain(model: Any, timeout_s: float | None = None) -> None:
        """Return at once."""

    patches.set(Model, "drain", drain)


@bug(
    "A worker whose launch was cancelled when it was forked is not ended.",
    "management",
    "repository",
)
def cancelled_launch_is_not_reaped(patches: Patches) -> None:
    patches.set(launcher, "_end_unwanted", _nothing)


# The end of a server


@bug("A server that is stopped does not wait for requests that are under way.", "stopping")
def stop_does_not_wait(patches: Patches) -> None:
    async def drain(core: Any, timeout_s: float) -> None:
        """Return at once."""

    patches.set(Core, "drain", drain)


@bug("A server that is stopped says that its models are unknown.", "stopping")
def stopped_server_knows_no_models(patches: Patches) -> None:
    def lookup(engine: Any, name: str, version: str = "") -> Any:
        return engine._look_up(name, version)

    patches.set(RequestEngine, "lookup", lookup)


# Restart policy


@bug(
    "The death of the process that forks workers counts as a crash of each model.",
    "mixed",
    "3 x kill zygote of workers",
)
def zygote_death_is_a_crash(patches: Patches) -> None:
    def restart(original: Any) -> Any:
        def as_crash(version: Any, plan: Any, reason: str, *, is_crash: bool = True) -> bool:
            return bool(original(version, plan, reason, is_crash=True))

        return as_crash

    patches.wrap(PythonVersion, "_restart", restart)


@bug(
    "A start for which the machine had no resources counts as a crash of the model.",
    "mixed",
    "start no process",
    "kill zygote of workers",
)
def lack_of_resources_is_a_crash(patches: Patches) -> None:
    def on_lack(policy: Any) -> Any:
        return policy.on_exit(time.monotonic(), "no resources")

    patches.set(RestartPolicy, "on_lack", on_lack)


@bug("An instance that was replaced is still missed.", "mixed", "kill worker")
def replaced_instance_is_missed(patches: Patches) -> None:
    def add_instance(original: Any) -> Any:
        def add(model: Any, instance: Any, limits: Any = None, **options: Any) -> None:
            missing = model._pool.missing_count
            original(model, instance, limits, **options)
            model._pool.missing_count = missing

        return add

    patches.wrap(Model, "add_instance", add_instance)


@bug(
    "The time limit of an outage goes on after the outage.",
    "mixed",
    "start no process",
    "kill zygote of workers",
)
def outage_limit_goes_on(patches: Patches) -> None:
    def end(outage: Any) -> None:
        outage.is_over_limit = False

    patches.set(Outage, "end", end)


# Worker and host


@bug(
    "Responses are left to a helper thread that could not be started.",
    "streams",
    "start no thread",
    "repository",
)
def helper_thread_is_taken_for_granted(patches: Patches) -> None:
    def use_helper(original: Any) -> Any:
        def claim(outbox: Any) -> bool:
            original(outbox)
            return True

        return claim

    patches.wrap(ResponseOutbox, "_use_helper", use_helper)


@bug("A decoupled function is not told that its client has left.", "streams", "bound", MANY_CALLS)
def host_ignores_cancellation(patches: Patches) -> None:
    def cancel(batch: Any, position: int) -> None:
        """Go on."""

    patches.set(StreamBatch, "cancel", cancel)


@bug("A call of a model by a model is kept after its end.", "mixed", "repository")
def inner_call_is_kept(patches: Patches) -> None:
    def end(call: Any) -> None:
        call._is_over = True
        call._running = None

    patches.set(_InferenceCall, "_end", end)


# Credit


@bug("Responses for which credit was granted are counted again with the next ones.", "streams")
def credit_is_counted_twice(patches: Patches) -> None:
    def grant(_: Any, inference: Any) -> None:
        count = inference.taken_count
        if count and not inference.is_paused and inference.instance is not None:
            inference.instance.grant(inference, count)

    patches.set(ResponseCredit, "_grant", grant)


@bug("Credit is granted for the responses to a slow client, but not after it.", "streams")
def resumed_stream_gets_no_credit(patches: Patches) -> None:
    def resume(_: Any, inference: Any) -> None:
        inference.is_paused = False

    patches.set(ResponseCredit, "resume", resume)


@bug("The first response of a stream grants no credit.", "streams")
def first_response_grants_no_credit(patches: Patches) -> None:
    def count_taken(self: Any, inference: Any, count: int, size: int) -> None:
        inference.taken_count += count
        if credit.is_grant_due(inference.taken_count, size):
            self._grant(inference)

    patches.set(ResponseCredit, "_count_taken", count_taken)


# Channels and memory


@bug(
    "A list of descriptors that the kernel has cut off counts as whole.",
    "mixed",
    "leave few descriptors to front end",
)
def truncated_descriptors_are_ignored(patches: Patches) -> None:
    def read_into(original: Any) -> Any:
        def ignore(link: Any, buffer: Any, flags: int) -> int:
            size: int = original(link, buffer, flags)
            if link._descriptors and link._descriptors[-1] == _MISSING:
                link._descriptors.pop()
            return size

        return ignore

    patches.wrap(Link, "_read_into", read_into)


@bug("Shared memory that nobody uses any more is kept.")
def idle_memory_is_kept(patches: Patches) -> None:
    def trim(arena: Any, *, idle_seconds: float = 0.0) -> list[int]:
        return []

    patches.set(Arena, "trim", trim)


@bug("Memory of a third process stays mapped while nothing is sent.", "mixed", "front ends")
def forwarded_memory_stays_mapped(patches: Patches) -> None:
    def maps_memory(tracker: Any) -> bool:
        return bool(tracker.mapped_count)

    patches.set(BlockTracker, "maps_memory", property(maps_memory))


@bug(
    "A message that did not fit into the socket is not sent when there is room.",
    "crowd",
    MANY_CALLS,
)
def full_socket_is_not_watched(patches: Patches) -> None:
    patches.set(LoopChannel, "_watch_unsent", _nothing)


@bug("The timer that gives memory back is not set again.")
def memory_timer_runs_once(patches: Patches) -> None:
    def trim(trimmer: Any) -> None:
        trimmer._timer = None

    patches.set(MemoryTrimmer, "_trim", trim)


@bug("The answers of a batch of two requests are swapped.", "crowd")
def answers_are_swapped(patches: Patches) -> None:
    def split(original: Any) -> Any:
        def swap(tracker: Any, received: Any, frame: Any, batch: Any) -> Any:
            outcomes = original(tracker, received, frame, batch)
            if len(outcomes) == 2 and len({each.request.rows for each in batch.inferences}) == 1:
                first, second = (each.response for each in outcomes)
                if first is not None and second is not None:
                    first.outputs, second.outputs = second.outputs, first.outputs
            return outcomes

        return swap

    patches.wrap(BatchTracker, "_split", split)


# Searching


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Where a bug was found; a seed of None says that it was not."""

    profile: str
    seed: int | None
    tried: int
    seconds: float
    finding: str


@dataclasses.dataclass(slots=True)
class Search:
    """Looks for bugs, and remembers the findings of runs without them."""

    longest_s: float = LONGEST_S
    _clean: dict[tuple[str, int], list[str]] = dataclasses.field(default_factory=dict)

    def clean(self, profile: str, seed: int) -> list[str]:
        """The findings of a scenario without a bug."""
        key = (profile, seed)
        if key not in self._clean:
            self._clean[key] = Run(make_scenario(seed, profile)).run().findings
        return self._clean[key]

    def look(self, each: Bug, seeds: int) -> Found:
        """Try so many seeds."""
        began = time.process_time()
        tried, seed = 0, each.first_seed - 1
        while tried < seeds and time.process_time() - began < self.longest_s:
            seed += 1
            scenario = make_scenario(seed, each.profile)
            most = _MOST_OF_MANY if MANY_CALLS in each.needs else MOST_CALLS
            if scenario.call_count > most or not words_of(scenario).issuperset(each.needs):
                continue
            tried += 1
            with contextlib.redirect_stdout(io.StringIO()):
                findings = Run(scenario).run(each.planted).findings
            if findings and not self.clean(each.profile, seed):
                return Found(each.profile, seed, tried, time.process_time() - began, findings[0])
        return Found(each.profile, None, tried, time.process_time() - began, "")


def record() -> dict[str, Any]:
    """Where bugs were found, by their names."""
    return dict(json.loads(RECORD.read_text())) if RECORD.exists() else {}


def main() -> int:
    """Search; returns 1 if a bug was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted")
    parser.add_argument("names", nargs="*", help="bugs; all that were found, without a name")
    parser.add_argument("--seeds", type=int, default=200, help="to try for each")
    parser.add_argument("--write", action="store_true", help="keep what was found for the tests")
    options = parser.parse_args()
    search, kept, is_missed = Search(), record(), False
    row = "{:36} {:11} {:>6} {:>6} {:>8}  {}\n"
    sys.stdout.write(row.format("bug", "profile", "seed", "tried", "seconds", "finding"))
    for name in options.names or (each for each in BUGS if each not in NOT_FOUND):
        found = search.look(BUGS[name], options.seeds)
        is_missed |= found.seed is None
        where = "-" if found.seed is None else found.seed
        text = found.finding.splitlines()[0][:150] if found.finding else "not found"
        seconds = f"{found.seconds:.1f}"
        sys.stdout.write(row.format(name, found.profile, where, found.tried, seconds, text))
        sys.stdout.flush()
        if found.seed is not None:
            kept[name] = {"profile": found.profile, "seed": found.seed, "tried": found.tried}
        else:
            kept.pop(name, None)
        if options.write:
            ordered = {name: kept[name] for name in BUGS if name in kept}
            RECORD.write_text(json.dumps(ordered, indent=2) + "\n")
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
