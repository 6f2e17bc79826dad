# SPDX-License-Identifier: Apache-2.0
"""The settings of model repositories: their paths, the models to load, and how to load them."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from pytriton.base.settings import DEFAULT_START_TIMEOUT_S
from pytriton.serving.repository.reading.backend_choice import BackendFolders, Executor
from pytriton.serving.repository.signing.signers import SigningSettings


class ControlMode(enum.Enum):
    """How it is decided which models are loaded; the values are those of the command line."""

    NONE = "none"  # all models at the start of the server
    POLL = "poll"  # all models at the start, and later changes of the files
    EXPLICIT = "explicit"  # the models that clients load


class RepositorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of model repositories; the defaults are Triton's."""

    repositories: tuple[Path, ...]
    # Those of all repositories, also of remote ones; none: no two models may have the same name.
    namespaces: tuple[str, ...] = ()
    control_mode: ControlMode = ControlMode.NONE
    startup_models: tuple[str, ...] = ()  # in mode EXPLICIT; "*" stands for all
    config_name: str | None = None  # of the configurations in `configs`
    may_complete: bool = True  # whether models may complete their configurations
    load_limit: int = 4  # versions that are loaded at a time
    retry_count: int = 0  # of a version that fails to load
    load_timeout_s: float = 0.0  # of each attempt; 0: no limit
    poll_interval_s: float = 15.0
    allows_outside_links: bool = False  # models may be links out of the repositories
    awaits_bound_models: bool = False  # an ensemble without a model may wait for its binding
    backend_folders: BackendFolders = BackendFolders()
    agent_directory: str = "/opt/tritonserver/repoagents"  # where Triton has its agents
    signing: SigningSettings = SigningSettings()
    gpu_ids: tuple[int, ...] = ()
    visible_devices: str | None = None  # the server's CUDA_VISIBLE_DEVICES
    executor: Executor = "local"  # of models that do not choose it
    ray_start_timeout_s: float = DEFAULT_START_TIMEOUT_S  # of an instance on Ray
    drain_timeout_s: float | None = None  # of a version that is unloaded; None: no limit
