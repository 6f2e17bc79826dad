# SPDX-License-Identifier: Apache-2.0
"""Records, datatypes, errors and small helpers that every floor may import."""
