# SPDX-License-Identifier: Apache-2.0
"""Instances on a Ray cluster: the process that starts their actors, and both sides of it."""
