# SPDX-License-Identifier: Apache-2.0
"""Schedules requests that belong to sequences: in order, one at a time, on one instance.

It has the known sequences, the backlog of those that wait for a slot, and the end of idle ones. A
strategy (`strategies`) has the slots of an instance and decides which of them run together.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError, UnavailableError
from pytriton.base.messages import InferRequest
from pytriton.base.model_spec import ModelSpec, SequenceControlKind
from pytriton.runtime.executor.inference import (
    CLOSED_SINK,
    Inference,
    Instance,
    Outcome,
    RunningBatch,
)
from pytriton.serving.engine.request_queue import add_each
from pytriton.serving.engine.scheduling import (
    NOT_ITERATIVE,
    Decision,
    Dispatch,
    QueueRefusal,
    refuse_each,
)
from pytriton.serving.engine.sequence.live_sequence import (
    Backlog,
    InstanceSlots,
    LiveSequence,
    SequencePhase,
    best_slots,
)
from pytriton.serving.engine.stats import FailureReason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pytriton.serving.engine.fairness import FairShares
    from pytriton.serving.engine.sequence.sequence_inputs import SequenceInputs

logger = logging.getLogger(__name__)

# Flags of a request.
START = 1
END = 2

_EXPIRED = "timeout of the corresponding sequence has been expired"

_BACKLOG = SequencePhase.BACKLOG
_IDLE = SequencePhase.IDLE
_READY = SequencePhase.READY
_RUNNING = SequencePhase.RUNNING
_ENDED = SequencePhase.ENDED


class SequenceScheduler:
    """Gives sequences slots of instances, and executes the requests of each one after the other."""

    def __init__(
        self,
        spec: ModelSpec,
        inputs: SequenceInputs,
        make_slots: Callable[[Instance], InstanceSlots],
    ) -> None:
        assert spec.sequence is not None, f"model {spec.name} has no sequences"
        self._name = spec.name
        self._is_batched = spec.max_batch_size > 0
        self._inputs = inputs
        self._no_states = inputs.new_states()  # of sequences whose first request is not ready
        self._make_slots = make_slots
        settings = spec.sequence
        self._adds_inputs = bool(settings.controls or settings.states)
        self._reads_answers = bool(settings.states or settings.generates_ids)
        self._max_queue_size = settings.max_queue_size
        self._generates_ids = settings.generates_ids
        ids = itertools.count(1)
        has_text_ids = any(
            control.kind is SequenceControlKind.CORRID and control.dtype is dtypes.BYTES
            for control in settings.controls
        )
        self._new_ids: Iterator[int | str] = map(str, ids) if has_text_ids else ids
        self._idle_ns = 1000 * settings.idle_us
        self._slots: dict[Instance, InstanceSlots] = {}
        self._open_slots: dict[Instance, InstanceSlots] = {}  # those that take new sequences
        self._open: dict[int | str, LiveSequence] = {}  # those that take more requests, by id
        self._owners: dict[Inference, LiveSequence] = {}  # of waiting and running requests
        self._backlog = Backlog()
        # With the times at which they end, which are in order as all sequences may idle as long.
        self._idle: OrderedDict[LiveSequence, int] = OrderedDict()
        self._waiting_count = 0

    # Instances

    def add_instance(self, instance: Instance) -> None:
        """Use the slots of another instance; `next` fills them from the backlog."""
        self._slots[instance] = self._open_slots[instance] = self._make_slots(instance)

    def retire_instance(self, instance: Instance) -> None:
        """Give an instance no new sequences; those that it has go on."""
        self._open_slots.pop(instance, None)

    def holds(self, instance: Instance) -> bool:
        slots = self._slots.get(instance)
        return slots is not None and any(slots.sequences)

    def remove_instance(self, instance: Instance) -> list[QueueRefusal]:
        """End the sequences of an instance; returns their waiting requests."""
        self.retire_instance(instance)
        slots = self._slots.pop(instance, None)
        refusals: list[QueueRefusal] = []
        for sequence in list(slots.sequences) if slots is not None else ():
            error = UnavailableError(
                f"sequence {sequence.id} of model '{self._name}' has ended because its instance "
                f"'{instance.name}' is gone"
            )
            refusals += refuse_each(self._abort(sequence), error, FailureReason.OTHER)
        return refusals

    # Requests

    def share(self, shares: FairShares | None) -> None:
        """Let principals take turns at the slots that become free.

        A sequence that has a slot keeps it until it ends, and its requests keep their order.
        """
        self._backlog.share(shares)

    def add(self, inference: Inference, now_ns: int) -> None:
        """Queue a request of a sequence that is known, or that it starts."""
        request = inference.request
        if request.rows > 1:
            raise InvalidArgumentError(
                f"inference request to model '{self._name}' must specify batch-size 1 due to "
                "requirements of sequence batcher"
            )
        sequence = self._open.get(request.fields.correlation_id)
        if sequence is None:
            sequence = self._begin(request)
        elif request.fields.flags & START:
            self._warn_of_restart(sequence)
        inference.queued_ns = now_ns
        self._owners[inference] = sequence
        sequence.waiting.append(inference)
        self._waiting_count += 1
        if request.fields.flags & END:
            self._close(sequence)
        state = sequence.state
        if state is _IDLE:
            self._idle.pop(sequence, None)  # a new one is not there
            self._make_ready(sequence)
        elif state is _BACKLOG and request.fields.timeout_us:
            self._backlog.limit(sequence, inference, now_ns)

    def add_all(self, inferences: Sequence[Inference], now_ns: int) -> dict[Inference, ServerError]:
        """Queue requests like `add`; returns those that were refused, each with its error."""
        return add_each(self.add, inferences, now_ns)

    def remove(self, inference: Inference) -> Sequence[Inference]:
        """Remove a cancelled request and those behind it; its sequence ends with those before."""
        sequence = self._owners.get(inference)
        if sequence is None or sequence.running is inference:
            return ()
        if sequence.state is _BACKLOG or sequence.waiting[0] is inference:
            return self._abort(sequence)
        self._close(sequence)
        return self._forget_waiting(sequence, inference)

    def expire(self, now_ns: int) -> list[QueueRefusal]:
        """End idle sequences, and those in the backlog whose timeout is over."""
        self._end_idle(now_ns)
        refusals: list[QueueRefusal] = []
        for inference in self._backlog.pop_expired(now_ns):
            sequence = self._owners.get(inference)
            if sequence is not None:  # not removed together with another one
                error = UnavailableError(_EXPIRED)
                refusals += refuse_each(self._abort(sequence), error, FailureReason.REJECTED)
        return refusals

    def next_deadline_ns(self) -> int:
        """Returns the time at which to call `expire`; 0: never."""
        idle_ns = next(iter(self._idle.values())) if self._idle else 0
        backlog_ns = self._backlog.earliest_ns()
        return min(idle_ns, backlog_ns) if idle_ns and backlog_ns else idle_ns or backlog_ns

    def take_all(self) -> list[Inference]:
        """End all sequences, and return all waiting requests."""
        removed: list[Inference] = []
        for sequence in dict.fromkeys((*self._owners.values(), *self._open.values())):
            removed += self._abort(sequence)
        return sorted(removed, key=lambda inference: inference.queued_ns)

    def check_integrity(self) -> None:
        """Check that each sequence is in one place, which fits its phase and its requests."""
        in_slots = [each for slots in self._slots.values() for each in slots.sequences]
        known = dict.fromkeys(
            (*self._owners.values(), *self._open.values(), *self._backlog.sequences, *in_slots)
        )
        for slots in self._slots.values():
            slots.check_integrity()
        assert len(set(in_slots)) == len(in_slots), "a sequence has two slots"
        requests: dict[Inference, LiveSequence] = {}
        for sequence in known:
            self._check_sequence(sequence)
            for inference in (*sequence.waiting, sequence.running):
                if inference is not None:
                    assert inference not in requests, f"{inference} is in two places"
                    requests[inference] = sequence
        assert requests == self._owners, "owners are not those of the waiting and running requests"
        waiting = sum(len(sequence.waiting) for sequence in known)
        assert self._waiting_count == waiting, f"{self} counts other than {waiting} requests"
        idle_ns = list(self._idle.values())
        assert idle_ns == sorted(idle_ns), "idle sequences are not in the order of their ends"

    def _check_sequence(self, sequence: LiveSequence) -> None:
        phase = sequence.state
        is_open = self._open.get(sequence.id) is sequence
        assert is_open is not sequence.is_closed, f"{sequence} takes requests although it is closed"
        assert (sequence in self._backlog.sequences) is (phase is _BACKLOG), f"{sequence}: backlog"
        assert (sequence in self._idle) is (phase is _IDLE), f"{sequence}: idle sequences"
        assert (sequence.running is not None) is (phase is _RUNNING), f"{sequence}: running"
        assert (sequence.slots is None) is (phase is _BACKLOG), f"{sequence}: slot"
        if phase in (_BACKLOG, _READY):
            assert sequence.waiting, f"{sequence} has no request"
        elif phase is _IDLE:
            assert not sequence.waiting, f"{sequence} waits although it could run"

    def __len__(self) -> int:
        return self._waiting_count

    def __repr__(self) -> str:
        return (
            f"<SequenceScheduler {self._waiting_count} waiting, {len(self._open)} open sequences, "
            f"{len(self._backlog)} in the backlog, {len(self._idle)} idle>"
        )

    # Executions

    def next(self, now_ns: int, free: Collection[Instance]) -> Decision:
        """Fill free slots, then give a batch to the first instance that has one."""
        if self._idle:
            self._end_idle(now_ns)
        if self._backlog:
            self._fill_slots(free)
        wake_ns = 0
        for instance in free:
            choice = self._slots[instance].next(now_ns)
            if isinstance(choice, list):
                return self._dispatch(instance, choice)
            if choice and (not wake_ns or choice < wake_ns):
                wake_ns = choice
        return wake_ns or None

    def finished(self, batch: RunningBatch, outcomes: list[Outcome], now_ns: int) -> list[Outcome]:
        """Keep the states in responses, and let sequences go on; drops answers to null requests."""
        inferences = batch.inferences
        passed_on = []
        for outcome in outcomes:
            sequence = self._owners.get(inferences[outcome.position])
            if sequence is None:
                batch.null_rows += 1
                continue
            error = None
            if self._reads_answers or outcome.is_rescheduled:
                error = self._keep_states(sequence, outcome)
            passed_on.append(outcome if error is None else _failed(outcome, error))
            if outcome.is_final:
                del self._owners[inferences[outcome.position]]
                self._go_on(sequence, now_ns)
        if batch.answered:
            batch.null_rows += len(inferences) - len(outcomes)  # less those of the runs
        for run in batch.answered:
            batch.null_rows -= run.count
            for inference in inferences[run.position : run.position + run.count]:
                self._go_on(self._owners.pop(inference), now_ns)
        batch.is_rescheduled = False  # those that asked for it have failed: none is queued again
        return passed_on

    def _dispatch(self, instance: Instance, choice: Sequence[Inference | None]) -> Dispatch:
        inferences = [inference for inference in choice if inference is not None]
        for inference in inferences:
            sequence = self._owners[inference]
            sequence.waiting.popleft()
            sequence.running = inference
            sequence.state = _RUNNING
            request = inference.request
            flags = request.fields.flags
            if self._adds_inputs:
                self._inputs.add(
                    request, sequence.states, is_start=bool(flags & START), is_end=bool(flags & END)
                )
        self._waiting_count -= len(inferences)
        null_count = len(choice) - len(inferences)
        if null_count:
            # One null request for all empty slots: its answers are dropped.
            null = Inference(self._null_request(inferences[0]), CLOSED_SINK)
            inferences = [null if inference is None else inference for inference in choice]
        return Dispatch(instance, inferences, null_count)

    def _null_request(self, like: Inference) -> InferRequest:
        null = self._inputs.null_request(like.request)
        if like.chunk is not None:  # most of its inputs are in the columns of its chunk
            for column in like.chunk.signature.inputs:
                zeros = bytes(column.row_bytes)
                null.inputs[column.name] = column.with_data(1, zeros, is_batched=self._is_batched)
        return null

    def _keep_states(self, sequence: LiveSequence, outcome: Outcome) -> ServerError | None:
        """Take the states out of a response; returns an error that replaces the response."""
        if outcome.is_rescheduled:
            return InternalError(NOT_ITERATIVE)
        response = outcome.response
        if response is None:
            return None
        try:
            self._inputs.take(sequence.states, response)
        except ServerError as error:
            return error
        if sequence.has_generated_id:
            response.parameters = {**(response.parameters or {}), "sequence_id": sequence.id}
        return None

    def _go_on(self, sequence: LiveSequence, now_ns: int) -> None:
        """Do what follows on the last response to a request of a sequence."""
        sequence.running = None
        if sequence.waiting:
            self._make_ready(sequence)
        elif sequence.is_closed:
            self._end(sequence)
        else:
            sequence.state = _IDLE
            self._idle[sequence] = now_ns + self._idle_ns

    # Sequences

    def _begin(self, request: InferRequest) -> LiveSequence:
        """Start the sequence of a request, in a slot or in the backlog."""
        is_generated = self._admit(request)
        # The backlog is first.
        slots = None if self._backlog else best_slots(self._open_slots.values())
        if slots is None and 0 < self._max_queue_size <= len(self._backlog):
            request_id = request.fields.id or "<id_unknown>"
            raise UnavailableError(f"[request id: {request_id}] Exceeds maximum queue size")
        state = _BACKLOG if slots is None else _IDLE
        sequence = LiveSequence(request.fields.correlation_id, state, self._no_states)
        sequence.has_generated_id = is_generated
        sequence.principal = request.fields.principal
        self._open[sequence.id] = sequence
        if slots is None:
            self._backlog.append(sequence)
        else:
            self._enter(sequence, slots)
        return sequence

    def _admit(self, request: InferRequest) -> bool:
        """Check that a request may start a sequence; returns whether it got an id that is new.

        The errors of a request of a sequence that is not known have Triton's words.
        """
        if request.fields.correlation_id:
            if not request.fields.flags & START:
                raise InvalidArgumentError(
                    f"inference request for sequence {request.fields.correlation_id} to model "
                    f"'{self._name}' must specify the START flag on the first request of "
                    "the sequence"
                )
            return False
        if not self._generates_ids:
            raise InvalidArgumentError(
                f"inference request to model '{self._name}' must specify a non-zero or "
                "non-empty correlation ID"
            )
        fields = request.fields
        number = next(each for each in self._new_ids if each not in self._open)
        request.fields = fields.changed(correlation_id=number, flags=fields.flags | START)
        return True

    def _enter(self, sequence: LiveSequence, slots: InstanceSlots) -> None:
        slots.take(sequence)
        sequence.slots = slots

    def _fill_slots(self, free: Iterable[Instance]) -> None:
        """Give slots of free instances to sequences of the backlog.

        Other instances are busy anyway; those that are ending must not get more sequences.
        """
        usable = [
            self._open_slots[instance]
            for instance in free
            if instance.free_slots and instance in self._open_slots
        ]
        while self._backlog:
            slots = best_slots(usable)
            if slots is None:
                break
            sequence = self._backlog.pop_first()
            self._enter(sequence, slots)
            self._make_ready(sequence)

    def _make_ready(self, sequence: LiveSequence) -> None:
        assert sequence.slots is not None, "it has no slot"
        request = sequence.waiting[0].request
        if request.fields.flags & START:
            sequence.states = self._inputs.new_states()
        key = sequence.states.key
        if key:  # states with other shapes cannot be in one batch
            request.batch_key = (request.batch_key, key)
        sequence.state = _READY
        sequence.slots.add_ready(sequence)

    def _end_idle(self, now_ns: int) -> None:
        idle = self._idle
        while idle:
            sequence, end_ns = next(iter(idle.items()))
            if now_ns < end_ns:
                break
            self._abort(sequence)

    def _abort(self, sequence: LiveSequence) -> list[Inference]:
        """End a sequence, or let it end with its running request; returns its waiting ones."""
        self._close(sequence)
        state = sequence.state
        if state is _READY and sequence.slots is not None:
            sequence.slots.remove_ready(sequence)
        elif state is _BACKLOG:
            self._backlog.remove(sequence)
        removed = self._forget_waiting(sequence)
        if state is not _RUNNING:
            self._end(sequence)
        return removed

    def _forget_waiting(
        self, sequence: LiveSequence, first: Inference | None = None
    ) -> list[Inference]:
        """Remove and return the waiting requests of a sequence, from `first` on; None: all."""
        waiting = sequence.waiting
        removed: list[Inference] = []
        # From the end: a search from the front would be long for each of many that are cancelled.
        while waiting and (not removed or removed[-1] is not first):
            removed.append(waiting.pop())
        removed.reverse()
        self._waiting_count -= len(removed)
        for inference in removed:
            del self._owners[inference]
        return removed

    def _close(self, sequence: LiveSequence) -> None:
        """Take no more requests for a sequence; the next one of its id starts another."""
        sequence.is_closed = True
        if self._open.get(sequence.id) is sequence:
            del self._open[sequence.id]

    def _end(self, sequence: LiveSequence) -> None:
        sequence.state = _ENDED
        self._idle.pop(sequence, None)
        slots, sequence.slots = sequence.slots, None
        if slots is not None:
            slots.release(sequence)

    def _warn_of_restart(self, sequence: LiveSequence) -> None:
        logger.warning(
            "sequence %s for model '%s' has a conflict. The previous sequence did not end before "
            "this sequence start. Previous sequence will be terminated early.",
            sequence.id,
            self._name,
        )


def _failed(outcome: Outcome, error: ServerError) -> Outcome:
    return Outcome(outcome.position, None, error, outcome.is_final)
