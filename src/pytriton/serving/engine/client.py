# SPDX-License-Identifier: Apache-2.0
"""The interfaces of the engine and of model control to their callers, such as front ends.

In the engine's process that is `serving.server.api.local_client.LocalClient`, which calls the
engine directly; in a front end with its own process
`serving.server.frontend.remote_client.RemoteClient`. Callers do not know which one they have.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
)

import msgspec

if TYPE_CHECKING:
    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferRequest, ResponseSink
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.observers import Observers
    from pytriton.serving.engine.served_model import ServedModel

P = ParamSpec("P")
T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
Files: TypeAlias = Mapping[str, bytes]  # by path in the folder of a model
Patterns: TypeAlias = Sequence[str]  # of names of models
Answer: TypeAlias = T | Coroutine[Any, Any, T]  # known now, or to be awaited


class EngineClient(Protocol):
    """Finds models, submits requests and asks questions. All methods may raise ServerError."""

    @property
    def is_exiting(self) -> bool:
        """Whether the server accepts no more requests."""

    @property
    def is_behind(self) -> bool:
        """Whether the last requests were not read yet, so that gathering more is better."""

    # Those of the engine of this process; what submits requests past `infer` shows them to these.
    observers: Observers

    def call_after_answers(
        self, models: Sequence[ServedModel | None], callback: Callable[[], None]
    ) -> bool:
        """Call back after the next answers, if requests to these models are better sent then.

        Returns False if that is not the case for all of them; then there is no call.
        """

    # Models and requests; these never wait

    def lookup(self, name: str, version: str = "") -> ServedModel:
        """Returns the model that serves `name`; without a version, the newest that is ready."""

    def find(self, name: str, version: str = "") -> ServedModel | None:
        """Like `lookup`, but returns None if the model is not ready."""

    def ready_versions(self, name: str) -> list[int]:
        """Returns the versions of a model that are ready, in ascending order."""

    def ready_models(self) -> list[str]:
        """Returns the names of the models that are ready, sorted."""

    def infer(
        self,
        request: InferRequest,
        sink: ResponseSink,
        fitting: ServedModel | None = None,
    ) -> Inference:
        """Validate and queue a request; see `Engine.infer`."""

    def report_refusal(self, name: str, version: str, request_id: str, error: ServerError) -> None:
        """Note that a request for a model was refused before it was passed to `infer`."""

    # Questions and commands

    def is_serving(self) -> bool:
        """Returns whether the server is ready, as far as it is known without asking models."""

    def ask(
        self, method: Callable[Concatenate[Any, P], T], /, *args: P.args, **arguments: P.kwargs
    ) -> T:
        """Let the core answer: `method` is one of `LocalClient`, marked with `question`.

        Arguments are plain values, and are named, because they may have to be sent. All such
        methods return an `Answer` or a coroutine.
        """


class QuestionRules(NamedTuple):
    """What there is to know of a method that front ends in other processes may call."""

    kind: Any = None  # what its result becomes when it was sent; None: it is of plain values
    # Its answer tells clients that they may send requests, which any front end may get. So all of
    # these have to know the models that it is about.
    tells_readiness: bool = False


def question(kind: Any = None, *, tells_readiness: bool = False) -> Callable[[Method], Method]:
    """Let front ends ask a method of the core, by its name; see `QuestionRules`."""

    def mark(method: Method) -> Method:
        vars(method)["question"] = QuestionRules(kind, tells_readiness)
        return method

    return mark


def question_of(method: Callable[..., Any]) -> QuestionRules:
    """Returns what a method was marked with; KeyError if no front end may ask it."""
    rules: QuestionRules = vars(method)["question"]
    return rules


class IndexEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the repository index; a model that was never loaded has only a name."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""
    namespace: str = ""  # its repository, if models of several may have the same name
    gpu_memory_bytes: int = 0  # of the processes of its instances, where GPUs are read


class ModelRegistrations(Protocol):
    """Loads models from folders that are in no repository. Called on the event loop."""

    def listed(self) -> dict[str, str]:
        """Returns the folders of all models that were added, by name."""

    async def register(self, name: str, url: str) -> None:
        """Load a model from a folder; returns when it is ready."""

    async def unregister(self, name: str) -> None:
        """Unload a model that was added; returns when it has stopped."""


class ModelControl(Protocol):
    """Lists, loads and unloads models. Called on the event loop; raises ServerErrors."""

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """Returns every known model version, or only those that are ready."""

    async def load(
        self, name: str, config: str | None, files: Files, patterns: Patterns | None = None
    ) -> None:
        """Load or reload a model; returns when it is ready. `files` has paths like `1/model.py`.

        `patterns` are of the models that its sender has a right to, and so may make reachable;
        None: all.
        """

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model; returns when it gets no new requests any more."""

    def is_ready(self) -> bool:
        """Returns whether every model that should be ready is ready."""
