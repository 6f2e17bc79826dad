# SPDX-License-Identifier: Apache-2.0
"""Lets resources of real processes run out, and be there again.

Limits of the system are set for single processes. Root is not bound by a limit of processes or
threads, and disks and shared memory of a machine belong to others too; so a small library in C
makes the calls fail that would ask for them, while a file says so.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import queue
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.e2e.waiting import DEADLINE_S

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_out_of(const char *what) {
    const char *folder = getenv("EXHAUSTED");
    char path[4096];
    int before = errno, found;
    if (folder == NULL) return 0;
    snprintf(path, sizeof path, "%s/%s", folder, what);
    found = access(path, F_OK) == 0;
    errno = before;
    return found;
}

#define REAL(type, name, ...) ((type (*)(__VA_ARGS__)) dlsym(RTLD_NEXT, name))

pid_t fork(void) {
    if (is_out_of("processes")) { errno = EAGAIN; return -1; }
    return REAL(pid_t, "fork", void)();
}
pid_t vfork(void) { return fork(); }  /* the frame of a function that calls the real one is lost */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                   void *(*run)(void *), void *argument) {
    if (is_out_of("threads")) return EAGAIN;
    return REAL(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *),
                void *)(thread, attributes, run, argument);
}

int memfd_create(const char *name, unsigned int flags) {
    if (is_out_of("shared_memory")) { errno = ENOSPC; return -1; }
    return REAL(int, "memfd_create", const char *, unsigned int)(name, flags);
}

int mkdir(const char *path, mode_t mode) {
    if (is_out_of("disk")) { errno = ENOSPC; return -1; }
    return REAL(int, "mkdir", const char *, mode_t)(path, mode);
}

static int create(const char *real, const char *path, int flags, mode_t mode) {
    if ((flags & O_CREAT) && is_out_of("disk")) { errno = ENOSPC; return -1; }
    return REAL(int, real, const char *, int, mode_t)(path, flags, mode);
}
#define MODE mode_t mode = 0; va_list rest; \
    if (flags & O_CREAT) { va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
int open(const char *path, int flags, ...) { MODE return create("open", path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return create("open64", path, flags, mode); }
"""


class Exhaustion:
    """The resources that some processes can run out of."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler")
        folder.mkdir()
        source, library = folder / "exhaust.c", folder / "exhaust.so"
        source.write_text(LIBRARY)
        flags = ["-shared", "-fPIC", "-w", "-D_FILE_OFFSET_BITS=32"]
        command = [compiler, *flags, str(source), "-o", str(library), "-ldl"]
        subprocess.run(command, check=True)
        self._marks = folder / "marks"
        self._marks.mkdir()
        self.environment = {"LD_PRELOAD": str(library), "EXHAUSTED": str(self._marks)}

    @contextlib.contextmanager
    def of(self, what: str, processes: Iterable[psutil.Process]) -> Iterator[None]:
        """Let the processes run out of a resource until the end of a block."""
        if what == "descriptors":
            with limited(psutil.RLIMIT_NOFILE, processes, _descriptors_in_use):
                yield
        elif what == "address_space":
            with limited(
                psutil.RLIMIT_AS, processes, lambda it: it.memory_info().vms + SPARE_BYTES
            ):
                yield
        else:
            kinds = ("processes", "threads") if what == "pids" else (what,)
            for kind in kinds:
                (self._marks / kind).touch()
            try:
                yield
            finally:
                for kind in kinds:
                    (self._marks / kind).unlink()


SPARE_BYTES = 12 << 20  # for what small requests need


def _descriptors_in_use(process: psutil.Process) -> int:
    """The lowest limit that leaves no number free below those in use."""
    numbers = {int(path.name) for path in Path(f"/proc/{process.pid}/fd").iterdir()}
    return next(number for number in range(len(numbers) + 1) if number not in numbers)


@contextlib.contextmanager
def limited(kind, processes, limit_of):
    before = []
    try:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                soft, hard = process.rlimit(kind)
                before.append((process, (soft, hard)))
                process.rlimit(kind, (limit_of(process), hard))
        yield
    finally:
        for process, limits in before:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(kind, limits)


# Clients

SMALL, LARGE = 4, 5 << 20  # numbers of 4 bytes; a segment of shared memory has 16 MiB
REASONS = (
    "the server has no ",  # descriptors, memory, …
    "no room for a tensor of ",
    "no memory for a request body of ",
    "has had no instance for ",
)


class LackError(Exception):
    """The server's answer that a resource is missing."""


@contextlib.contextmanager
def typed():
    """Turns an error about a missing resource into `LackError`; others fail the test."""
    try:
        yield
    except InferenceServerException as error:
        if str(error.status()).rpartition(".")[2] not in ("503", "UNAVAILABLE"):
            raise
        check_reason(error.message())
        raise LackError from error


def check_reason(text):
    assert any(reason in text for reason in REASONS), text


def lacks(call):
    """Whether a call was refused because something is missing."""
    try:
        call()
    except LackError:
        return True
    return False


class Clients:
    """Clients that connect before anything runs out; answers are right, or are a LackError."""

    def __init__(self, http_port, grpc_port, metrics_port, stack) -> None:
        self._stack = stack
        settings = {"network_timeout": DEADLINE_S, "connection_timeout": DEADLINE_S}
        self._http = stack.enter_context(
            triton_http.InferenceServerClient(f"127.0.0.1:{http_port}", **settings)
        )
        self._grpc = stack.enter_context(
            triton_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}")
        )
        self._plain, self._other = (self._connect(http_port) for _ in range(2))
        self._metrics = self._connect(metrics_port)
        self.http()
        self.grpc()
        self.stream()
        assert (self.health(), self.readiness(), self.metrics()) == (200, 200, 200)
        assert self._get(self._other, "/v2/health/live") == 200

    def _connect(self, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        self._stack.callback(connection.close)
        return connection

    def share_memory(self):
        """Register a region, for `client_memory`."""
        key = f"/pytriton-test-{uuid.uuid4().hex}"
        region = shm.create_shared_memory_region("region", key, 4 * LARGE)
        self._stack.callback(shm.destroy_shared_memory_region, region)
        shm.set_shared_memory_region(region, [np.ones((1, LARGE), np.float32)])
        self._http.register_system_shared_memory("region", key, 4 * LARGE)

    @staticmethod
    def _get(connection, path):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def health(self):
        return self._get(self._plain, "/v2/health/live")

    def readiness(self):
        return self._get(self._plain, "/v2/health/ready")

    def serves(self, name):
        return self._get(self._plain, f"/v2/models/{name}/ready") == 200

    def metrics(self):
        return self._get(self._metrics, "/metrics")

    # Requests

    def http(self, size=SMALL, name="plain"):
        x = np.ones((1, size), np.float32)
        tensor = triton_http.InferInput("X", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        with typed():
            answer = self._http.infer(name, [tensor])
            assert np.array_equal(answer.as_numpy("Y"), x)

    def http_large(self):
        self.http(LARGE)

    def ensemble(self):
        self.http(name="chain")

    def ensemble_large(self):
        self.http(LARGE, "chain")

    def client_memory(self):
        tensor = triton_http.InferInput("X", (1, LARGE), "FP32")
        tensor.set_shared_memory("region", 4 * LARGE)
        with typed():
            answer = self._http.infer("plain", [tensor])
            assert answer.as_numpy("Y").sum() == LARGE

    def grpc(self, size=SMALL):
        x = np.ones((1, size), np.float32)
        tensor = triton_grpc.InferInput("X", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        with typed():
            answer = self._grpc.infer("plain", [tensor])
            assert np.array_equal(answer.as_numpy("Y"), x)

    def grpc_large(self):
        self.grpc(LARGE)

    def stream(self):
        x = np.ones((1, SMALL), np.float32)
        tensor = triton_grpc.InferInput("X", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        answers = queue.Queue()
        self._grpc.start_stream(lambda result, error: answers.put(error or result))
        try:
            self._grpc.async_stream_infer("count", [tensor])
            with typed():
                for number in range(2):
                    answer = answers.get(timeout=DEADLINE_S)
                    if isinstance(answer, Exception):  # on streams they have no status
                        check_reason(answer.message())
                        raise LackError from answer
                    assert np.array_equal(answer.as_numpy("Y"), x + number)
        finally:
            self._grpc.stop_stream()

    def upload(self, config, source):
        """Load a model from files, which takes threads, processes and space on a disk."""
        path = "/v2/repository/models/loaded/load"
        files = {"file:1/model.py": base64.b64encode(source.encode()).decode()}
        body = json.dumps({"parameters": {"config": config, **files}})
        self._other.request("POST", path, body)
        answer = self._other.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            assert answer.status == 503, text
            check_reason(text)
            raise LackError
