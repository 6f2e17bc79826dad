# SPDX-License-Identifier: Apache-2.0
"""What principals may ask of models: rates, requests under way, and what they have used.

All of it is in the engine's process, so limits hold over all front ends. Decisions are pure: the
caller passes the time. A request that was admitted ends when its sink is told so, whatever the
reason, and `AdmittedRequests` counts there. Who is next when a model has more than it can do is
decided in `pytriton.serving.engine.fairness`.
"""

from __future__ import annotations

import enum
import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pytriton.base.columns import Column
from pytriton.base.errors import ResourceExhaustedError
from pytriton.base.messages import RequestGroup
from pytriton.base.quotas import PrincipalQuotas
from pytriton.serving.engine.delivery import refuse
from pytriton.serving.engine.fairness import ANYBODY
from pytriton.serving.engine.observers import Run, Watch, Watcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.quotas import Quota
    from pytriton.runtime.executor.columns import Chunk
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.costs import TokenUsage
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.engine.stats import ModelStatistics

_EPSILON = 1e-9  # of a request: what floats lose while a bucket is filled
_MAX_GROUPS = 1024  # that are known of a front end: those of which more requests should come


class Limit(enum.Enum):
    """Why a request was refused: the values of the metric's `limit` label."""

    REQUESTS = "requests_per_s"
    BYTES = "bytes_per_s"
    TOKENS = "tokens_per_s"
    CONCURRENT = "concurrent"
    QUEUE = "queue"  # its place in a full queue went to another principal


class Bucket:
    """A token bucket: it fills at a rate up to its burst, and may be in debt."""

    __slots__ = ("_at_ns", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate  # in a second
        self.burst = burst
        self._level = burst
        self._at_ns = 0

    def level(self, now_ns: int) -> float:
        """Returns what is in it; below zero is a debt."""
        elapsed_ns = now_ns - self._at_ns
        if elapsed_ns > 0:
            self._level = min(self.burst, self._level + elapsed_ns * self.rate / 1e9)
            self._at_ns = now_ns
        return self._level

    def spend(self, amount: float) -> None:
        """Take something out, at the time of the last `level`."""
        self._level -= amount

    def wait_s(self, amount: float, now_ns: int) -> float:
        """Returns after how many seconds it has as much; 0 if it has that now."""
        return max(0.0, (amount - self.level(now_ns)) / self.rate)


class QuotaState:
    """One quota of one principal, which all models of its patterns share."""

    __slots__ = ("bytes", "quota", "requests", "tokens", "under_way")

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.under_way = 0
        rate = quota.requests_per_s
        # A burst below one request would never let one pass.
        burst = max(1.0, rate or 0.0) if quota.burst is None else quota.burst
        self.requests = None if rate is None else Bucket(rate, burst)
        self.bytes = _second_of(quota.bytes_per_s)
        self.tokens = _second_of(quota.tokens_per_s)

    def room(self, sizes: Sequence[int], now_ns: int) -> int:
        """Returns how many of these requests may begin, the first ones; `sizes` are their bytes."""
        count = len(sizes)
        if self.requests is not None:
            count = min(count, max(0, math.floor(self.requests.level(now_ns) + _EPSILON)))
        if self.quota.concurrent is not None:
            count = min(count, max(0, self.quota.concurrent - self.under_way))
        if self.tokens is not None and self.tokens.level(now_ns) <= 0:
            count = 0
        if self.bytes is not None:
            # The last one may exceed what is left: one larger than the burst has to pass as well.
            left = self.bytes.level(now_ns)
            for index in range(count):
                if left <= 0:
                    return index
                left -= sizes[index]
        return count

    def begin(self, count: int, size: int) -> None:
        """Count requests that begin, with so many bytes of inputs, right after `room`."""
        self.under_way += count
        if self.requests is not None:
            self.requests.spend(count)
        if self.bytes is not None:
            self.bytes.spend(size)

    def reason(self, size: int, count: int, now_ns: int) -> tuple[float, Limit, str] | None:
        """Returns why requests of `size` bytes may not begin: when they may, and what for whom.

        More than one have to begin together.
        """
        quota = self.quota
        came = "one more came" if count == 1 else f"{count} came together"
        reasons: list[tuple[float, Limit, str]] = []
        if self.requests is not None:
            wait_s = self.requests.wait_s(count - _EPSILON, now_ns)
            text = (
                f"{quota.requests_per_s:g} requests per second, {self.requests.burst:g} at once, "
                f"and {came}"
            )
            reasons.append((wait_s, Limit.REQUESTS, text))
        if self.tokens is not None and (level := self.tokens.level(now_ns)) <= 0:
            text = f"{quota.tokens_per_s:g} tokens per second, and is {-level:.0f} ahead"
            reasons.append((self.tokens.wait_s(_EPSILON, now_ns), Limit.TOKENS, text))
        if self.bytes is not None and (level := self.bytes.level(now_ns)) <= 0:
            text = (
                f"{quota.bytes_per_s:g} bytes of inputs per second, is {-level:.0f} ahead, and "
                f"{size} more came"
            )
            reasons.append((self.bytes.wait_s(_EPSILON, now_ns), Limit.BYTES, text))
        if quota.concurrent is not None and self.under_way + count > quota.concurrent:
            text = f"{quota.concurrent} requests under way, and {came}"
            reasons.append((1.0, Limit.CONCURRENT, text))
        wait_s, limit, text = max(reasons, key=lambda each: each[0], default=(0.0, None, ""))
        return (wait_s, limit, text) if limit is not None and wait_s > 0 else None


def _second_of(rate: float | None) -> Bucket | None:
    return None if rate is None else Bucket(rate, rate)


class Admission:
    """What a request that was admitted has to give back, and where its use is counted."""

    __slots__ = ("_states", "account")

    def __init__(self, account: Account, states: tuple[QuotaState, ...]) -> None:
        self.account = account
        self._states = states

    def end(self, count: int = 1) -> None:
        """Count requests that have ended."""
        self.account.under_way -= count
        for state in self._states:
            state.under_way -= count

    def spend(self, usage: TokenUsage) -> None:
        """Charge the tokens of a request, which are known when it ends."""
        account = self.account
        account.tokens_in += usage.prompt_tokens
        account.tokens_out += usage.completion_tokens
        for state in self._states:
            if state.tokens is not None:
                state.tokens.spend(usage.prompt_tokens + usage.completion_tokens)


class Account:
    """The requests of one principal to one model version, and its limits there."""

    __slots__ = (
        "_admission",
        "_states",
        "bytes_in",
        "bytes_out",
        "principal",
        "queue_ns",
        "refused",
        "requests",
        "tokens_in",
        "tokens_out",
        "under_way",
    )

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.requests = 0  # that were admitted
        self.under_way = 0
        self.refused = dict.fromkeys(Limit, 0)
        self.queue_ns = 0
        self.bytes_in = 0  # of tensors, as the next one
        self.bytes_out = 0
        self.tokens_in = 0  # of OpenAI's routes
        self.tokens_out = 0
        self._states: tuple[QuotaState, ...] = ()
        self._admission = Admission(self, ())

    @property
    def is_used(self) -> bool:
        """Whether a request of the principal has come, or a step of one for an ensemble."""
        return self.requests > 0 or self.queue_ns > 0 or any(self.refused.values())

    def limit(self, states: tuple[QuotaState, ...]) -> None:
        """Apply these quotas from now on; requests under way give back to those before."""
        self._states = states
        self._admission = Admission(self, states)

    def admit(
        self, sizes: Sequence[int], now_ns: int
    ) -> tuple[int, Admission, ResourceExhaustedError | None]:
        """Decide on requests with these bytes of inputs; the first ones pass, if any.

        Returns how many, what they have to give back, and the refusal of the others.
        """
        count = len(sizes)
        for state in self._states:
            count = min(count, state.room(sizes[:count], now_ns))
        size = sum(sizes[:count])
        for state in self._states:
            state.begin(count, size)
        self.requests += count
        self.under_way += count
        self.bytes_in += size
        error = None
        if count < len(sizes):
            error = self._refusal(sizes[count], len(sizes) - count, now_ns)
        return count, self._admission, error

    def admit_part(self, group: RequestGroup, now_ns: int) -> Admission:
        """Decide on a request of a group; with the first one on all of them.

        Raises:
            ResourceExhaustedError: Not all of them may begin.
        """
        if not group.is_decided:
            group.is_decided = True
            sizes = (0,) * group.count  # bytes may go into debt, so that their sum does not matter
            if any(state.room(sizes, now_ns) < group.count for state in self._states):
                group.error = self._refusal(group.size, group.count, now_ns, group.count)
            else:
                for state in self._states:
                    state.begin(group.count, group.size)
                    state.under_way -= group.count  # each one counts when it comes
                self.requests += group.count
                self.bytes_in += group.size
        if group.error is not None:
            raise group.error
        self._admission.end(-1)
        return self._admission

    def _refusal(
        self, size: int, count: int, now_ns: int, together: int = 1
    ) -> ResourceExhaustedError:
        """Returns the refusal by the quota that the principal has to wait longest for."""
        found = [(state.reason(size, together, now_ns), state.quota) for state in self._states]
        reasons = [(*reason, quota) for reason, quota in found if reason is not None]
        wait_s, limit, text, quota = max(reasons, key=lambda each: each[0])
        self.refused[limit] += count
        retry_after_s = max(1, math.ceil(wait_s))
        models = ", ".join(f"'{each}'" for each in quota.models)
        return ResourceExhaustedError(
            f"{_subject(self.principal)} may have {text} for models {models}; "
            f"retry after {retry_after_s} s",
            retry_after_s,
        )


def _subject(principal: str) -> str:
    return f"principal '{principal}'" if principal else "clients without a principal"


class RequestGroups:
    """The groups of requests that come from another process one by one."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[RequestGroup, int]] = {}  # and how many more should come

    def take(self, number: int, count: int, size: int) -> RequestGroup:
        """Returns the group of the next request; some of one may never come."""
        first = RequestGroup(number, count, size), count
        group, left = self._open.pop(number, first)
        if left > 1:
            self._open[number] = group, left - 1
            if len(self._open) > _MAX_GROUPS:
                del self._open[next(iter(self._open))]
        return group


class Quotas:
    """The quotas of all principals of a server.

    Args:
        principals: By name. The entry of `ANYBODY`, if there is one, is for all others together.
        earlier: Those that these replace: what is the same goes on.
    """

    def __init__(
        self, principals: Mapping[str, PrincipalQuotas], earlier: Quotas | None = None
    ) -> None:
        self.principals = dict(principals)
        self.weights = {name: each.weight for name, each in principals.items()}
        known = {} if earlier is None else earlier.states
        self.states: dict[tuple[str, Quota], QuotaState] = {
            (name, quota): known.get((name, quota)) or QuotaState(quota)
            for name, each in principals.items()
            for quota in each.quotas
        }

    def states_of(self, principal: str, model_name: str) -> tuple[QuotaState, ...]:
        """Returns the quotas that a principal has for a model."""
        quotas = self.principals.get(principal, PrincipalQuotas()).quotas
        return tuple(
            self.states[principal, quota]
            for quota in dict.fromkeys(quotas)
            if any(fnmatchcase(model_name, pattern) for pattern in quota.models)
        )


class ModelQuotas:
    """The quotas of all principals for one model version, and what they have used of it."""

    __slots__ = ("_accounts", "_name", "_statistics", "_version", "weights")

    def __init__(self, name: str, version: int, statistics: ModelStatistics) -> None:
        self._name = name
        self._version = version
        self._statistics = statistics
        self.weights: Mapping[str, float] = {}
        # Listed ones, and one for all others: clients must not be able to make any number.
        self._accounts: dict[str, Account] = {ANYBODY: Account(ANYBODY)}

    def apply(self, quotas: Quotas) -> None:
        """Use these quotas from now on."""
        self.weights = quotas.weights
        names = dict.fromkeys((ANYBODY, *quotas.principals))
        self._accounts = {name: self._accounts.get(name) or Account(name) for name in names}
        for name, account in self._accounts.items():
            account.limit(quotas.states_of(name, self._name))
        self._statistics.accounts = tuple(self._accounts.values())

    def account_of(self, principal: str) -> Account:
        """Returns where the requests of a principal are counted."""
        return self._accounts.get(principal) or self._accounts[ANYBODY]

    def admit(self, inference: Inference, now_ns: int) -> None:
        """Let a request of a client begin, and put a sink before its own that notes its end.

        Raises:
            ResourceExhaustedError: Its principal has used up one of its limits.
        """
        request = inference.request
        account = self.account_of(request.fields.principal)
        if request.group is not None:
            admission = account.admit_part(request.group, now_ns)
        else:
            size = sum([len(tensor.data) for tensor in request.inputs.values()])
            _, admission, error = account.admit((size,), now_ns)
            if error is not None:
                raise error
        inference.sink = Watch(inference.sink, [AdmittedRequests({0: inference}, [admission])])

    def submit_chunk(
        self,
        model: ServedModel,
        members: Sequence[Inference],
        now_ns: int,
        *,
        is_complete: bool = False,
    ) -> None:
        """Submit those members of a client's chunk that may begin, and refuse the others."""
        chunk = members[0].chunk
        assert chunk is not None, "expected members of a chunk"
        admissions: list[Admission | None] = [None] * len(members)
        refused: list[tuple[Inference, ServerError]] = []
        sizes = _input_sizes(chunk, len(members))
        for principal, indices in _by_principal(members).items():
            account = self.account_of(principal)
            count, admission, error = account.admit([sizes[index] for index in indices], now_ns)
            for index in indices[:count]:
                admissions[index] = admission
            if error is not None:
                refused += [(members[index], error) for index in indices[count:]]
        if refused:
            members = [member for member in members if admissions[member.index] is not None]
        by_index = {member.index: member for member in members}
        chunk.sink = Watch(chunk.sink, [AdmittedRequests(by_index, admissions)])
        if members:
            model.submit_chunk(members, now_ns, is_complete=is_complete)
        for inference, refusal in refused:
            self._statistics.record_refusal(inference, refusal)
            refuse(inference, refusal)

    def on_dispatch(self, inferences: Iterable[Inference], now_ns: int) -> None:
        """Count how long requests have waited that an instance gets now."""
        for inference in inferences:
            if inference.owner is not None:  # a null request has none
                account = self.account_of(inference.request.fields.principal)
                account.queue_ns += now_ns - inference.queued_ns

    def displacement(self, inference: Inference) -> ResourceExhaustedError:
        """Count a request that has lost its place in a full queue; returns its error."""
        principal = inference.request.fields.principal
        self.account_of(principal).refused[Limit.QUEUE] += 1
        return ResourceExhaustedError(
            f"{_subject(principal)} had more than its share of the full queue of model "
            f"'{self._name}' version {self._version}, and another one came; retry after 1 s"
        )


def _by_principal(members: Sequence[Inference]) -> dict[str, Sequence[int]]:
    """Returns the indices of the members of each principal, of all members of a chunk."""
    principals = [member.request.fields.principal for member in members]
    if principals.count(principals[0]) == len(principals):
        return {principals[0]: range(len(principals))}
    indices: dict[str, Any] = {}
    for index, principal in enumerate(principals):
        indices.setdefault(principal, []).append(index)
    return indices


def _input_sizes(chunk: Chunk, count: int) -> list[int]:
    """Returns the bytes of the inputs of each member of a chunk."""
    columns, starts = chunk.signature.inputs, chunk.row_starts
    row_bytes = sum([column.row_bytes for column in columns])
    sizes = [(starts[index + 1] - starts[index]) * row_bytes for index in range(count)]
    for place, column in enumerate(columns):
        if not column.row_bytes:  # the datatype BYTES
            for index in range(count):
                sizes[index] += sum(map(len, chunk.pieces(place, index, index + 1)))
    return sizes


class AdmittedRequests(Watcher):
    """Lets requests give back what they have when they end, and counts the bytes of answers.

    Args:
        requests: Those that were admitted, by index.
        admissions: What each has to give back; None for those that were not admitted.
    """

    def __init__(self, requests: dict[int, Inference], admissions: list[Admission | None]) -> None:
        self._requests = requests
        self._admissions = admissions

    def answering(self, run: Run) -> None:
        """Note what comes before it is passed on, as the client may then send the next one."""
        admissions = self._admissions[run.first : run.end]
        first, count = admissions[0], len(admissions)
        if first is not None and run.row_starts and admissions.count(first) == count:
            self._note(first, run, run.first, run.end)
            return
        for index, admission in enumerate(admissions, run.first):
            if admission is not None:
                self._note(admission, run, index, index + 1)

    def _note(self, admission: Admission, run: Run, first: int, end: int) -> None:
        """Note what neighbours of one principal get."""
        admission.account.bytes_out += _answer_bytes(run, first, end)
        if run.is_final:
            admission.end(end - first)
            # If this cannot be passed on, an error follows, which gives nothing back again.
            self._admissions[first:end] = [None] * (end - first)
            for index in range(first, end):
                usage = self._requests.pop(index).usage
                if usage is not None:
                    admission.spend(usage)


def _answer_bytes(run: Run, first: int, end: int) -> int:
    """Returns the size of the outputs that neighbours get."""
    if run.row_starts:
        offset = run.row - run.row_starts[run.first]
        row, until = run.row_starts[first] + offset, run.row_starts[end] + offset
        return _output_size(run.outputs, row, until)
    answer = run.response if run.burst is None else run.burst
    return 0 if answer is None else sum([len(output.data) for output in answer.outputs])


def _output_size(outputs: Sequence[Column], row: int, end: int) -> int:
    return sum([len(column.part(row, end)) for column in outputs])
