# SPDX-License-Identifier: Apache-2.0
"""Where ours deliberately answers otherwise than Triton 2.51, and why.

`ours.json` has the answers, also to what the real server does not survive or never answers.
"""

from __future__ import annotations

_NAMES_BY_REASON = {
    "the server's process checks a call, so its refusal is the response": """
        call: unknown input
        call: unknown output
        call: wrong datatype
        call: wrong size
    """,
    "a priority is kept also for a model without levels": """
        call: request
    """,
    "the code has a name in later releases": """
        facts: errors
        load: failing_CANCELLED
    """,
    "the least compute capability is that of a later release": """
        facts: backend
    """,
    "there is no memory of GPUs": """
        facts: memory
    """,
    "the words have a blank between them, and an output that was refused does not count": """
        facts: responses
    """,
    "the server counts requests, batches and responses itself": """
        failures: counts
        repeat: counts
        square: counts
        square: scripted counts
    """,
    "an output without elements is in memory of the CPU, too": """
        identity empty: no elements
    """,
    "the server completes a configuration before it starts instances": """
        load: auto_late
    """,
    "later releases refuse a file outside of the backend's folder": """
        load: file_name_outside
    """,
    "a user has a folder for backends, too": """
        load: missing_file_name
    """,
    "a function of a later API is missed when it is called": """
        load: newer
    """,
    "an output whose size is not that of its shape is refused, also over gRPC": """
        odd large buffer: stream
        odd negative shape: stream
        odd small buffer: stream
    """,
    "the one response of a coupled model is the final one": """
        repeat coupled: stream
    """,
    "a state has the datatype of the configuration": """
        sequences: other datatype
    """,
}

KNOWN_DIFFERENCES = {
    name.strip(): reason
    for reason, names in _NAMES_BY_REASON.items()
    for name in names.strip().splitlines()
}
