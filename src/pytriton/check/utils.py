# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of programs that serve models, under the name from which users import them."""

from __future__ import annotations

from pytriton.tools.check.utils import (
    DEFAULT_LOG_FORMAT,
    ProcessMonitoring,
    ProcessMonitoringThread,
    ScriptThread,
    TestMonitoringContext,
    find_free_port,
    get_current_container_version,
    search_warning_on_too_verbose_log_level,
    verify_docker_image_in_readme_same_as_tested,
)

__all__ = [
    "DEFAULT_LOG_FORMAT",
    "ProcessMonitoring",
    "ProcessMonitoringThread",
    "ScriptThread",
    "TestMonitoringContext",
    "find_free_port",
    "get_current_container_version",
    "search_warning_on_too_verbose_log_level",
    "verify_docker_image_in_readme_same_as_tested",
]
