# SPDX-License-Identifier: Apache-2.0
"""Judges calls that have ended: their values, their errors, their order and their times.

An error has to be explained by the call itself (its deadline, its queue timeout, a model that
refuses it) or by a fault that was injected while it was under way. Whatever nothing explains is a
finding. The account of all calls is compared with the server's own in `account.py`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tests.workload import models
from tests.workload.account import Account
from tests.workload.calls import (
    INFERENCES,
    OPENAI_KINDS,
    Call,
    Cut,
    End,
    Kind,
    Port,
    Response,
    TensorData,
)
from tests.workload.regions import REGION_KINDS, RegionBook


class Cause(enum.Enum):
    """What was done to the server, or to the connections to it."""

    WORKER_KILLED = "a worker was killed"
    MODEL_UNLOADED = "the model was unloaded"
    MODEL_RELOADED = "the model was loaded again"
    SERVER_STOPPING = "the server was stopping"
    SERVER_KILLED = "the server was killed"
    FRONT_END_KILLED = "a front end was killed"
    NETWORK_CUT = "the network was cut"
    EXHAUSTED = "the server had no resources"
    STALLED = "processes or the network were held up"


# Which statuses of an inference a cause explains: of HTTP, and of gRPC.
_EXPLAINED: dict[Cause, tuple[frozenset[int], frozenset[int]]] = {
    Cause.WORKER_KILLED: (frozenset((500, 503)), frozenset((13, 14))),
    # A request that came before the unload is answered, so it is no internal error.
    Cause.MODEL_UNLOADED: (frozenset((400, 404, 503)), frozenset((3, 5, 14))),
    Cause.SERVER_STOPPING: (frozenset((503,)), frozenset((14,))),
    Cause.EXHAUSTED: (frozenset((503,)), frozenset((14,))),
}
_CUTS_CONNECTIONS = frozenset(
    (Cause.SERVER_STOPPING, Cause.SERVER_KILLED, Cause.FRONT_END_KILLED, Cause.NETWORK_CUT)
)
_ENDS_SEQUENCES = frozenset((Cause.WORKER_KILLED, Cause.MODEL_UNLOADED, Cause.MODEL_RELOADED))
_SEQUENCE_STATUSES = frozenset((400, 503, 1, 3, 14))
_QUEUE_FULL = "Exceeds maximum queue size"
_QUEUE_TIMEOUT = "Request timeout expired"
EARLY_S = 0.002  # timers of uvloop count milliseconds, from the beginning of one
_MISSING_START = "must specify the START flag"
_NO_SEQUENCE = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
_REMEMBERED_S = 3600.0  # how long a fault may explain what comes after it
_REMEMBERED_CALLS_S = 1.0  # how long after its end a fault may have delayed what came next
_REMEMBERED = 4096  # ended calls among which the owner of a wrong answer is looked for


@dataclasses.dataclass(slots=True)
class Fault:
    """Something that was done to the server; `ended_s` is None while it lasts.

    Args:
        cause: what was done.
        model: to which model; empty for all.
        began_s: when it began, at the latest.
        ended_s: when the server was as before, at the earliest.
    """

    cause: Cause
    model: str
    began_s: float
    ended_s: float | None = None


@dataclasses.dataclass(slots=True, frozen=True)
class Bounds:
    """How long a client may wait at most, in seconds beyond what it asked for.

    Args:
        health_s: for whether the server or a model is ready, the index, statistics, metrics.
        answer_s: for the answer to an inference.
        sequence_s: how much longer for that of a sequence, which may wait for a slot.
        gap_s: between two responses of a stream.
        management_s: for loading and unloading.
        refusal_s: for the end of a call that the protocol does not allow.
        fault_s: how much longer, if a fault was there meanwhile.
        late_s: how long after its deadline, or queue timeout, a call may end.
        under_way_s: how long before the server is told to stop a call has to be sent, so that the
            server finishes it; None: it need not.
        exit_timeout_s: how long after that the server finishes calls. If they are to take longer
            together, it may give them up then.
    """

    health_s: float = 10.0
    answer_s: float = 30.0
    sequence_s: float = 60.0
    gap_s: float = 20.0
    management_s: float = 60.0
    refusal_s: float = 90.0
    fault_s: float = 60.0
    late_s: float = 30.0
    under_way_s: float | None = None
    exit_timeout_s: float = math.inf


@dataclasses.dataclass(slots=True)
class Finding:
    """Something that the server should not have done.

    Args:
        sentence: what was expected, and what was there.
        call: the call that it is about, if any.
        time_s: when it was found.
    """

    sentence: str
    call: Call | None
    time_s: float

    def __str__(self) -> str:
        about = f" [{self.call}]" if self.call is not None else ""
        return f"{self.time_s:.6f}: {self.sentence}{about}"


class _Sequence:
    """What is known of one sequence; steps are bits, as in the sums that its model answers."""

    __slots__ = ("began_s", "ended_began_s", "failures", "is_fragile", "last_s", "sums")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.last_s = began_s  # when something was last sent or answered
        self.ended_began_s = began_s  # when the step began that ended last
        self.sums: dict[int, int] = {}  # by step
        self.failures = 0  # steps that did not end with an answer
        self.is_fragile = False  # a step has a deadline, or a client that may leave


class Oracle:
    """Judges calls; it is the `Judge` of sessions.

    Args:
        now: tells the time.
        bounds: how long clients may wait.
        served: names of the models that the server has.
    """

    def __init__(
        self,
        now: Callable[[], float],
        bounds: Bounds | None = None,
        served: Iterable[str] = (),
    ) -> None:
        self._now = now
        self.bounds = bounds or Bounds()
        self.findings: list[Finding] = []
        self.account = Account(served)
        self.faults: list[Fault] = []
        self._recent: list[Fault] = []  # those that may still explain something
        self.open: dict[int, Call] = {}  # by number, in the order in which they began
        self.has_given_up = False  # whether a call ended as the exit timeout was over
        self._ended: deque[Call] = deque(maxlen=_REMEMBERED)
        self._sequences: dict[tuple[str, int | str], _Sequence] = {}
        self._unloads: dict[int, Fault] = {}  # by the number of the call
        self._overdue: dict[int, bool] = {}
        # Of each model: inferences that began, and those that the server has ended for sure.
        self._begun: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._gone_at_begin: dict[int, int] = {}
        self.regions = RegionBook(now, self._find)

    # Faults

    def fault(self, cause: Cause, model: str = "") -> Fault:
        """Something is done to the server now; `over` says when it is as before."""
        fault = Fault(cause, model, self._now())
        self.faults.append(fault)
        self._recent = [each for each in self._recent if not self._is_past(each)]
        self._recent.append(fault)
        if cause in (Cause.SERVER_KILLED, Cause.SERVER_STOPPING, Cause.MODEL_RELOADED):
            self.account.forget(model)
        if cause in (Cause.SERVER_KILLED, Cause.SERVER_STOPPING):
            self.regions.forget()
        return fault

    def over(self, fault: Fault) -> None:
        fault.ended_s = self._now()

    def _is_past(self, fault: Fault) -> bool:
        return fault.ended_s is not None and fault.ended_s < self._now() - _REMEMBERED_S

    def _causes(self, call: Call, began_s: float | None = None) -> list[Cause]:
        """The faults that may have concerned a call, or what began before it."""
        outcome = call.outcome
        begin = began_s
        if begin is None:
            begin = outcome.began_s if outcome.began_s is not None else outcome.submitted_s
        end = outcome.ended_s if outcome.ended_s is not None else self._now()
        concerned = (call.model, *models.INNER_CALLS.get(call.model, ()))
        return [
            fault.cause
            for fault in self._recent
            if (begin is None or fault.ended_s is None or fault.ended_s >= begin)
            and fault.began_s <= end
            and (not fault.model or not call.model or fault.model in concerned)
        ]

    # What sessions tell

    def prepare(self, call: Call, world: Any) -> None:
        self.regions.act(call.acts, world.memory)

    def begin(self, call: Call) -> None:
        self.open[call.number] = call
        if call.places or call.kind in REGION_KINDS:
            self.regions.begin(call)
        self.account.began(call)
        if call.kind in INFERENCES:
            self._begun[call.model] = self._begun.get(call.model, 0) + 1
            self._gone_at_begin[call.number] = self._gone.get(call.model, 0)
        if call.sequence is not None:
            self._begin_step(call)
        if call.kind is Kind.UNLOAD:
            self._unloads[call.number] = self.fault(Cause.MODEL_UNLOADED, call.model)
            self.account.forget(call.model)
        elif call.kind is Kind.LOAD:
            call.memory = self.fault(Cause.MODEL_RELOADED, call.model)

    def finish(self, call: Call) -> None:
        outcome = call.outcome
        if self.open.pop(call.number, None) is None:
            self._find(f"a call ended that was not open, for the {outcome.ends}. time", call)
            return
        if outcome.ends != 1:
            self._find(f"a call ended {outcome.ends} times", call)
        self._overdue.pop(call.number, None)
        found = len(self.findings)
        uses_regions = bool(call.places) or call.kind in REGION_KINDS
        if uses_regions:
            self.regions.end(call)
        self._judge(call)
        if uses_regions:
            self.regions.close(call)
        self.account.ended(call)
        if call.sequence is not None:
            call.memory.last_s = self._now()
            call.memory.ended_began_s = outcome.began_s or 0.0
        if outcome.overtook:
            self._check_order(call)
        if call.kind in INFERENCES:
            del self._gone_at_begin[call.number]
            if outcome.end in (End.ANSWERED, End.ERROR):
                self._gone[call.model] = self._gone.get(call.model, 0) + 1
        if len(self.findings) == found:
            self._check_limits(call)
            self._check_wait(call)
        self._ended.append(call)

    def violate(self, sentence: str, call: Call | None) -> None:
        self._find(f"the protocol does not allow what came: {sentence}", call)

    # What its owner asks

    def check_waiting(self) -> None:
        """Find calls that have waited for too long, each once."""
        for call in self.open.values():
            if call.number not in self._overdue and self._overdue_s(call, self._now()) > 0:
                self._overdue[call.number] = True
                self._find("a call still waits, longer than its bound", call)

    def close(self) -> None:
        """The run is over: whatever is open was forgotten by the server."""
        for call in self.open.values():
            self._find("a call never ended", call)

    def check_memory(self) -> None:
        """Look at all shared memory of clients, when nothing is under way."""
        self.regions.check_all()

    def compare(self, statistics: Any = None, metrics: str = "") -> None:
        """Compare the account with what the server says when nothing is under way.

        Args:
            statistics: the document of `/v2/models/stats`.
            metrics: the text of the page of metrics.
        """
        for sentence in self.account.compare(statistics, metrics):
            self._find(sentence, None)

    # Judging

    def _find(self, sentence: str, call: Call | None) -> None:
        self.findings.append(Finding(sentence, call, self._now()))

    def _judge(self, call: Call) -> None:
        kind = call.kind
        end = call.outcome.end
        if call.sequence is not None and end is not End.ANSWERED:
            call.memory.failures += 1
        if end is End.BROKEN:
            return  # the violation is a finding already, or that of a neighbour
        if kind is Kind.INVALID:
            if end is End.ANSWERED:
                self._find("a call that makes no sense was answered", call)
        elif end in (End.LOST, End.RESET, End.UNSENT):
            self._judge_loss(call)
        elif kind in INFERENCES:
            self._judge_inference(call)
        else:
            self._judge_management(call)

    def _judge_loss(self, call: Call) -> None:
        causes = self._causes(call)
        is_own = call.conduct.cut is Cut.HALF and call.conduct.is_rude
        if not is_own and not any(cause in _CUTS_CONNECTIONS for cause in causes):
            self._find("nothing explains why the connection or the stream was lost", call)
        if call.kind in INFERENCES and call.outcome.end is not End.UNSENT:
            self._check_responses(call, whole=False)
            if not is_own and self._should_be_finished(call):
                self._find("a call was lost that was under way when the server was stopped", call)

    def _should_be_finished(self, call: Call) -> bool:
        """Whether nothing but a stop of the server, which came later, explains its end."""
        sent_s, under_way_s = call.outcome.sent_s, self.bounds.under_way_s
        if under_way_s is None or sent_s is None or not call.waits:
            return False  # what waits for others on its connection may not have been read
        end_s = call.outcome.ended_s or self._now()
        concerned = (call.model, *models.INNER_CALLS.get(call.model, ()))
        faults = [
            fault
            for fault in self._recent
            if (fault.ended_s is None or fault.ended_s >= sent_s - _REMEMBERED_CALLS_S)
            and fault.began_s <= end_s
            and (not fault.model or fault.model in concerned)
        ]
        if not faults or any(
            fault.cause is not Cause.SERVER_STOPPING or sent_s >= fault.began_s - under_way_s
            for fault in faults
        ):
            return False
        return not self._was_given_up(call)

    def _was_given_up(self, call: Call) -> bool:
        """Whether a stopping server could not wait any longer for what was under way."""
        timeout_s = self.bounds.exit_timeout_s - EARLY_S
        end_s = call.outcome.ended_s or self._now()
        was_given_up = any(
            fault.began_s <= end_s - timeout_s
            and call.work_s + self.work_after_s(fault.began_s) > timeout_s
            for fault in self._recent
            if fault.cause is Cause.SERVER_STOPPING
        )
        self.has_given_up |= was_given_up
        return was_given_up

    def work_after_s(self, time_s: float) -> float:
        """What the calls that were under way at a time may have left to do, at most."""
        calls = (*self.open.values(), *self._ended)
        return sum(
            call.work_s + call.conduct.read_pause_s
            for call in calls
            if call.outcome.ended_s is None or call.outcome.ended_s + call.work_s > time_s
        )

    def _judge_inference(self, call: Call) -> None:
        end = call.outcome.end
        if end is End.ANSWERED:
            if call.places and self.regions.is_answer_wrong(call):
                self._find("a call was answered whose tensors are nowhere", call)
            if self.regions.is_disturbed(call):
                return
            expected = models.failure_of(call)
            if expected:
                self._find(f"expected the error {expected!r}, but the call was answered", call)
            else:
                self._check_responses(call, whole=True)
            return
        self._check_responses(call, whole=False)
        if end is End.ERROR and not self._is_explained(call):
            causes = ", ".join(cause.value for cause in self._causes(call)) or "there was no fault"
            self._find(f"nothing explains the error {call.outcome.error!r} ({causes})", call)
        elif end is End.ERROR and self._is_refused(call):
            self._find("a call was refused that was under way when the server was stopped", call)

    def _is_refused(self, call: Call) -> bool:
        """Whether a stop of the server, which should have finished it, explains its error."""
        outcome = call.outcome
        status = None if outcome.status == 200 and call.port is Port.HTTP else outcome.status
        return not (
            self._explains_itself(call, status)
            or (call.sequence is not None and self._sequence_explains(call, status))
            or (bool(call.places) and self._region_explains(call, status))
        ) and self._should_be_finished(call)

    def _is_explained(self, call: Call) -> bool:
        """Whether the call itself, or a fault, explains its error."""
        outcome = call.outcome
        status = outcome.status
        if status is None or (status == 200 and call.port is Port.HTTP):
            status = None  # an error in the middle of a stream has no status of its own
        return (
            self._explains_itself(call, status)
            or (call.sequence is not None and self._sequence_explains(call, status))
            or self._fault_explains(call, status)
            or (bool(call.places) and self._region_explains(call, status))
            or (status in (None, 500, 13) and self._was_given_up(call))
        )

    def _region_explains(self, call: Call, status: int | None) -> bool:
        """Whether its places in shared memory explain the error of a call."""
        if self.regions.explains(call, status):
            return True
        # A front end that had no descriptor for a region does without it.
        since = self.regions.is_lost(call)
        return since is not None and Cause.EXHAUSTED in self._causes(call, since)

    def _explains_itself(self, call: Call, status: int | None) -> bool:
        outcome = call.outcome
        waited_s = (outcome.ended_s or 0.0) - (outcome.began_s or 0.0)
        own = models.failure_of(call)
        if own and own in outcome.error:
            return status in (None, 500, 13)
        if _QUEUE_FULL in outcome.error:
            return status in (None, 503, 429, 14) and self._may_be_full(call)
        if outcome.error.endswith(_QUEUE_TIMEOUT):
            limit_us = min(filter(None, (call.timeout_us, _default_timeout_us(call))), default=0)
            return status in (None, 503, 14) and 0 < limit_us <= (waited_s + EARLY_S) * 1e6
        if status == 4 and call.port is Port.GRPC:
            return call.deadline_s is not None and waited_s >= call.deadline_s - EARLY_S
        return False

    def _fault_explains(self, call: Call, status: int | None) -> bool:
        column = 0 if call.port is Port.HTTP else 1
        causes = self._causes(call)
        if call.model in models.INNER_CALLS and Cause.MODEL_UNLOADED in causes:
            return status in (None, 400, 404, 500, 503, 3, 5, 13, 14)  # of the model that it calls
        return any(
            cause in _EXPLAINED and (status is None or status in _EXPLAINED[cause][column])
            for cause in causes
        )

    def _may_be_full(self, call: Call) -> bool:
        """Whether so many others were under way with this call as its queue has places."""
        if call.model != "slow":
            return False
        others = self._begun[call.model] - self._gone_at_begin[call.number] - 1
        return others >= models.SLOW_QUEUE_SIZE

    def _check_order(self, call: Call) -> None:
        """On a stream, models that answer once do so in the order of the requests."""
        overtaken = [
            str(each.number)
            for each in call.outcome.overtook
            if each.model not in models.DECOUPLED_MODELS
        ]
        if overtaken and call.model not in models.DECOUPLED_MODELS:
            self._find(f"a call ended before those that were sent before it: {overtaken}", call)

    def _check_limits(self, call: Call) -> None:
        """Find a call that the server should have ended at its deadline or queue timeout."""
        outcome = call.outcome
        limit_s = call.deadline_s
        if outcome.error.endswith(_QUEUE_TIMEOUT):
            limits_us = filter(None, (call.timeout_us, _default_timeout_us(call)))
            limit_s = min(limits_us, default=0) / 1e6
        if limit_s is None or outcome.ended_s is None or outcome.sent_s is None:
            return
        if outcome.read_on_s is not None and outcome.read_on_s > outcome.sent_s:
            return  # its client did not read meanwhile
        late_s = outcome.ended_s - self._taken_up_s(call, outcome.sent_s) - limit_s
        if late_s > self.bounds.late_s and not self._causes(call):
            self._find(f"a call ended {late_s:.3f} s after its deadline or queue timeout", call)

    def _taken_up_s(self, call: Call, sent_s: float) -> float:
        """When the server could begin with a call: HTTP/1.1 has one after the other."""
        if call.port is Port.HTTP and not call.waits:
            for each in reversed(self._ended):
                if each.number == call.number - 1:
                    return max(sent_s, each.outcome.ended_s or 0.0)
        return sent_s

    def _check_wait(self, call: Call) -> None:
        ended_s = call.outcome.ended_s
        if call.outcome.end in (End.ANSWERED, End.ERROR) and ended_s is not None:
            late_s = self._overdue_s(call, ended_s)
            if late_s > 0:
                self._find(f"a call took {late_s:.3f} s longer than its bound", call)

    def _overdue_s(self, call: Call, now: float) -> float:
        """By how much the wait of a call exceeds its bound."""
        outcome = call.outcome
        begin = outcome.sent_s if outcome.sent_s is not None else outcome.began_s
        if begin is None:
            begin = outcome.submitted_s if outcome.submitted_s is not None else now
        bounds = self.bounds
        if call.kind in INFERENCES:
            bound = bounds.answer_s + call.work_s + bounds.gap_s * (call.stream_length > 1)
            bound += bounds.sequence_s * (call.sequence is not None)
        elif call.kind in (Kind.LOAD, Kind.UNLOAD):
            bound = bounds.management_s
        elif call.kind is Kind.INVALID:
            bound = bounds.refusal_s
        else:
            bound = bounds.health_s
        bound += call.conduct.read_pause_s
        if outcome.sent_s is None and call.conduct.piece_bytes:
            bound += bounds.fault_s  # it is the client that takes its time
        late_s = now - begin - bound
        if late_s > 0 and self._causes(call):
            late_s -= bounds.fault_s
        return late_s

    # Values

    def _check_responses(self, call: Call, *, whole: bool) -> None:
        """Compare responses with those that are right; all of them, or the first ones."""
        if call.sequence is not None:
            self._check_step(call, whole=whole)
            return
        if call.model not in models.ANSWERS:
            if call.outcome.responses:
                self._find("a model answered that nobody knows", call)
            return
        expected = [] if models.failure_of(call) else models.ANSWERS[call.model](call)
        if call.kind in OPENAI_KINDS:
            self._check_chat(call, expected, whole=whole)
            return
        responses = call.outcome.responses
        if len(responses) > len(expected) or (whole and len(responses) < len(expected)):
            self._find(f"expected {len(expected)} responses, got {len(responses)}", call)
        for index, (response, right) in enumerate(zip(responses, expected, strict=False)):
            if response.id != call.id:
                self._find(f"response {index} has the id {response.id!r}", call)
            if not _is_right(response, right, call):
                self._find_wrong(call, index, response, right)

    def _find_wrong(self, call: Call, index: int, response: Any, right: Any) -> None:
        got = response.document if response.document is not None else response.outputs
        sentence = f"response {index} is {_short(got)}, expected {_short(right)}"
        for other in (*self.open.values(), *self._ended):
            if other is call or other.model not in models.ANSWERS or other.kind not in INFERENCES:
                continue
            if response.outputs and response.outputs in models.ANSWERS[other.model](other):
                sentence += f"; it is the answer to call {other.number}"
                break
        self._find(sentence, call)

    def _check_chat(self, call: Call, expected: Any, *, whole: bool) -> None:
        right = "".join(each[0].values()[0].decode() for each in expected)
        try:
            text, reason = _chat_text(call)
        except (KeyError, IndexError, TypeError) as error:
            self._find(f"an answer is not that of a chat ({error!r})", call)
            return
        if whole and (text != right or reason != "stop"):
            self._find(f"the chat is {text!r} and ends with {reason!r}, expected {right!r}", call)
        elif not right.startswith(text):
            self._find(f"the chat begins with {text!r}, expected {right!r}", call)

    # Sequences

    def _begin_step(self, call: Call) -> None:
        step = call.sequence
        assert step is not None
        key = (call.model, step.id)
        known = self._sequences.get(key)
        if step.is_start or known is None:
            known = self._sequences[key] = _Sequence(self._now())
            known.failures = int(not step.is_start)
        if call.conduct.is_rude or call.deadline_s is not None or call.timeout_us:
            known.is_fragile = True
        call.memory = known

    def _sequence_explains(self, call: Call, status: int | None) -> bool:
        known: _Sequence = call.memory
        if status is not None and status not in _SEQUENCE_STATUSES:
            return False
        idle_s = (call.outcome.began_s or 0.0) - known.last_s
        # To the server, the sequence was idle for longer: what crosses the network takes time.
        if _MISSING_START in call.outcome.error and idle_s * 2e6 >= models.SEQUENCE_IDLE_US:
            return True
        if known.failures > 1 or known.is_fragile:
            return True  # not this step alone: what comes after one that was cancelled ends, too
        return any(cause in _ENDS_SEQUENCES for cause in self._causes(call, known.began_s))

    def _check_step(self, call: Call, *, whole: bool) -> None:
        known: _Sequence = call.memory
        step = call.sequence
        assert step is not None
        responses = call.outcome.responses
        if len(responses) != 1:
            if whole or responses:
                self._find(f"expected one response, got {len(responses)}", call)
            return
        (response,) = responses
        values = {each.name: each.values() for each in response.outputs}
        key = step.id.encode() if isinstance(step.id, str) else step.id
        if response.id != call.id or values.get("ID") != [key]:
            self._find(f"the answer has the id {response.id!r} and {values!r}", call)
            return
        (total,) = values["OUT"]
        index = step.index
        before = sum(1 << each for each in known.sums if each < index)
        is_late = [
            each for each, other in known.sums.items() if each > index and not other >> index & 1
        ]
        if total < 0 or total >> index != 1 or total & before != before or is_late:
            done = sorted(known.sums)
            self._find(
                f"step {index} has the sum {total:#b}, after answers to the steps {done}; "
                f"steps without it: {is_late}",
                call,
            )
        elif not known.failures and total != (2 << index) - 1 and not self._has_open_steps(known):
            self._find(f"step {index} has the sum {total:#b}, so steps before it are missing", call)
        known.sums[index] = total
        if step.is_end and not self._has_open_steps(known):
            self._sequences.pop((call.model, step.id), None)

    def _has_open_steps(self, known: _Sequence) -> bool:
        return any(each.memory is known for each in self.open.values())

    # Management

    def _judge_management(self, call: Call) -> None:
        outcome = call.outcome
        kind = call.kind
        if outcome.end in (End.CUT, End.CANCELLED):
            return
        if kind is Kind.LOAD:
            self._judge_load(call)
        elif kind is Kind.UNLOAD:
            if outcome.end is End.ERROR and not self._causes_without(call, Cause.MODEL_UNLOADED):
                self._find(f"an unload failed: {outcome.error!r}", call)
        elif kind in (Kind.READY, Kind.MODEL_READY):
            self._judge_ready(call)
        elif kind in REGION_KINDS:
            self._judge_regions(call)
        elif outcome.end is not End.ANSWERED and not self._causes(call):
            self._find(f"nothing explains the error {outcome.error!r}", call)

    def _judge_regions(self, call: Call) -> None:
        sentence = self.regions.judge(call)
        outcome = call.outcome
        # A front end may do without a region since there was no descriptor for it.
        began_s = 0.0 if call.kind is Kind.REGIONS else None
        is_explained = Cause.EXHAUSTED in self._causes(call, began_s) or (
            outcome.end is End.ERROR and self._fault_explains(call, outcome.status)
        )
        if sentence and not is_explained:
            self._find(sentence, call)

    def _causes_without(self, call: Call, own: Cause) -> list[Cause]:
        return [cause for cause in self._causes(call) if cause is not own]

    def _judge_load(self, call: Call) -> None:
        outcome = call.outcome
        self.over(call.memory)
        if outcome.end is End.ANSWERED:
            for number, fault in list(self._unloads.items()):
                # An unload that was under way with this load may have been done after it.
                if fault.model == call.model and number not in self.open:
                    ended_s = fault.began_s if fault.ended_s is None else fault.ended_s
                    if ended_s <= (outcome.began_s or 0.0) and self._unload_ended(number, call):
                        self.over(fault)
                        del self._unloads[number]
        elif not self._causes_without(call, Cause.MODEL_RELOADED):
            self._find(f"a load failed: {outcome.error!r}", call)

    def _unload_ended(self, number: int, load: Call) -> bool:
        """Whether the call of an unload had ended before a load began."""
        for call in reversed(self._ended):
            if call.number == number:
                return (call.outcome.ended_s or 0.0) <= (load.outcome.began_s or 0.0)
        return True

    def _judge_ready(self, call: Call) -> None:
        outcome = call.outcome
        if outcome.end is End.ANSWERED:
            document = outcome.responses[0].document
            if document is None or document.ready:  # HTTP says it by the status alone
                return
        causes = self._causes(call)
        if not causes:
            self._find(f"nothing explains that it is not ready: {outcome.error!r}", call)


def _is_right(response: Response, right: tuple[TensorData, ...], call: Call) -> bool:
    # An ensemble says of which sequence it is, as Triton's do, also if of none.
    more = _NO_SEQUENCE if call.model in models.ENSEMBLES else {}
    if response.document is not None:
        return bool(response.document == _flat(right, call.model) | {"id": call.id} | more)
    parameters = {
        name: value
        for name, value in response.parameters.items()
        if name != "triton_final_response"  # the client has looked at it
    }
    return (
        response.outputs == right
        and response.model == call.model
        and response.version == "1"
        and parameters == more
    )


def _default_timeout_us(call: Call) -> int:
    return models.SLOW_TIMEOUT_US if call.model == "slow" else 0


def _flat(outputs: tuple[TensorData, ...], model: str) -> dict[str, Any]:
    """A response of `generate`, without its id."""
    document: dict[str, Any] = {"model_name": model, "model_version": "1"}
    for each in outputs:
        values = [v.decode() if isinstance(v, bytes) else v for v in each.values()]
        document[each.name] = values[0] if len(values) == 1 else values
    return document


def _elements(tensor: TensorData) -> Any:
    """The first elements of a tensor; of what is none, the first bytes."""
    try:
        return tensor.values()[:8]
    except (ValueError, struct.error):
        return tensor.raw[:64]


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        value = [(each.name, each.shape, _elements(each)) for each in value]
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "…"


def _chat_text(call: Call) -> tuple[str, str | None]:
    """The text of a chat, and the reason of its end; raises if it is something else."""
    text, reason = "", None
    for response in call.outcome.responses:
        (choice,) = response.document["choices"]
        if reason is not None:
            raise KeyError("a chunk after the reason of the end")
        if call.kind in (Kind.COMPLETION, Kind.COMPLETION_STREAM):
            text += choice["text"]
        else:
            part = choice["delta"] if call.kind is Kind.CHAT_STREAM else choice["message"]
            text += part.get("content") or ""
        reason = choice["finish_reason"]
    return text, reason
