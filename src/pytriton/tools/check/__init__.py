# SPDX-License-Identifier: Apache-2.0
"""Helpers to check an installation, and to test programs that serve models."""
