# SPDX-License-Identifier: Apache-2.0
"""The ids of the requests that the current code works for, which lines of the log show.

They are set while a model runs for a batch, and follow its tasks as other context variables do.
Clients choose ids, so they are shown shortened, and writers of lines have to escape them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

MAX_SHOWN = 8  # ids on one line; the others are counted
MAX_LENGTH = 128  # characters of one id

# The ids of a batch by position; requests without an id are left out. Nothing is made of them
# before a line is written.
_current: ContextVar[Mapping[int, str] | None] = ContextVar("pytriton_request_ids", default=None)


# Sets the ids of the requests that the code of this context works for from now on. No function is
# around it, as it is called twice for every batch, mostly with None: 0.12 us instead of 0.26.
set_request_ids: Callable[[Mapping[int, str] | None], object] = _current.set


@contextmanager
def request_ids(ids: Mapping[int, str]) -> Iterator[None]:
    """Set the ids of requests for the body of a `with` statement."""
    token = _current.set(ids)
    try:
        yield
    finally:
        _current.reset(token)


def current_request_ids() -> list[str]:
    """Returns the ids as lines show them: the first ones, and a last entry for the others."""
    ids = _current.get()
    return shown_ids(ids.values()) if ids else []


def shown_ids(ids: Iterable[str]) -> list[str]:
    """Returns ids as lines show them; see `current_request_ids`."""
    distinct = list(dict.fromkeys(ids))
    shown = [each[:MAX_LENGTH] for each in distinct[:MAX_SHOWN]]
    if len(distinct) > MAX_SHOWN:
        shown.append(f"and {len(distinct) - MAX_SHOWN} more")
    return shown


def id_prefix(shown: list[str]) -> str:
    """Returns the beginning of a message, as in Triton; empty without ids."""
    if not shown:
        return ""
    return f"[request id{'s' if len(shown) > 1 else ''}: {', '.join(shown)}] "


def current_prefix() -> str:
    """Returns the beginning of a message about the current requests, on one line."""
    return visible(id_prefix(current_request_ids())) if _current.get() else ""


# Is called with every record that this process makes, while it is set.
_observe: Callable[[logging.LogRecord], None] | None = None


def observe_log_records(observe: Callable[[logging.LogRecord], None] | None) -> None:
    """Call a function with every record that `logging` makes after `add_to_log_records`."""
    global _observe  # noqa: PLW0603  as the factory of records is
    _observe = observe


def add_to_log_records() -> None:
    """Give every record of `logging` in this process the attributes with the current ids.

    These are `triton_request_id`, a text for formatters, and `triton_request_ids`, a list. Both are
    empty for lines that no request with an id has caused. Their names are long because `logging`
    refuses an `extra` that has the name of an attribute, and `request_id` is a usual one.
    """
    make = logging.getLogRecordFactory()
    if getattr(make, "adds_request_ids", False):
        return

    def make_with_ids(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        record.triton_request_ids = ids = current_request_ids()
        record.triton_request_id = visible(", ".join(ids))
        if _observe is not None:
            _observe(record)
        return record

    make_with_ids.adds_request_ids = True  # type: ignore[attr-defined]  # a mark, see above
    logging.setLogRecordFactory(make_with_ids)


def visible(text: str) -> str:
    """Returns text on one line: line breaks and control characters are escaped as in JSON."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in text
    )
