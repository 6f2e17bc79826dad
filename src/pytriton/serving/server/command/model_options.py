# SPDX-License-Identifier: Apache-2.0
"""The options of `tritonserver` about repositories, backends, models and their memory."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.serving.server.command.option import Option, Takes, each, integer, path, switch, text

MODEL_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "Model repository": (
        Option(
            "model-repository",
            Takes.PATH,
            "",
            "Folder with models, or s3://, gs:// or as:// address of one. Required; may be "
            "repeated. A model that is in two repositories is not served, unless "
            "--model-namespacing is true.",
            is_repeatable=True,
        ),
        Option(
            "model-store",
            Takes.PATH,
            "",
            "The same as --model-repository.",
            is_repeatable=True,
            becomes=("model-repository", ""),
        ),
        switch("exit-on-error", "true", "End the server if a model cannot be loaded at start."),
        switch(
            "strict-readiness",
            "true",
            "Report ready only while all models are; if false, as soon as it listens.",
        ),
        Option(
            "disable-auto-complete-config",
            Takes.NOTHING,
            "",
            "Do not complete configurations: each model needs a complete config.pbtxt.",
        ),
        text(
            "model-control-mode",
            "none",
            "none: load all models at start. poll: also follow changes of the repository. "
            "explicit: load the models of --load-model, and those that clients request.",
            "none|poll|explicit",
        ),
        integer("repository-poll-secs", "15", "Seconds between two checks in mode poll."),
        each(
            "load-model",
            "<model>",
            "Model to load at start in mode explicit; may be repeated. A single * means all.",
        ),
        text(
            "model-config-name", "", "Use configs/<name>.pbtxt of a model if it exists.", "<name>"
        ),
        integer("model-load-thread-count", "4", "Number of models to load at the same time."),
        integer("model-load-retry-count", "0", "Number of further attempts if loading fails."),
        Option(
            "model-load-timeout-secs",
            Takes.NUMBER,
            "0",
            "Maximum seconds for each attempt to load a model version; 0 means no limit. The "
            "parameter LOAD_TIMEOUT_SECS of a model takes precedence. Not an option of Triton.",
        ),
        switch(
            "allow-repository-links",
            "false",
            "Allow models that are links out of the repositories. Not an option of Triton.",
        ),
        switch(
            "model-namespacing",
            "false",
            "Serve models of the same name from several repositories.",
        ),
        switch(
            "enable-peer-access", "true", "Let GPUs access each other's memory.", has_effect=False
        ),
    ),
    "Backends": (
        path(
            "backend-directory",
            "/opt/tritonserver/backends",
            "Folder with a folder for each backend: its library, or its model.py.",
        ),
        each(
            "backend-config",
            "[<backend>,]<setting>=<value>",
            "Setting of one backend, or of all: default-max-batch-size (4). May be repeated.",
        ),
        path(
            "repoagent-directory",
            "/opt/tritonserver/repoagents",
            "Folder with repository agents in C or C++. The agent checksum needs none.",
        ),
    ),
    "Ray cluster": (
        text(
            "executor",
            "local",
            "ray: run models as actors of a Ray cluster, with instance_group.count as the number "
            "of actors; local: on this machine. The parameter EXECUTOR of a model takes "
            "precedence. This and the following are not options of Triton.",
            "local|ray",
        ),
        text(
            "ray-address",
            "",
            "Address of the cluster, <host>:<port>. Without it, the variable RAY_ADDRESS, or the "
            "cluster that this machine is part of.",
            "<address>",
        ),
        text(
            "ray-instance-address",
            "",
            "Name or IP address of this machine for the actors, which connect to it. Without it, "
            "the one that Ray uses.",
            "<host>",
        ),
        integer(
            "ray-instance-port",
            "0",
            "Port for the connections of actors; 0 means a free one.",
        ),
        path(
            "ray-working-dir",
            "",
            "Folder with modules that models import; Ray copies it to all nodes. Files of models "
            "are not taken from there.",
        ),
        Option(
            "ray-start-timeout",
            Takes.NUMBER,
            "120",
            "Maximum seconds until an actor runs, the wait for free resources included. The "
            "parameter RAY_START_TIMEOUT_S of a model takes precedence.",
        ),
    ),
    "Response cache": (
        each(
            "cache-config",
            "<cache>,<setting>=<value>",
            "local,size=<bytes> caches responses of models whose configuration allows it.",
        ),
        path(
            "cache-directory",
            "/opt/tritonserver/caches",
            "Folder with caches in C or C++.",
            has_effect=False,
        ),
    ),
    "Rate limiter": (
        text(
            "rate-limit",
            "off",
            "execution_count: an instance runs when the resources that it needs are free.",
            "off|execution_count",
        ),
        each(
            "rate-limit-resource",
            "<name>:<count>[:<device>]",
            "Available amount of a resource, on one device or on each. May be repeated.",
        ),
    ),
    "Memory and devices": (
        switch("allow-client-shm", "false", "Let clients register shared memory."),
        integer(
            "pinned-memory-pool-byte-size",
            "268435456",
            "Size of the pool that metrics report; this server allocates none.",
        ),
        each(
            "cuda-memory-pool-byte-size",
            "<device>:<bytes>",
            "Size of a GPU's memory pool.",
            has_effect=False,
        ),
        each(
            "cuda-virtual-address-size",
            "<device>:<bytes>",
            "Maximum size of a growable state.",
            has_effect=False,
        ),
        Option(
            "min-supported-compute-capability",
            Takes.NUMBER,
            "7.5",
            "Minimum compute capability of a GPU; passed on to backends.",
        ),
        integer("buffer-manager-thread-count", "0", "Number of copy threads.", has_effect=False),
        each(
            "host-policy",
            "<policy name>,<setting>=<value>",
            "CPU cores (cpu-cores) or memory node (numa-node) for instances.",
            has_effect=False,
        ),
        each(
            "model-load-gpu-limit",
            "<device>:<fraction>",
            "Share of a GPU's memory in use above which no model is loaded.",
            has_effect=False,
        ),
    ),
}
