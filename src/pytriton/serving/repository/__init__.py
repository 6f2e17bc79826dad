# SPDX-License-Identifier: Apache-2.0
"""Model repositories: which models they contain, which are loaded, and their states."""
