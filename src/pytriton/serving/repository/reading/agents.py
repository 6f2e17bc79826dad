# SPDX-License-Identifier: Apache-2.0
"""Repository agents: what has to be true of a model's files before it is loaded.

There is one, `checksum`. Triton's is a plug-in; its parameters and its messages are the same.
"""

from __future__ import annotations

import hashlib
import stat
from typing import Any

from pytriton.base.errors import InvalidArgumentError, UnsupportedError
from pytriton.serving.repository.reading.layout import ModelPlace, contained_file

CHECKSUM = "checksum"
# The file that does the work of each agent, as the table at the server's start shows it.
AGENTS = {CHECKSUM: __file__}

# By the lower-case name before the colon of a parameter. Triton's agent has only the first.
_ALGORITHMS = {"md5": "MD5", "sha256": "SHA256"}
_CHUNK_BYTES = 1 << 20  # hashlib lets other threads run while it works on that much


def run_agents(config: Any, place: ModelPlace, agent_directory: str) -> None:
    """Let the agents of a model look at its files; reads all files that they name.

    Args:
        config: The ModelConfig message.
        place: The model's directory.
        agent_directory: Where Triton would look for plug-ins.

    Raises:
        ServerError: An agent refuses the model, or is not known.
    """
    for agent in config.model_repository_agents.agents:
        if agent.name != CHECKSUM:
            raise InvalidArgumentError(
                f"unable to find 'libtritonrepoagent_{agent.name}.so' for repo agent "
                f"'{agent.name}', searched: {agent_directory}; this server has its own agent "
                f"'{CHECKSUM}' and loads no plug-ins"
            )
        for key in sorted(agent.parameters):
            _check_file(place, key, agent.parameters[key])


def _check_file(place: ModelPlace, key: str, expected: str) -> None:
    algorithm, colon, name = key.partition(":")
    if not colon:
        raise InvalidArgumentError(f"failed to parse key: {key}")
    known = _ALGORITHMS.get(algorithm.lower())
    if known is None:
        raise UnsupportedError(f"Unsupported checksum algorithm: {algorithm}")
    got = _digest(place, name, known)
    if got != expected.strip().lower():
        raise InvalidArgumentError(
            f"Mismatched {known} hash for file {name}, expect: {expected}, got: {got}"
        )


def _digest(place: ModelPlace, name: str, algorithm: str) -> str:
    # Not for secrets: whoever writes the configuration chooses the algorithm.
    digest = hashlib.new(algorithm.lower(), usedforsecurity=False)
    try:
        path = contained_file(place, name)
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for its writer
            raise InvalidArgumentError(f"file '{name}' has no checksum: it is no regular file")
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise InvalidArgumentError(
            f"failed to open text file for read {name}: {error.strerror}"
        ) from error
    return digest.hexdigest()
