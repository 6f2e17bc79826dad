# SPDX-License-Identifier: Apache-2.0
"""Where our clients or our server deliberately do otherwise than NVIDIA PyTriton 0.7, and why.

`recorded/ours.json` has what they do. Names of cases are patterns, and all that match differ.
"""

from __future__ import annotations

_NAMES_BY_REASON = {
    "who waits in vain for a model gets the exception that the documentation promises": """
        unknown model, *: *
        unknown version, *: *
        version that is no number, *: *
        empty name: *
        name with a slash: *
        name with a space: *
        None for a name: * grpc
        model ready, unknown*: *
        asyncio model ready, unknown: *
        config, unknown: *
        asyncio config, unknown: *
        exception PyTritonClientModelUnavailableError
    """,
    "times are kept where a server takes connections and says nothing": """
        nobody answers, infer: ModelClient *
        nobody answers, infer: FuturesModelClient *
        nobody answers, infer: DecoupledModelClient *
        nobody answers, wait: ModelClient *
        nobody answers, wait: FuturesModelClient *
        nobody answers, config: ModelClient *
        nobody answers, config: FuturesModelClient *
        nobody answers, at once: ModelClient *
        warnings over grpc
    """,
    "the synchronous stream client keeps its time for each response": """
        pause at first: DecoupledModelClient *
        pause between: DecoupledModelClient *
    """,
    "every client and helper takes a token, or headers to carry one": """
        * server, right token: FuturesModelClient *
        * server, right token: AsyncioModelClient *
        * server, right token: DecoupledModelClient *
        * server, right token: AsyncioDecoupledModelClient *
        stream, token: *
        methods of FuturesModelClient
        methods of AsyncioModelClient
        methods of DecoupledModelClient
        methods of AsyncioDecoupledModelClient
        signature of asyncio_*
    """,
    "clients speak TLS, and take what they trust and show": """
        address 'https://host'
        methods of ModelClient
    """,
    "the token goes with every request, also with those for readiness and configurations": """
        private server, right token: ModelClient *
    """,
    "what a server refuses is an exception of the clients, not of the official package or gRPC": """
        private server, wrong token: *
        private server, no token: *
        config, protected: *
        stream without token: *
        unload and load what is unknown: *
    """,
    "a bound model that was unloaded can be loaded again": """
        unload and load: *
    """,
    "the server's index has the bound models": """
        state: *
        state of a version: *
        state, no token needed: *
        asyncio state: *
    """,
    "a copy of a client speaks its protocol, and every client can be copied": """
        from an existing client: grpc
        from an unused client: grpc
        from an existing stream client: *
        from an existing asyncio client: *
        from an existing asyncio stream client: *
        futures of four workers: grpc
        futures of any number of workers: grpc
    """,
    "inputs are checked, and the exception says what is wrong with them": """
        a list: *
        a list of a batch: ModelClient *
        a list of a batch: FuturesModelClient *
        a list for a model without batching: ModelClient *
        a list for a model without batching: FuturesModelClient *
        a number: *
        None: *
        None by name: *
        complex numbers: *
        dates: *
        long doubles: *
        big endian: *
        records: *
        stream with a list: *
        more inputs than the model has: *
        given another configuration, unchecked: *
    """,
    "text for bytes is one of the clients' errors too, beside RuntimeError": """
        text: *
        objects of None: *
        objects of numbers: *
        objects of text: *
        stream with text: *
    """,
    "priority, timeout and sequence are set among the parameters": """
        parameters, a reserved name: *
        parameters, a sequence's name: *
    """,
    "an unknown input is refused with the names of those there are": """
        stream with an unknown input: *
        used after an unknown input: DecoupledModelClient
    """,
    "an array without elements is an array": """
        empty rows: *
        empty array of bytes: *
        empty array of objects: *
    """,
    "a batch without rows is called that": """
        zero rows: *
        stream with zero rows: *
    """,
    "inputs are looked at in the order of the request, not of a hash table": """
        unknown input: *
        wrong type of both: *
        bytes for numbers: *
        a scalar: *
        a sample for a batch: *
        other numbers of rows: *
    """,
    "headers may be written in capitals over gRPC too": """
        headers, capitals: * grpc
    """,
    "headers may be numbers over gRPC too": """
        headers, a number: * grpc
        headers, true: * grpc
    """,
    "the message says what the model returned": """
        a model that answers nothing: *
        a model that answers a dict: *
        a model that answers no batch axis: *
        a model that answers a list for an array: *
        a model that answers a number for a name: *
        a strict model that answers nothing: *
        a strict model that answers a dict: *
        a strict model that answers no batch axis: *
        a strict model that answers a list for an array: *
        a strict model that answers a number for a name: *
    """,
    "a generator that yields too often is told so instead of waiting for ever": """
        a model that yields twice: *
    """,
    "errors of decoupled models name the model, as those of others do": """
        error at first: *
        error later: *
        by a coroutine, error: *
        without batching, error: *
        next after an error: *
        used after an error: DecoupledModelClient
        used after an error: AsyncioDecoupledModelClient
        streams side by side: *
    """,
    "parameters of a stream reach the model": """
        streamed parameters: *
    """,
    "an output that was not returned is an error, not an answer without it": """
        a model that answers empty dict: *
        a model that answers unknown output: *
        a strict model that answers empty dict: *
        unknown output: *
    """,
    "responses to a stream that was given up do not reach the next one": """
        abandoned stream: DecoupledModelClient
        closed iterator: *
    """,
    "a stream client can be used after a mistake": """
        used after text: *
        used after parameters: *
        coupled model twice: *
    """,
    "closing never raises, and a closed client says that it is closed": """
        closed before the first response: *
        stream client closed twice: *
        closed client, server's methods: *
        asyncio, used after close: *
    """,
    "a worker survives a future that was cancelled": """
        futures, cancelled: *
    """,
    "an address without a host is none, and one of IPv6 has brackets": """
        address ''
        address '//host'
        address ':8000'
        address 'a b'
        address 'grpc://:8001'
        address 'http://'
        address '[[]::1]:8000'
        address 'http://[[]::1]'
    """,
    "port 0 is not taken for a port that was left out": """
        address 'grpc://host:0'
    """,
    "names of headers may be in any case": """
        token in headers, capitals
    """,
}

KNOWN_DIFFERENCES = {
    name.strip(): reason
    for reason, names in _NAMES_BY_REASON.items()
    for name in names.strip().splitlines()
}
