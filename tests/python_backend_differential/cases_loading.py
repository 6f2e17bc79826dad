# SPDX-License-Identifier: Apache-2.0
"""Loading: what stops it and with which words, what auto_complete_config makes, and the end."""

from __future__ import annotations

from tests.python_backend_differential import clients
from tests.python_backend_differential.variants import AUTO_COMPLETED, FAILING, LOADING
from tests.recorded_suite import Case, Observation, Server

COMPARED_FIELDS = [
    "name",
    "backend",
    "platform",
    "max_batch_size",
    "input",
    "output",
    "dynamic_batching",
    "instance_group",
    "model_transaction_policy",
    "default_model_filename",
    "parameters",
]


def load(server: Server, name: str) -> Observation:
    """Why a model could not be loaded, or the configuration that it was loaded with."""

    def call() -> Observation:
        client.load_model(name)
        config = client.get_model_config(name)
        return {key: config[key] for key in COMPARED_FIELDS if key in config}

    with clients.open_http(server) as client:
        return clients.outcome(server, call)


def loaded(name: str) -> Case:
    def ask(server: Server) -> dict[str, Observation]:
        return {"load": load(server, name)}

    return Case(f"load {name}", ask)


def loaded_and_asked(name: str) -> Case:
    def ask(server: Server) -> dict[str, Observation]:
        return {
            "load": load(server, name),
            "answer": clients.infer_over_http(server, name, {}),
        }

    return Case(f"load {name}", ask)


def is_ready(server: Server, name: str) -> Observation:
    """Whether clients are told that a model is ready."""
    with clients.open_http(server) as client:
        return [bool(client.is_model_ready(name)), bool(client.is_model_ready(name, "1"))]


def life(server: Server) -> dict[str, Observation]:
    """All that a model logs from its start to its end."""
    answer = clients.infer_over_http(server, "lifelog", {})
    with clients.open_http(server) as client:
        client.unload_model("lifelog")
    return {"answer": answer, "log": clients.log_lines(server, "life: ", "life: never mind")}


CASES = (
    *(loaded(name) for name in (*AUTO_COMPLETED, *FAILING)),
    *(loaded_and_asked(name) for name in LOADING),
    Case("life", life),
    Case("ready", lambda server: {"hook": is_ready(server, "with_is_ready")}),
)
