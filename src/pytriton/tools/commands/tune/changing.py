# SPDX-License-Identifier: Apache-2.0
"""Two ways to give a model another configuration: by the repository API, or by a new server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from pytriton.tools.commands.tune.own_server import OwnServer, serve_command
from pytriton.tools.commands.tune.search import Candidate, changed_config, present_candidate
from pytriton.tools.perf.errors import PerfError
from pytriton.tools.perf.server.questions import QuestionError, Questions


class Changeable(Protocol):
    """A model whose configuration can be changed."""

    def load(self, candidate: Candidate) -> None:
        """Let it have a candidate's values; raises PerfError if that does not work."""

    def restore(self) -> None:
        """Let it be as it was before; may be called twice."""


class RepositoryModel:
    """A model of a repository, on a server that loads models when it is told to.

    Args:
        questions: The server.
        name: The model.
        config: Its configuration before.
    """

    def __init__(self, questions: Questions, name: str, config: Mapping[str, Any]) -> None:
        self._questions = questions
        self._name = name
        self._config = config
        self._is_changed = False

    def load(self, candidate: Candidate) -> None:
        self._is_changed = True
        self._questions.load(self._name, changed_config(self._config, candidate))

    def check_control(self) -> None:
        """Find out whether the server lets models be loaded.

        Raises:
            PerfError: It does not.
        """
        try:
            self.load(present_candidate(self._config))
        except QuestionError as error:
            self._is_changed = False
            raise PerfError(
                f"the configuration cannot be changed: {error}. Start the server with "
                "--model-control-mode=explicit, or let this command start one: "
                "--model-repository FOLDER MODEL, or FILE.py:function"
            ) from error

    def restore(self) -> None:
        """Load it from its files, or by its values if that gives something else."""
        if not self._is_changed:
            return
        self._questions.load(self._name)
        if _comparable(self._questions.model_config(self._name)) != _comparable(self._config):
            self._questions.load(self._name, json.dumps(self._config))
        self._is_changed = False


class ServedFile:
    """A function of a file, served again for each candidate.

    Args:
        server: The server that is started again.
        target: The file, and the function in it.
        token: The access token of the server.
    """

    def __init__(self, server: OwnServer, target: str, token: str) -> None:
        self._server = server
        self._target = target
        self._token = token

    def load(self, candidate: Candidate) -> None:
        self._server.start(serve_command(self._target, self._token, candidate))

    def restore(self) -> None:
        """Nothing to do: the file was not changed."""


def _comparable(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)
