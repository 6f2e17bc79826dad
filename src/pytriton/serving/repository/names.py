# SPDX-License-Identifier: Apache-2.0
"""Names and identifiers of models, if models of several repositories may have the same name.

Clients and ensembles name models. Each repository is a namespace; identifiers have both names.
Without namespaces, the identifier of a model is its name.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from pytriton.base.model_spec import identifier_of


class ModelNames:
    """Finds what names can mean.

    Args:
        namespaces: Those of all repositories; none if models are told apart by their names.
    """

    def __init__(self, namespaces: Sequence[str] = ()) -> None:
        self._namespaces = tuple(dict.fromkeys(namespaces))

    def split(self, identifier: str) -> tuple[str, str]:
        """Returns the namespace of a model, empty if it has none, and its name."""
        for namespace in self._namespaces:
            start = identifier_of(namespace, "")
            if identifier.startswith(start):
                return namespace, identifier.removeprefix(start)
        return "", identifier

    def identifiers(self, name: str) -> list[str]:
        """Returns all identifiers that models of this name could have."""
        # Models that were bound or whose files were sent have no namespace.
        return [name, *(identifier_of(namespace, name) for namespace in self._namespaces)]

    def among(self, name: str, known: Container[str]) -> list[str]:
        """Returns the identifiers of the known models of this name."""
        return [each for each in self.identifiers(name) if each in known]

    def find(self, name: str, namespace: str, is_known: Callable[[str], bool]) -> str | None:
        """Returns the model that another one means: of its own namespace, or the only one.

        Args:
            name: The name.
            namespace: That of the model that names it.
            is_known: Returns whether there is a model with an identifier.

        Returns:
            The identifier; None if no model has this name, or if several have it.
        """
        own = identifier_of(namespace, name)
        if is_known(own):
            return own
        found = [each for each in self.identifiers(name) if is_known(each)]
        return found[0] if len(found) == 1 else None

    def __repr__(self) -> str:
        return f"<ModelNames of {len(self._namespaces)} namespaces>"
