# SPDX-License-Identifier: Apache-2.0
"""The source of a model: its files and configuration as they were read at one moment.

Clients may send files and configurations to be loaded instead of the repository's. Repository
agents check files before they are loaded: `checksum`, with Triton's parameters and messages, and
`signature`, which `signing` beside this package does. What was verified is what is loaded.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError, UnsupportedError
from pytriton.base.model_spec import identifier_of
from pytriton.runtime.executor.environment import MODEL_DIRECTORY
from pytriton.serving.engine.config import config_from_text
from pytriton.serving.engine.config_rules import ENSEMBLE, validate_instance_groups
from pytriton.serving.repository.loading.plans import VersionPlan, load_timeout_s
from pytriton.serving.repository.loading.warmup import build_warmup
from pytriton.serving.repository.reading.backend_choice import (
    ENVIRONMENT,
    choose_code,
    runs_on_ray,
    with_code,
)
from pytriton.serving.repository.reading.config_files import (
    CONFIG_FILE,
    config_from_override,
    read_config,
    read_initial_states,
    read_labels,
)
from pytriton.serving.repository.reading.instances import (
    ineffective_parameters,
    plan_instances,
    plan_ray_instances,
)
from pytriton.serving.repository.reading.layout import (
    ModelPlace,
    Snapshot,
    check_links,
    contained_file,
    is_inside,
    missing_versions,
    mistaken_versions,
    select_versions,
    take_snapshot,
    version_directories,
)
from pytriton.serving.repository.reading.reach import Reach
from pytriton.serving.repository.settings import RepositorySettings
from pytriton.serving.repository.signing import verifier as signature_verifier
from pytriton.serving.repository.signing.signers import AGENT as SIGNATURE
from pytriton.serving.repository.signing.signers import read_agent
from pytriton.serving.repository.signing.verifier import SignatureVerifier

CHECKSUM = "checksum"
# The file that does the work of each agent, as the table at the server's start shows it.
AGENTS = {CHECKSUM: __file__, SIGNATURE: signature_verifier.__file__}

# By the lower-case name before the colon of a parameter. Triton's agent has only the first.
_ALGORITHMS = {"md5": "MD5", "sha256": "SHA256"}
_CHUNK_BYTES = 1 << 20  # hashlib lets other threads run while it works on that much


logger = logging.getLogger(__name__)

_SENT_FILES = (
    "files that a client sends are on the machine of the server only; to run the model on Ray, put "
    "them into a repository in a folder that all nodes share"
)


class SourceFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A model's files and configuration."""

    name: str
    place: ModelPlace
    snapshot: Snapshot
    config: Any  # the ModelConfig message
    versions: dict[int, Path]  # those that the version policy selects
    namespace: str = ""  # its repository, if models of several may have the same name
    is_temporary: bool = False  # the directory is removed after its versions are unloaded
    on_ray: bool = False  # its instances run on a cluster

    @property
    def identifier(self) -> str:
        """Its name, with its namespace if it has one."""
        return identifier_of(self.namespace, self.name)

    @property
    def is_ensemble(self) -> bool:
        """Whether it is made of other models."""
        return bool(self.config.platform == ENSEMBLE)

    def give_up(self) -> None:
        """Remove the files that were made for it, as it could not be loaded."""
        if self.is_temporary:
            remove_files(self.place.directory)
        elif not self.is_ensemble:  # an ensemble may be loaded later, with other steps
            self.place.abandon()

    def has_same_version(self, other: SourceFiles, version: int) -> bool:
        """Returns whether a version that was loaded from `other` is still up to date."""
        if self.is_temporary or other.is_temporary:
            return False
        mine, theirs = self.snapshot, other.snapshot
        if (mine.shared, mine.versions.get(version)) != (
            theirs.shared,
            theirs.versions.get(version),
        ):
            return False
        if self.config == other.config:
            # A configuration file with a new time but the same content means: load it again.
            return mine.config == theirs.config
        return bool(_without_policy(self.config) == _without_policy(other.config))


def _without_policy(config: Any) -> Any:
    stripped = type(config)()
    stripped.CopyFrom(config)
    stripped.ClearField("version_policy")
    return stripped


def read_source(
    name: str,
    place: ModelPlace,
    snapshot: Snapshot,
    settings: RepositorySettings,
    verifier: SignatureVerifier,
    namespace: str = "",
    *,
    override: str | None = None,
    reach: Reach | None = None,
    is_temporary: bool = False,
) -> SourceFiles:
    """Read a model's configuration and choose its versions; signatures are verified before.

    The source of a signed model has the place of the copy that was verified.
    """
    if not settings.allows_outside_links:
        check_links(place, settings.repositories)
    original = place
    try:
        if verifier.settings.is_required:
            place = _verified(name, place, verifier, override, is_temporary=is_temporary)
            override = None
        config = _read_config(name, place, settings, override)
        if reach is not None and override is not None:
            reach.check_config(name, _read_config(name, place, settings, None), config)
        if _asks_for_signature(config) and not place.is_private:
            place = verifier.private_copy(place)
            config = _read_config(name, place, settings, override)
        run_agents(config, place, settings.agent_directory, verifier)
        if verifier.settings.is_required or _asks_for_signature(config):
            _check_inside(config)
        return _choose_versions(
            name, place, snapshot, settings, namespace, config, is_temporary=is_temporary
        )
    except BaseException as error:
        if place is not original:
            place.abandon()
            if isinstance(error, ServerError):
                error.message = place.explain(error.message)
        raise


def _verified(
    name: str,
    place: ModelPlace,
    verifier: SignatureVerifier,
    override: str | None,
    *,
    is_temporary: bool,
) -> ModelPlace:
    """Returns a private copy of a model whose signature is valid, as the server requires it."""
    if override is not None and not is_temporary:
        raise InvalidArgumentError(
            "expected no configuration in the load request, as this server requires signed models "
            "(--require-signed-models) and the signature covers the configuration in the "
            "repository, got one"
        )
    place = verifier.private_copy(place)
    try:
        verifier.verify(name, place, verifier.settings.signers)
        if override is not None:
            _check_sent_config(place, override)
    except ServerError as error:
        place.abandon()
        error.message = place.explain(error.message)
        raise
    return place


def _check_sent_config(place: ModelPlace, override: str) -> None:
    """Refuse a configuration that a client sent beside signed files, if these have another one."""
    config = config_from_override(override)
    if config == type(config)():
        return
    path = place.directory / CONFIG_FILE
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            f"expected a signed '{CONFIG_FILE}' among the files of the load request, as this "
            f"server requires signed models, got none that can be read: {error}"
        ) from error
    if config_from_text(text, CONFIG_FILE) != config:
        raise InvalidArgumentError(
            f"expected the configuration of the load request to be {{}} or that of the signed "
            f"'{CONFIG_FILE}', as this server requires signed models, got another one"
        )


def _read_config(
    name: str, place: ModelPlace, settings: RepositorySettings, override: str | None
) -> Any:
    return read_config(
        place,
        name,
        override=override,
        config_name=settings.config_name,
        may_complete=settings.may_complete,
        gpu_ids=settings.gpu_ids,
        backend_folders=settings.backend_folders,
        executor=settings.executor,
    )


def _asks_for_signature(config: Any) -> bool:
    return any(agent.name == SIGNATURE for agent in config.model_repository_agents.agents)


def _check_inside(config: Any) -> None:
    """Refuse a signed model that would execute files which are not signed with it."""
    if ENVIRONMENT in config.parameters:
        value = config.parameters[ENVIRONMENT].string_value
        inner = value.removeprefix(MODEL_DIRECTORY + "/")
        if inner == value or not is_inside(inner):
            raise InvalidArgumentError(
                f"expected {ENVIRONMENT} of a signed model in its folder, as "
                f"'{MODEL_DIRECTORY}/<path>', got '{value}', which is not signed"
            )
    for library in config.model_operations.op_library_filename:
        raise InvalidArgumentError(
            f"expected no library of operators of a signed model, got '{library}', which is not "
            "signed"
        )


def _choose_versions(
    name: str,
    place: ModelPlace,
    snapshot: Snapshot,
    settings: RepositorySettings,
    namespace: str,
    config: Any,
    *,
    is_temporary: bool,
) -> SourceFiles:
    on_ray = runs_on_ray(config, settings.executor)
    for remark in ineffective_parameters(config) if on_ray else ():
        logger.warning("%s", remark)
    available = version_directories(place.directory)
    for directory in mistaken_versions(place.directory):
        logger.warning(
            "ignore version directory '%s' which contains leading zeros in its directory name",
            directory,
        )
    for version in missing_versions(config.version_policy, available):
        logger.warning(
            "version %d is specified for model '%s', but the version directory is not present",
            version,
            name,
        )
    selected = select_versions(config.version_policy, available)
    return SourceFiles(
        name=name,
        place=place,
        snapshot=snapshot,
        config=config,
        versions={version: available[version] for version in selected},
        namespace=namespace,
        is_temporary=is_temporary,
        on_ray=on_ray,
    )


def read_fetched_source(
    name: str,
    place: ModelPlace,
    snapshot: Snapshot,
    settings: RepositorySettings,
    verifier: SignatureVerifier,
    namespace: str = "",
    *,
    override: str | None = None,
    reach: Reach | None = None,
) -> SourceFiles:
    """Like `read_source`, for a place that was fetched and is given up if it cannot be read."""
    try:
        return read_source(
            name, place, snapshot, settings, verifier, namespace, override=override, reach=reach
        )
    except ServerError as error:
        place.abandon()
        error.message = place.explain(error.message)
        raise


async def read_uploaded_source(
    name: str,
    override: Override,
    settings: RepositorySettings,
    verifier: SignatureVerifier,
    namespace: str = "",
) -> SourceFiles:
    """Like `read_source`, but for files that a client sent. If cancelled, it leaves no files."""
    reading = asyncio.ensure_future(
        asyncio.to_thread(_read_uploaded_source, name, override, settings, verifier, namespace)
    )
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        reading.add_done_callback(_give_up)
        await asyncio.wait({reading})  # the thread goes on, whatever happens
        raise


def _give_up(reading: asyncio.Future[SourceFiles]) -> None:
    if not reading.cancelled() and reading.exception() is None:
        reading.result().give_up()


def _read_uploaded_source(
    name: str,
    override: Override,
    settings: RepositorySettings,
    verifier: SignatureVerifier,
    namespace: str,
) -> SourceFiles:
    place = write_files(override)
    try:
        return read_source(
            name,
            place,
            take_snapshot(place.directory),
            settings,
            verifier,
            namespace,
            override=override.config,
            is_temporary=True,
        )
    except BaseException:
        remove_files(place.directory)
        raise


def make_plan(source: SourceFiles, version: int, settings: RepositorySettings) -> VersionPlan:
    """Make the plan by which a loader loads one version."""
    config, code = source.config, None
    home, directory = source.place.directory, source.versions[version]
    if source.on_ray:  # processes there have another working directory
        home, directory = home.absolute(), directory.absolute()
    if not source.is_ensemble:
        code = choose_code(config, home, directory, settings.backend_folders)
        config = with_code(config, code)
    if source.on_ray:
        instances = plan_ray_instances(config, settings.ray_start_timeout_s)
    else:
        validate_instance_groups(config, settings.gpu_ids)
        instances = plan_instances(config, settings.visible_devices)
    return VersionPlan(
        name=source.name,
        namespace=source.namespace,
        version=version,
        model_directory=home,
        version_directory=directory,
        code=code,
        config=config,
        gpu_ids=settings.gpu_ids,
        labels=read_labels(source.place, config),
        initial_states=read_initial_states(source.place, config),
        instances=instances,
        warmup=build_warmup(source.place, config),
        load_timeout_s=load_timeout_s(config, settings.load_timeout_s),
        on_ray=source.on_ray,
        sharing=source.place.sharing if not source.is_temporary else _SENT_FILES,
    )


def run_agents(
    config: Any, place: ModelPlace, agent_directory: str, verifier: SignatureVerifier
) -> None:
    """Let the agents of a model look at its files; reads all files that they name.

    `agent_directory` is where Triton would look for plug-ins.
    """
    for agent in config.model_repository_agents.agents:
        if agent.name == SIGNATURE:
            demand = read_agent(agent.parameters, verifier.settings.signers)
            verifier.verify(config.name, place, demand.signers, demand.signature)
            continue
        if agent.name != CHECKSUM:
            raise InvalidArgumentError(
                f"unable to find 'libtritonrepoagent_{agent.name}.so' for repo agent "
                f"'{agent.name}', searched: {agent_directory}; this server has its own agents "
                f"'{CHECKSUM}' and '{SIGNATURE}' and loads no plug-ins"
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
    # Not for secrets: the author of the configuration chooses the algorithm.
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


# Of a path that no file can have, alone or beside the others.
_PATH_ERRORS = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.EEXIST, errno.ENOTDIR})


class SentPlace(ModelPlace, frozen=True):
    """A folder with the files that a client has sent."""

    @property
    def is_private(self) -> bool:
        return True


class Override(msgspec.Struct, frozen=True):
    """A configuration as JSON, and files by their path in the model's directory."""

    config: str
    files: Mapping[str, bytes]
    reach: Reach | None = None  # None: its sender has a right to all models


def read_override(
    config: str | None, files: Mapping[str, bytes], reach: Reach | None = None
) -> Override | None:
    """Returns the override of the repository's files; None if the client sent nothing."""
    for path in files:
        if not is_inside(path) or os.path.normpath(path) == os.curdir:
            raise InvalidArgumentError(
                f"Invalid file parameter 'file:{path}' with normalized path "
                f"'{os.path.normpath(path)}' must stay within model directory."
            )
    if config is not None:
        return Override(config, files, reach)
    if files:
        raise InvalidArgumentError(
            "Load parameter 'config' must be specified for model file override"
        )
    return None


def write_files(override: Override) -> ModelPlace:
    """Write the files to a new directory that only this user may read."""
    directory = Path(tempfile.mkdtemp(prefix="tritonserver_model_"))
    try:
        for name, content in override.files.items():
            _write(directory / os.path.normpath(name), name, content)
    except BaseException:
        remove_files(directory)
        raise
    return SentPlace(directory, directory)


def _write(path: Path, name: str, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:  # its own text has the directory, which clients need not know
        if error.errno in _PATH_ERRORS:
            raise InvalidArgumentError(
                f"expected the path of a file in load parameter 'file:{name}', got one that cannot "
                f"be written: {error.strerror}"
            ) from None
        raise InternalError(
            f"load parameter 'file:{name}' with {len(content)} bytes cannot be written: "
            f"{error.strerror}"
        ) from error


def remove_files(directory: Path) -> None:
    """Remove such a directory, as far as possible."""
    shutil.rmtree(directory, ignore_errors=True)
