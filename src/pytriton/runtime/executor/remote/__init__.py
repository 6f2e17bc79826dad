# SPDX-License-Identifier: Apache-2.0
"""Instances whose processes run on other machines, or were started by another program."""
