# SPDX-License-Identifier: Apache-2.0
"""Parses large JSON in separate processes, because a parser blocks all threads of its process."""
