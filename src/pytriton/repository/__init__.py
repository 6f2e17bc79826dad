# SPDX-License-Identifier: Apache-2.0
"""Model repositories: what lies in them, what is loaded of it, and in which state it is."""
