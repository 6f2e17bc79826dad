# SPDX-License-Identifier: Apache-2.0
"""A model's configuration, for `auto_complete_config` to complete."""

from __future__ import annotations

import json
from typing import Any

_OTHER_SCHEDULERS = ("sequence_batching", "ensemble_scheduling")
_INPUT_PROPERTIES = ("name", "data_type", "dims", "optional")
_OUTPUT_PROPERTIES = ("name", "data_type", "dims")


class ModelConfig:
    """The configuration from the file. A model may complete it, but not contradict it.

    Args:
        model_config: The configuration as JSON text.
    """

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Returns the configuration itself, not a copy: changes take effect."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the maximum batch size.

        Raises:
            ValueError: The configuration has a larger maximum batch size.
        """
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in"
                f" auto-complete-config function for model '{self._name()}' specified"
                f" max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable dynamic batching: the server forms batches of single requests.

        Raises:
            ValueError: The configuration chooses another scheduler.
        """
        for scheduler in _OTHER_SCHEDULERS:
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but"
                    f" auto-complete-config function for model '{self._name()}' tries to set"
                    " scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:  # noqa: A002  models may name it
        """Add an input, or complete the input of that name.

        Args:
            input: Its `name`, `data_type`, `dims` and, if it may be missing, `optional`.

        Raises:
            ValueError: A property is missing or unknown, or the configuration has another value.
        """
        self._add("input", input, _INPUT_PROPERTIES, "'name', 'data_type', 'dims' and 'optional'")

    def add_output(self, output: dict[str, Any]) -> None:
        """Add an output, or complete the output of that name.

        Args:
            output: Its `name`, `data_type` and `dims`.

        Raises:
            ValueError: A property is missing or unknown, or the configuration has another value.
        """
        self._add("output", output, _OUTPUT_PROPERTIES, "'name', 'data_type' and 'dims'")

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Set whether the model is decoupled.

        Args:
            transaction_policy_dict: A dict with the single key `decoupled`.

        Raises:
            ValueError: There is another key, or the configuration has another value.
        """
        if set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(
                "model transaction property in auto-complete-config function for model"
                f" '{self._name()}' contains property other than 'decoupled'."
            )
        if "decoupled" not in transaction_policy_dict:
            return
        policy = self._model_config.setdefault("model_transaction_policy", {})
        configured = policy.get("decoupled")
        if configured not in (None, transaction_policy_dict["decoupled"]):
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model"
                f" '{self._name()}', which is already set to '{configured}'."
            )
        policy["decoupled"] = transaction_policy_dict["decoupled"]

    def _name(self) -> str:
        return str(self._model_config.get("name", ""))

    def _add(
        self, kind: str, tensor: dict[str, Any], properties: tuple[str, ...], in_words: str
    ) -> None:
        context = f"in auto-complete-config function for model '{self._name()}'"
        if "name" not in tensor:
            raise ValueError(f"{kind} {context} is missing 'name' property.")
        subject = f"{kind} '{tensor['name']}' {context}"
        if set(tensor) - set(properties):
            raise ValueError(f"{subject} contains property other than {in_words}.")
        for required in ("data_type", "dims"):
            if required not in tensor:
                raise ValueError(f"{subject} is missing '{required}' property.")
        entries = self._model_config.setdefault(kind, [])
        for entry in entries:
            if entry["name"] == tensor["name"]:
                self._check_agreement(kind, entry, tensor)
                entry.update(tensor)
                return
        entries.append(dict(tensor))

    def _check_agreement(self, kind: str, entry: dict[str, Any], tensor: dict[str, Any]) -> None:
        configured = entry.get("data_type", "TYPE_INVALID")
        if configured not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name()}', configuration expects datatype"
                f" {configured} for {kind} '{tensor['name']}', model provides"
                f" {tensor['data_type']}"
            )
        for field in ("dims", "optional"):
            if field in tensor and entry.get(field) not in (None, [], tensor[field]):
                raise ValueError(
                    f"model '{self._name()}', tensor '{tensor['name']}': the model expects"
                    f" {field} {tensor[field]} but the model configuration specifies {field}"
                    f" {entry[field]}"
                )
