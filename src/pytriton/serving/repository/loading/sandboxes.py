# SPDX-License-Identifier: Apache-2.0
"""The sandboxes of a server's models: what the machine has, and the policy of each worker.

The decisions are in `pytriton.base.sandbox` and `pytriton.runtime.sandbox.places`; here they meet
the files of this machine.
"""

from __future__ import annotations

import glob
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.errors import InvalidArgumentError, UnsupportedError
from pytriton.base.package import IMPORT_FOLDER
from pytriton.base.sandbox import (
    OFF,
    PARAMETER,
    Grants,
    SandboxMachine,
    SandboxPolicy,
    SandboxSettings,
    missing_parts,
    settle,
)
from pytriton.constants import PYTRITON_HOME
from pytriton.runtime.executor.environment import TemporaryFolder, remove_abandoned
from pytriton.runtime.sandbox import places
from pytriton.runtime.sandbox.enclosure import remove_abandoned_groups
from pytriton.runtime.sandbox.probe import probe
from pytriton.serving.repository.reading.backend_choice import CodeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.runtime.executor.environment import PythonEnvironment
    from pytriton.serving.repository.loading.plans import VersionPlan

logger = logging.getLogger(__name__)

_PREFIX = "pytriton-scratch-"
_COMPILED = str(PYTRITON_HOME / "compiled_code")  # what native backends have compiled before


class Sandbox(NamedTuple):
    """The sandbox of the workers of one version."""

    policy: SandboxPolicy
    variables: dict[str, str]  # of the environment, that are granted
    has_control: bool  # the model may load and unload others


class Sandboxes:
    """Makes the sandboxes of a server; what it finds out about the machine, it finds out once."""

    def __init__(
        self,
        settings: SandboxSettings,
        kept_out: Sequence[str],
        find: Callable[[], SandboxMachine] = probe,
    ) -> None:
        self._settings = settings
        self._kept_out = tuple(_real(path) for path in kept_out)
        self._find = find
        self._machine: SandboxMachine | None = None
        self._folder: TemporaryFolder | None = None
        self._lock = threading.Lock()  # versions are loaded in threads side by side

    def start(self) -> None:
        """Look which parts this machine has, and tell which it lacks, if workers have sandboxes.

        Raises:
            UnsupportedError: It lacks one that it must not lack.
        """
        if self._settings.default.mode != OFF:
            self._open()

    def close(self) -> None:
        """Remove the folder of scratch folders; the workers have ended."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.remove()

    def make(self, plan: VersionPlan, environment: PythonEnvironment | None) -> Sandbox | None:
        """Returns the sandbox of a version; None: its workers have none.

        Raises:
            InvalidArgumentError: Its parameter is wrong, or asks for more than is allowed.
            UnsupportedError: It runs where there are no sandboxes.
        """
        parameters = plan.config.parameters
        text = parameters[PARAMETER].string_value if PARAMETER in parameters else None
        grants = settle(self._settings, text)
        if grants is None:
            return None
        if plan.on_ray:
            raise UnsupportedError(
                f"Model '{plan.name}' cannot have a sandbox on a Ray cluster; the parameter "
                f"{PARAMETER} with the value off, and --sandbox-allow=off, let it run without one"
            )
        machine, folder = self._open()
        if machine.system != "Linux":
            return None  # the start has said it
        policy = places.make_policy(
            grants,
            machine,
            interpreter_places(),
            places.ModelPlaces(self._model_folders(plan, environment, grants)),
            kept_out=self._kept_out,
            listing=_list,
            resolve=_real,
            found=_found(places.SYSTEM_PATTERNS),
            found_devices=_found(places.DEVICE_PATTERNS),
            scratch_folder=str(folder.path),
        )
        for path in (*grants.readable, *grants.writable, *grants.devices):
            if not os.path.lexists(path):
                logger.warning(
                    "the sandbox of model '%s' is granted '%s', which does not exist; its workers "
                    "will not see it, even if it is made later",
                    plan.name,
                    path,
                )
        variables = {name: os.environ[name] for name in grants.variables if name in os.environ}
        return Sandbox(policy, variables, grants.has_control)

    def _open(self) -> tuple[SandboxMachine, TemporaryFolder]:
        with self._lock:
            if self._machine is None:
                machine = self._find()
                self._report(machine)
                self._machine = machine
            if self._folder is None:
                for path in remove_abandoned(_PREFIX):
                    logger.info("removed '%s', left behind by a server that was killed", path)
                remove_abandoned_groups(self._machine.groups.values())
                self._folder = TemporaryFolder.create(_PREFIX)
            return self._machine, self._folder

    def _report(self, machine: SandboxMachine) -> None:
        missing = missing_parts(machine)
        essential = [part for part in missing if part.is_essential]
        if essential and self._settings.is_strict:
            lacks = "; ".join(str(part) for part in essential)
            raise UnsupportedError(f"--sandbox=strict, but this machine lacks parts of it: {lacks}")
        for part in missing:
            level = logging.WARNING if part.is_essential else logging.INFO
            logger.log(level, "the sandbox of workers lacks %s", part)
        if machine.system == "Linux":
            logger.info("workers run in sandboxes: %s", _describe(machine))

    def _model_folders(
        self, plan: VersionPlan, environment: PythonEnvironment | None, grants: Grants
    ) -> tuple[str, ...]:
        assert plan.code is not None, f"{plan.name} has no code for a worker"
        folders = [plan.model_directory, plan.version_directory]
        if plan.code.kind is not CodeKind.MODEL:  # a name in the configuration could lead out
            folders.append(plan.code.folder)
        own = [_real(str(path)) for path in folders]
        if environment is not None:
            own.append(self._environment_folder(environment, own, grants))
        return tuple(dict.fromkeys((*own, _COMPILED)))

    def _environment_folder(
        self, environment: PythonEnvironment, own: Sequence[str], grants: Grants
    ) -> str:
        """Returns the folder of a model's Python, which the author of the model has named.

        It must not open a folder that the model has no right to.
        """
        folder = Path(_real(os.path.dirname(environment.interpreter))).parent  # noqa: PTH120  before links are followed
        within = (*own, *grants.readable, *self._settings.allowed.readable)
        is_trusted = environment.is_unpacked or self._settings.default.mode == OFF
        if not is_trusted and not any(folder.is_relative_to(each) for each in within):
            raise InvalidArgumentError(
                f"The environment '{folder}' is outside of the model's folder, which the operator "
                f"of this server does not allow in a sandbox; --sandbox-allow=read={folder} would"
            )
        return str(folder)


def _describe(machine: SandboxMachine) -> str:
    parts = [f"Landlock {machine.landlock}" if machine.landlock else ""]
    parts.append("seccomp" if machine.has_filters else "")
    parts.append("mount namespaces" if machine.has_mounts else "")
    parts += [f"control groups of {name}" for name in sorted(machine.groups)]
    return ", ".join(part for part in parts if part) or "nothing but limits"


def _real(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111  texts, not paths


def _found(patterns: Sequence[str]) -> list[str]:
    return [path for each in patterns for path in sorted(glob.glob(each))]  # noqa: PTH207  of absolute paths


def _list(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if not entry.is_symlink())
    except OSError:  # nobody can read it
        return []


def interpreter_places() -> places.InterpreterPlaces:
    """Returns where this Python and its packages are."""
    # Python puts the folder of the command first, with -m the working directory. An empty part of
    # PYTHONPATH means that, too. Its files are no packages, unless the operator has said so.
    text = os.environ.get("PYTHONPATH", "")
    named = text.split(os.pathsep) if text else []
    paths = sys.path if sys.path[0] in named else sys.path[1:]
    if "" in named and (here := str(Path.cwd())) not in named:
        paths = [path for path in paths if path != here]
    return places.InterpreterPlaces(
        tuple(dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix))),
        (*(path for path in paths if path and Path(path).is_absolute()), IMPORT_FOLDER),
        sys.executable,
    )
