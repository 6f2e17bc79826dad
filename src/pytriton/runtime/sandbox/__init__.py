# SPDX-License-Identifier: Apache-2.0
"""The sandbox of worker processes: what it is made of, and the system calls that apply it."""
