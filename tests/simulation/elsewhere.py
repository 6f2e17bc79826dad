# SPDX-License-Identifier: Apache-2.0
"""Calls functions in another process, in which simulations can run.

A run replaces threads, sockets and the clock for the whole process, in which other tests may have
servers. The other process may also have another source of the project, with a bug in it.
"""

from __future__ import annotations

import os
import pathlib
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar, final

_T = TypeVar("_T")
_REPOSITORY = pathlib.Path(__file__).parents[2]


@final
class Elsewhere:
    """Another process; it ends with the context.

    Args:
        source: the folder that has `pytriton`, instead of the usual one.
        environment: more variables for it.
    """

    def __init__(self, source: pathlib.Path | None = None, **environment: str) -> None:
        variables = {**os.environ, **environment}
        if source is not None:
            variables["PYTHONPATH"] = str(source)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=_REPOSITORY,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function of a module there.

        Raises:
            RuntimeError: It raised what the text says.
            EOFError: The process has ended.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        pickle.dump((function, arguments), requests)
        requests.flush()
        result, error = pickle.load(answers)
        if error:
            raise RuntimeError(error)
        made: _T = result
        return made

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Answer calls until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            result = (function(*arguments), "")
        except Exception:  # noqa: BLE001  the caller gets it
            result = (None, traceback.format_exc())
        pickle.dump(result, answers)
        answers.flush()


if __name__ == "__main__":
    main()
