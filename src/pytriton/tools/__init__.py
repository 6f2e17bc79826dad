# SPDX-License-Identifier: Apache-2.0
"""The commands of `pytriton`, the load generator and their reports."""
