# SPDX-License-Identifier: Apache-2.0
"""Sends recorded requests again, at the times of their arrivals or as quickly as wanted."""

from __future__ import annotations

import bisect
import dataclasses
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from pytriton.client.kserve.address import Address, Tls
from pytriton.protocol.recording import Exchange
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.plan import Concurrency, FixedSchedule, LoadPlan, LoadProtocol
from pytriton.tools.perf.load.process_load import ProcessLoad
from pytriton.tools.perf.load.recipe import Recipe, RequestTemplate
from pytriton.tools.perf.load.records import Records
from pytriton.tools.perf.load.requests import grpc_header_block
from pytriton.tools.replay.comparing import (
    SOME_ERROR,
    Difference,
    ReplayedAnswers,
    Tolerance,
    differences,
)
from pytriton.tools.replay.recorded_requests import grpc_message, http_template

_WAIT_S = 0.5
_MORE_CONNECTIONS = 4  # than were needed when it was recorded
_MAX_CONNECTIONS = 256
_FIRST_IDS = 1 << 32  # of sequences with new ids


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayPlan:
    """How a recording is replayed.

    Attributes:
        address: The server.
        headers: Headers of each request.
        speed: 2 halves the times between arrivals.
        concurrency: Keep so many requests under way, whatever their times; None: keep the times.
        new_sequence_ids: Give sequences other ids, so that they do not meet those of the file.
        tolerance: How far numbers may be apart.
        compares: Whether answers are compared.
        tls: Encrypted connections; None: as the address says.
    """

    address: Address
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    speed: float = 1.0
    concurrency: int | None = None
    new_sequence_ids: bool = False
    tolerance: Tolerance = dataclasses.field(default_factory=Tolerance)
    compares: bool = True
    tls: Tls | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of a replay; arrays have a row for each request that ended, in order of arrival.

    Attributes:
        exchanges: The recorded requests.
        skipped: Requests that this protocol cannot send, by the reason.
        due_s: When each was due, from the first.
        late_ms: How much later its last byte was sent, in relation to the one that was earliest.
        latency_ms: How long its last response took, and how long it took when it was recorded.
        elapsed_s: From the first request to the last answer.
        compared: Requests whose answers were compared.
        found: The differences.
        errors: Error texts and how often they came.
    """

    exchanges: Sequence[Exchange]
    skipped: Mapping[str, int]
    due_s: NDArray[np.float64]
    late_ms: NDArray[np.float64]
    latency_ms: NDArray[np.float64]
    recorded_latency_ms: NDArray[np.float64]
    elapsed_s: float
    failed: int
    compared: int
    found: Sequence[Difference]
    errors: Mapping[str, int]
    is_paced: bool
    is_generator_limit: bool = False


def with_new_ids(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Returns the same requests, whose sequences have other ids; texts stay texts."""
    first = random.SystemRandom().randrange(_FIRST_IDS, _FIRST_IDS << 20)
    ids: dict[int | str, int | str] = {0: 0, "": ""}
    renamed = []
    for exchange in exchanges:
        old = exchange.correlation_id
        if old not in ids:
            new = first + len(ids)
            ids[old] = new if isinstance(old, int) else f"replay-{new}"
        renamed.append(msgspec.structs.replace(exchange, correlation_id=ids[old]))
    return renamed


def sendable(exchanges: Sequence[Exchange], protocol: str) -> tuple[list[Exchange], dict[str, int]]:
    """Returns what a protocol can send, and how much it cannot, by the reason."""
    if protocol == "grpc":
        return list(exchanges), {}
    kept = [each for each in exchanges if not each.is_decoupled]
    lost = len(exchanges) - len(kept)
    reason = "decoupled models need a gRPC address"
    return kept, {reason: lost} if lost else {}


def offsets_ms(exchanges: Sequence[Exchange], speed: float) -> tuple[float, ...]:
    """Returns when requests are due, from the first one on."""
    if not exchanges:
        return ()
    first = exchanges[0].arrived_ns
    return tuple((each.arrived_ns - first) / 1e6 / speed for each in exchanges)


def most_at_once(exchanges: Sequence[Exchange]) -> int:
    """Returns how many of the requests were under way at the same time, at most."""
    begins = np.sort(np.array([each.arrived_ns for each in exchanges], np.int64))
    ends = np.sort(np.array([each.arrived_ns + each.ended_ns for each in exchanges], np.int64))
    under_way = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="left")
    return int(under_way.max(initial=0))


def replay(
    exchanges: Sequence[Exchange],
    plan: ReplayPlan,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> ReplayResult:
    """Send requests again and compare their answers.

    Raises:
        GeneratorError: There is nothing to send, or the server cannot be reached.
    """
    kept, skipped = sendable(exchanges, plan.address.protocol)
    if not kept:
        raise GeneratorError("the recording has no request that can be sent")
    if (
        plan.concurrency is not None
        and plan.concurrency > 1
        and any(each.correlation_id for each in kept)
    ):
        raise GeneratorError("sequences keep their order only at their times, or one at a time")
    if plan.new_sequence_ids:
        kept = with_new_ids(kept)
    load = ProcessLoad(_load_plan(plan), _recipe(kept, plan))
    level: FixedSchedule | Concurrency
    if plan.concurrency is None:
        level = FixedSchedule(offsets_ms(kept, plan.speed))
    else:
        level = Concurrency(plan.concurrency)
    parts: list[Records] = []
    try:
        load.start(level, len(kept))
        began_s = time.monotonic()
        done = 0
        while not load.wait(_WAIT_S):
            if isinstance(level, FixedSchedule):
                # Handing answers over would delay the next requests, so this is what should be.
                elapsed_ms = 1000 * (time.monotonic() - began_s)
                done = bisect.bisect(level.milliseconds, elapsed_ms)
            else:
                parts.append(load.take())
                done += len(parts[-1])
            on_progress(done, len(kept))
    finally:
        parts.append(load.stop())
    return _result(kept, skipped, parts, plan)


def _load_plan(plan: ReplayPlan) -> LoadPlan:
    protocol = LoadProtocol(plan.address.protocol)
    headers = tuple(plan.headers.items())
    return LoadPlan(str(plan.address), protocol, "", (), headers=headers, processes=1)


def _recipe(exchanges: Sequence[Exchange], plan: ReplayPlan) -> Recipe:
    address = plan.address
    is_grpc = address.protocol == "grpc"
    # One stream for all: requests of unary calls and of streams would have two clocks.
    is_stream = is_grpc and any(each.is_decoupled for each in exchanges)
    if is_grpc:
        load_plan = dataclasses.replace(_load_plan(plan), streaming=is_stream)
        head = grpc_header_block(load_plan, address)
        templates = [
            RequestTemplate(grpc_message(each, is_stream=is_stream).SerializeToString())
            for each in exchanges
        ]
    else:
        head = b""
        try:
            templates = [http_template(each, address, plan.headers) for each in exchanges]
        except ValueError as error:
            raise GeneratorError(str(error)) from error
    connections = min(most_at_once(exchanges) + _MORE_CONNECTIONS, _MAX_CONNECTIONS)
    return Recipe(
        is_grpc=is_grpc,
        host=address.host,
        port=address.port,
        head=head,
        streams=[templates],
        is_streaming=is_stream,
        is_decoupled=is_stream,
        has_binary=not is_grpc,
        tls=plan.tls or (Tls() if address.uses_tls else None),
        keeps_outputs=plan.compares,
        connections=1 if plan.concurrency else connections,
        is_exact=plan.concurrency is None,
    )


def is_sender_limit(parts: Sequence[Records]) -> bool:
    """Whether the sender was busy most of the time; the last part may be of a moment only."""
    return sum(part.generator.is_limit for part in parts) * 2 > len(parts)


def _result(
    exchanges: list[Exchange],
    skipped: Mapping[str, int],
    parts: Sequence[Records],
    plan: ReplayPlan,
) -> ReplayResult:
    begun = np.concatenate([part.begin_ns for part in parts])
    sent = np.concatenate([part.sent_ns for part in parts])
    sent = np.where(sent > begun, sent, begun)  # those that could not be sent have no such time
    last = np.concatenate([part.last_ns for part in parts])
    ok = np.concatenate([part.ok for part in parts])
    index = np.concatenate([part.input_index for part in parts])
    outputs = [each for part in parts for each in (part.outputs or ())]
    errors: Counter[str] = Counter()
    for part in parts:
        errors.update(part.errors)
    found: list[Difference] = []
    compared = 0
    order = np.argsort(index, kind="stable")
    if plan.compares:
        for row in order:
            exchange = exchanges[int(index[row])]
            if exchange.is_redacted:  # the model got another request
                continue
            compared += 1
            # The load generator counts the texts of errors, and does not say whose they are.
            answers = ReplayedAnswers(outputs[row], "" if ok[row] else SOME_ERROR)
            found += differences(exchange, answers, plan.tolerance)
    due_ns = np.array(offsets_ms(exchanges, plan.speed))[index[order]] * 1e6
    shifts = sent[order] - due_ns
    late = shifts - shifts.min() if len(shifts) else shifts
    recorded = np.array([each.ended_ns / 1e6 for each in exchanges])[index[order]]
    return ReplayResult(
        exchanges=exchanges,
        skipped=skipped,
        due_s=due_ns / 1e9,
        late_ms=late / 1e6,
        latency_ms=(last - begun)[order] / 1e6,
        recorded_latency_ms=recorded,
        elapsed_s=float(last.max() - begun.min()) / 1e9 if len(begun) else 0.0,
        failed=int(np.count_nonzero(~ok)),
        compared=compared,
        found=found,
        errors=dict(errors),
        is_paced=plan.concurrency is None,
        is_generator_limit=is_sender_limit(parts),
    )
