# SPDX-License-Identifier: Apache-2.0
"""TODO: says what belongs in this floor."""
