# SPDX-License-Identifier: Apache-2.0
"""Runs random inputs, and what all of them are judged by; what an input is made of is elsewhere.

Every case has a seed of its own, so that a run is the same each time, and a case can be repeated
without those before it. `PYTRITON_FUZZ_CASES` multiplies the number of cases, and
`PYTRITON_FUZZ_SEED` chooses others. A failure names the smallest input that was found for it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pathlib
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytriton.base.package import PACKAGE_FOLDER
from tests.cost.counting import WORK_PER_BYTE, WORK_PER_READ, work_of

CASES = float(os.environ.get("PYTRITON_FUZZ_CASES", "1"))
SEED = os.environ.get("PYTRITON_FUZZ_SEED", "0")
MAX_SHRINKING_RUNS = 400

Case = list[Any]  # the steps of an input; each is bytes, or what its fuzzer makes of it

# What a client must not learn from a text: where this process has its files, and what is where in
# its memory.
_SECRETS = re.compile(
    "|".join(
        (
            *(
                re.escape(folder)
                for folder in {
                    str(PACKAGE_FOLDER),
                    sys.prefix,
                    sys.base_prefix,
                    str(pathlib.Path.home()),
                    str(pathlib.Path.cwd()),
                    tempfile.gettempdir(),
                }
                if len(folder) > 1
            ),
            r"site-packages",
            r"\w+\.py\b",
            r"Traceback \(most recent",
            r"\bat 0x[0-9a-f]+",
            r"0x[0-9a-f]{9,}",
            r"\bpid\b",
            r"pytriton\.(?:serving|runtime|protocol|base)\.",
        )
    )
)


def fuzz(
    name: str,
    count: int,
    make: Callable[[random.Random], Case],
    check: Callable[[Case], None],
) -> None:
    """Check random cases; the first that fails is made small and reported.

    Args:
        name: Part of the seeds, so that fuzzers with the same generator have other cases.
        count: The number of cases, which `PYTRITON_FUZZ_CASES` multiplies.
        make: Makes a case of a source of random numbers.
        check: Raises an exception of any kind if a case is not treated as it has to be.
    """
    for number in range(max(1, round(count * CASES))):
        case = make(random.Random(f"{SEED} {name} {number}"))
        try:
            check(case)
        except Exception as failure:
            smallest = shrink(case, check, _place(failure))
            lines = "".join(f"    {step!r},\n" for step in smallest)
            raise AssertionError(
                f"{name}: case {number} of seed {SEED} failed with {type(failure).__name__}: "
                f"{failure}\nThe smallest input that fails in the same place:\n[\n{lines}]"
            ) from failure


def shrink(case: Case, check: Callable[[Case], None], place: tuple[object, ...]) -> Case:
    """Returns a part of a case that fails in the same place."""
    runs = 0

    def fails(candidate: Case) -> bool:
        nonlocal runs
        runs += 1
        try:
            check(candidate)
        except Exception as failure:  # noqa: BLE001  any failure is compared
            return _place(failure) == place
        return False

    def cut(parts: Any, rebuild: Callable[[Any], Case]) -> Any:
        size = len(parts) // 2
        while size and runs < MAX_SHRINKING_RUNS:
            at = 0
            while at < len(parts) and runs < MAX_SHRINKING_RUNS:
                smaller = parts[:at] + parts[at + size :]
                if smaller and fails(rebuild(smaller)):
                    parts = smaller
                else:
                    at += size
            size //= 2
        return parts

    case = cut(case, lambda steps: steps)
    for index, step in enumerate(case):
        if isinstance(step, bytes):
            case[index] = cut(step, lambda text, i=index: [*case[:i], text, *case[i + 1 :]])
    return case


def _place(failure: BaseException) -> tuple[object, ...]:
    """Returns what tells failures apart: the kind, and the line that raised it."""
    trace = failure.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace else ()
    return type(failure), *where


@contextlib.contextmanager
def without_logged_errors() -> Iterator[None]:
    """Fail if the server logs an exception: it was not one of those that it raises on purpose."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("pytriton")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    for record in records:
        if record.threadName == "pytriton-failures":
            continue  # counts exceptions that models of an earlier test have raised
        if record.exc_info and record.exc_info[1] is not None:
            raise record.exc_info[1]
        assert record.levelno < logging.ERROR, record.getMessage()


def assert_reveals_nothing(text: str | bytes, sent: bytes = b"") -> None:
    """Assert that a text for a client has nothing of this process, but what the client sent."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    for found in _SECRETS.finditer(text):
        assert found[0].encode("latin-1", "replace") in sent, f"{found[0]!r} is in {text!r}"


def assert_work_is_paid(
    run: Callable[[], object],
    size_bytes: int,
    *,
    fixed_work: int,
    reads: int = 1,
    work_per_byte: int = WORK_PER_BYTE,
) -> int:
    """Run something, and assert that its work is at most linear in the bytes; returns the work."""
    work = work_of(run)
    most = fixed_work + work_per_byte * size_bytes + WORK_PER_READ * reads

    assert work <= most, f"{work} units of work for {size_bytes} bytes in {reads} reads, {most=}"
    return work


def assert_doubles(
    make: Callable[[int], Callable[[], object]],
    sizes: Sequence[int],
    *,
    slack: int,
    growth: float = 2.5,
) -> list[int]:
    """Assert that twice as much of something is at most about twice the work.

    Args:
        make: Prepares an input with so many elements, and returns the call that sends it.
        sizes: Numbers of elements, each twice the one before.
        slack: The work that does not count, as limits and caches begin to act.
        growth: How much more work twice as many may cause.
    """
    make(sizes[0])()  # the first one may import modules and fill caches
    seen = [work_of(make(size)) for size in sizes]
    for less, more in itertools.pairwise(seen):
        assert more <= growth * less + slack, f"work of {list(sizes)} elements: {seen}"
    return seen
