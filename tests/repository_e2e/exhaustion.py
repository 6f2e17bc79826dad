# SPDX-License-Identifier: Apache-2.0
"""Lets resources of real processes run out, and be there again.

Limits of the system are set for single processes. Root is not bound by a limit of processes or
threads, and disks and shared memory of a machine belong to others too; so a small library in C
makes the calls fail that would ask for them, while a file says so.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

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


SPARE_BYTES = 24 << 20  # for what small requests need


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
