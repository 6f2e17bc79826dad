# SPDX-License-Identifier: Apache-2.0
"""Helpers to try out an installation, and to test programs that serve models."""
