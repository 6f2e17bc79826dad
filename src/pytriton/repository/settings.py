# SPDX-License-Identifier: Apache-2.0
"""How models of repositories are kept: where they lie, which ones serve, how they are loaded."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec


class ControlMode(enum.Enum):
    """Who decides which models serve; the values are those of the command line."""

    NONE = "none"  # all that are there when the server starts
    POLL = "poll"  # all that are there, and what changes
    EXPLICIT = "explicit"  # clients


class RepositorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of model repositories; the defaults are Triton's."""

    repositories: tuple[Path, ...]
    control_mode: ControlMode = ControlMode.NONE
    startup_models: tuple[str, ...] = ()  # with clients in control; "*" stands for all
    config_name: str | None = None  # of the configurations in `configs`
    may_complete: bool = True  # whether models may complete their configurations
    load_limit: int = 4  # versions that are loaded at a time
    retry_count: int = 0  # of a version that fails to load
    load_timeout_s: float = 0.0  # of each attempt; 0: as long as it takes
    poll_interval_s: float = 15.0
    may_leave_by_links: bool = False  # models may be links to places outside the repositories
    gpu_ids: tuple[int, ...] = ()
    visible_devices: str | None = None  # the server's CUDA_VISIBLE_DEVICES
    drain_timeout_s: float | None = None  # of a version that is unloaded; None: as long as it takes
