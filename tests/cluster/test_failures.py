# SPDX-License-Identifier: Apache-2.0
"""Ray's errors in words."""

from __future__ import annotations

from pytriton.runtime.cluster.cluster import describe_failure, is_cluster_gone


class RpcError(Exception):
    """As Ray names an error of its connection to the head."""


def test_node_without_this_package_is_named_as_such():
    error = RuntimeError("failed to import\n\x1b[36mray::x\x1b[39m No module named 'pytriton'")

    assert describe_failure(error) == (
        "the Python of a node cannot import 'pytriton': install this server's version of pytriton "
        "on all nodes of the cluster"
    )


def test_missing_cluster_is_said_with_the_way_out():
    error = ConnectionError("Could not find any running Ray instance. Please specify ...")

    assert "ray start --head" in describe_failure(error)
    assert is_cluster_gone(error)


def test_cluster_that_refuses_the_connection_may_want_a_token():
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")

    assert describe_failure(error).startswith("Failed to connect to Ray cluster at 10.0.0.1:6379. ")
    assert "RAY_AUTH_MODE=token" in describe_failure(error)


def test_other_errors_keep_their_words_without_colours_and_at_a_length_that_can_be_read():
    assert describe_failure(RuntimeError("\x1b[31mno disk\x1b[0m")) == "no disk"
    assert describe_failure(RuntimeError()) == "RuntimeError"
    assert len(describe_failure(RuntimeError("x" * 50_000))) < 2100


def test_lost_actor_is_said_in_one_line_without_its_ids():
    error = RuntimeError(
        "The actor died before finishing this task.\n\tclass_name: ActorShell\n\tactor_id: 61"
        "\n\tpid: 5\n\tname: Add_0_0-1\n\tnamespace: pytriton-1\n\tip: 10.0.0.2\n"
        "The actor died because its node has died. Node Id: e5\n\tits health check failed"
    )

    assert describe_failure(error) == (
        "The actor died before finishing this task. The actor died because its node has died. "
        "Node Id: e5 its health check failed"
    )


def test_errors_of_the_connection_are_told_from_others():
    assert is_cluster_gone(RpcError())
    assert not is_cluster_gone(ValueError())
