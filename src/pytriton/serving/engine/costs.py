# SPDX-License-Identifier: Apache-2.0
"""What requests cost: processor time of instances and of the server, bytes and tokens.

Instances say with their answers how much time they used. The time of the server's processes is not
measured by request, which would cost more than the answer is worth: it is shared among models when
somebody asks, by how many requests and bytes they had since then. So the shares add up to it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pytriton.base import dtypes
from pytriton.base.messages import RequestCost
from pytriton.base.openai_routes import COMPLETION_TOKENS, FINISH_REASON, PROMPT_TOKENS
from pytriton.serving.engine.observers import Observer, Watcher

if TYPE_CHECKING:
    from pytriton.base.dtypes import DataType
    from pytriton.base.messages import (
        ExecutionTimes,
        InferResponse,
        ResponseBurst,
    )
    from pytriton.serving.engine.observers import Members
    from pytriton.serving.engine.stats import ModelStatistics

# So many bytes of tensors count as much as a request: an estimate, as both take some 25 us.
BYTES_PER_REQUEST = 64 << 10
# Shares are not older than this where one request asks for its own.
_MAX_AGE_NS = 1_000_000_000


@dataclass(slots=True)
class ModelCosts:
    """What the requests of one loaded model version have cost; a reload starts from zero."""

    worker_ns: int = 0  # processor time of its instances
    server_ns: int = 0  # its share of the processor time of the server
    bytes_in: int = 0  # of tensors
    bytes_out: int = 0
    tokens_in: int = 0  # of OpenAI's routes, as the model has counted them
    tokens_out: int = 0
    to_gpu_bytes: int = 0  # of our own copies, in the processes of its instances
    to_host_bytes: int = 0
    # Tensors in GPU memory between models, by why they were copied; see `device_blocks.SHARED`.
    gpu_tensors: Counter[str] = field(default_factory=Counter)

    def add_usage(self, usage: TokenUsage) -> None:
        """Add the tokens of a request that has ended."""
        self.tokens_in += usage.prompt_tokens
        self.tokens_out += usage.completion_tokens


class TokenUsage:
    """The tokens of one request of OpenAI's routes, as the responses of its model count them.

    Args:
        text: The output with the text; empty for embeddings.
    """

    __slots__ = ("_counted", "_text", "_texts", "finish_reason", "prompt_tokens")

    def __init__(self, text: str) -> None:
        self.prompt_tokens = 0
        self.finish_reason = ""  # empty if the model does not say it
        self._text = text
        self._texts = 0  # responses with a text
        self._counted: int | None = None

    @property
    def completion_tokens(self) -> int:
        """The number that the model has counted, or that of its responses with a text."""
        return self._texts if self._counted is None else self._counted

    def read(self, response: InferResponse) -> None:
        """Read a response; what is no number is refused where the client is answered."""
        for tensor in response.outputs:
            self._read(tensor.name, tensor.dtype, tensor.data, tensor.data, 1)

    def read_burst(self, burst: ResponseBurst) -> None:
        """Read many responses at once."""
        for output in burst.outputs:
            last = b""
            if output.name != self._text:
                parts = output.split(burst.count)
                last = parts[-1]
                if output.name in PROMPT_TOKENS:
                    last = next(filter(any, reversed(parts)), last)  # 0 says nothing
            self._read(output.name, output.dtype, output.data, last, burst.count)

    def _read(self, name: str, dtype: DataType, data: Any, last: Any, count: int) -> None:
        """Read an output of `count` responses: all their bytes, and those of the last one."""
        if name == self._text:
            self._texts += count
        elif name == FINISH_REASON and dtype is dtypes.BYTES:
            self.finish_reason = bytes(last)[4:].decode("utf-8", "replace")
        elif dtype is dtypes.BYTES:
            return
        elif name in PROMPT_TOKENS:
            self.prompt_tokens = int(np.frombuffer(last, dtype.numpy).sum()) or self.prompt_tokens
        elif name in COMPLETION_TOKENS:
            added = int(np.frombuffer(data, dtype.numpy).sum())
            self._counted = (self._counted or 0) + added


class CostWatcher(Watcher):
    """Adds up what requests cost for somebody who wants to know that.

    Args:
        cost_of: Returns the record of a member by its index; None if nobody wants to know it.
    """

    sees_executions = True

    def __init__(self, cost_of: Callable[[int], RequestCost | None]) -> None:
        self._cost_of = cost_of
        self._started_ns: dict[int, int] = {}  # by index, of the last execution

    def add_execution(self, first: int, end: int, times_ns: ExecutionTimes) -> None:
        """Add the costs of an execution, or of one more of its responses."""
        if not (times_ns.processor_ns or times_ns.bytes_in or times_ns.bytes_out):
            return  # nobody has measured it, as for an ensemble, whose steps have their own
        for index in range(first, end):
            cost = self._cost_of(index)
            if cost is None:
                continue
            cost.worker_ns += times_ns.processor_ns
            cost.bytes_in += times_ns.bytes_in
            cost.bytes_out += times_ns.bytes_out
            if times_ns.started_ns != self._started_ns.get(index):
                self._started_ns[index] = times_ns.started_ns
                cost.executions += 1
                cost.server_ns += times_ns.server_ns
                cost.queue_ns += max(0, times_ns.started_ns - times_ns.queued_ns)

    def add_usage(self, index: int, usage: TokenUsage) -> None:
        """Add the tokens of a request."""
        cost = self._cost_of(index)
        if cost is not None:
            cost.tokens_in += usage.prompt_tokens
            cost.tokens_out += usage.completion_tokens

    def sent(self, item: Any, index: int | None = None) -> None:
        """Ask the core for the costs."""
        item.wants_cost = True

    def charged(self, first: int, end: int, cost: RequestCost) -> None:
        """Add what the core has added up for each of these members."""
        for index in range(first, end):
            own = self._cost_of(index)
            if own is not None:
                own.add(cost)


class ReportedCosts(Observer):
    """Observes in the core what front ends want to know of their requests."""

    def begun(self, members: Members) -> CostWatcher | None:
        """Add up the costs where there is a place for them."""
        sink = members.sink if members.chunk is None else members.chunk
        costs: dict[int, RequestCost] | None = getattr(sink, "costs", None)
        if costs is None:
            return None
        for index in range(len(members)):
            costs[index] = RequestCost()
        return CostWatcher(costs.__getitem__)


class CostedModel(Protocol):
    """A model whose requests cost something."""

    @property
    def statistics(self) -> ModelStatistics:
        """Its counts."""


class ServerCosts:
    """Shares the processor time of the server's processes among models.

    Args:
        models: Returns the models that are served.
        clock: Returns the processor time of all processes of the server, in nanoseconds.

    Attributes:
        spent_ns: The processor time that was shared, or that no request has caused.
        idle_ns: The part of it in which no model had a request.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[CostedModel]],
        clock: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._models = models
        self.clock = clock
        self.spent_ns = 0
        self.idle_ns = 0
        self._shared_ns = clock()  # the clock when the time was shared last
        self._shared_at_ns = 0  # the same, by the monotonic clock
        self._work: dict[int, tuple[ModelStatistics, float]] = {}  # what was shared, by identity
        self._unit_ns = 0.0  # the share of one request

    def share(self) -> None:
        """Share the time since the last call."""
        now_ns = self.clock()
        spent_ns, self._shared_ns = max(0, now_ns - self._shared_ns), now_ns
        self._shared_at_ns = time.monotonic_ns()
        known, self._work = self._work, {}
        shares = []
        for model in self._models():
            statistics = model.statistics
            work = _work(statistics)
            before = known.get(id(statistics))
            self._work[id(statistics)] = (statistics, work)
            new = work - before[1] if before is not None else work
            if new > 0:
                shares.append((statistics.costs, new))
        self.spent_ns += spent_ns
        whole = sum(share for _, share in shares)
        if not whole:
            self.idle_ns += spent_ns
            return
        self._unit_ns = spent_ns / whole
        left_ns = spent_ns
        for costs, share in shares[:-1]:
            part_ns = round(share * self._unit_ns)
            costs.server_ns += part_ns
            left_ns -= part_ns
        shares[-1][0].server_ns += left_ns

    def of_request(self, size: int) -> int:
        """Returns about the time for one request whose tensors have so many bytes."""
        if time.monotonic_ns() - self._shared_at_ns > _MAX_AGE_NS:
            self.share()
        return round((1 + size / BYTES_PER_REQUEST) * self._unit_ns)


def _work(statistics: ModelStatistics) -> float:
    """Returns what a model has had so far, counted in small requests."""
    requests = statistics.success_count + statistics.fail.count
    return requests + (statistics.costs.bytes_in + statistics.costs.bytes_out) / BYTES_PER_REQUEST
