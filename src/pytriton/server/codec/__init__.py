# SPDX-License-Identifier: Apache-2.0
"""Large JSON, read by processes of their own: a parser holds all threads of the one it runs in."""
