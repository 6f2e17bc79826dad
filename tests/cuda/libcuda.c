/* SPDX-License-Identifier: Apache-2.0
 *
 * A library with the calls of CUDA's driver that the server uses, for machines without a GPU.
 * Memory of the device is shared memory of the host, so that handles work between processes. It is
 * a file without a name, which ends with the last process that has it, however that ends. The
 * library counts calls and fails where a test asks for that: see the functions fake_cuda_* at the
 * end. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
};
enum { MOST = 4096, NAMES = 64, DEVICES = 8, DEPTH = 32 };

typedef struct { char text[64]; } Handle;
typedef struct { uintptr_t address; size_t size; int references; int is_opened; char name[64]; uint64_t id; int device; int file; } Range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialized_by;
static int retained[DEVICES];
static Range registered[MOST], device[MOST];
static struct { const char *name; int count, code; } calls[NAMES];
static __thread int stack[DEPTH], depth; /* numbers of devices, plus one */
static int allocation_count;
static uint64_t range_count; /* numbers of allocations, and of those opened */

static int device_count(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *text = getenv("FAKE_CUDA_DEVICES");
    if (visible != NULL && *visible == 0) return 0;
    return text == NULL ? 1 : atoi(text);
}

static int note(const char *name) {
    int at = 0;
    while (at < NAMES - 1 && calls[at].name != NULL && strcmp(calls[at].name, name) != 0) at++;
    if (calls[at].name == NULL) calls[at].name = strdup(name);
    calls[at].count++;
    return calls[at].code;
}

/* Counts a call; its code is that of the test, or says that this process has not begun. */
static int enter(const char *name, int needs_context) {
    pthread_mutex_lock(&lock);
    int code = note(name);
    if (code == 0 && initialized_by != getpid()) code = NOT_INITIALIZED;
    if (code == 0 && needs_context && depth == 0) code = INVALID_CONTEXT;
    return code;
}

#define ENTER(needs_context)                             \
    int code = enter(__func__, needs_context);           \
    if (code != 0) return pthread_mutex_unlock(&lock), code
#define LEAVE(value) return pthread_mutex_unlock(&lock), (value)

static Range *find(Range *ranges, uintptr_t address, size_t size) {
    for (int at = 0; at < MOST; at++)
        if (ranges[at].size && ranges[at].address < address + size && address < ranges[at].address + ranges[at].size)
            return &ranges[at];
    return NULL;
}

static Range *room(Range *ranges) {
    for (int at = 0; at < MOST; at++)
        if (!ranges[at].size) return &ranges[at];
    abort();
}

static int is_device(uintptr_t address, size_t size) {
    Range *range = find(device, address, size);
    return range != NULL && address >= range->address && address + size <= range->address + range->size;
}

int cuInit(unsigned flags) {
    pthread_mutex_lock(&lock);
    int code = note(__func__);
    if (code != 0 || flags != 0) LEAVE(code != 0 ? code : INVALID_VALUE);
    if (initialized_by != 0 && initialized_by != getpid()) LEAVE(NOT_INITIALIZED); /* forked */
    if (device_count() == 0) LEAVE(NO_DEVICE);
    initialized_by = getpid();
    LEAVE(0);
}

int cuGetErrorName(int code, const char **name) {
    *name = code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : NULL;
    return *name == NULL ? INVALID_VALUE : 0;
}

int cuDeviceGetCount(int *count) {
    ENTER(0);
    *count = device_count();
    LEAVE(0);
}

int cuDeviceGet(int *number, int ordinal) {
    ENTER(0);
    if (ordinal < 0 || ordinal >= device_count()) LEAVE(INVALID_DEVICE);
    *number = ordinal;
    LEAVE(0);
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int number) {
    ENTER(0);
    memset(uuid, number + 1, 16);
    LEAVE(0);
}

int cuDevicePrimaryCtxGetState(int number, unsigned *flags, int *active) {
    ENTER(0);
    *flags = 0;
    *active = retained[number] > 0;
    LEAVE(0);
}

int cuDevicePrimaryCtxRetain(void **context, int number) {
    ENTER(0);
    retained[number]++;
    *context = (void *)(uintptr_t)(number + 1);
    LEAVE(0);
}

/* What is registered, opened or allocated ends with its context; here, all contexts share it. */
static void end_context(void) {
    for (int at = 0; at < MOST; at++) {
        registered[at].size = 0;
        if (device[at].size == 0) continue;
        if (!device[at].is_opened) shm_unlink(device[at].name);
        munmap((void *)device[at].address, device[at].size);
        device[at].size = 0;
    }
}

int cuDevicePrimaryCtxRelease_v2(int number) {
    ENTER(0);
    if (retained[number] == 0) LEAVE(INVALID_CONTEXT);
    if (--retained[number] == 0) end_context();
    LEAVE(0);
}

int cuCtxPushCurrent_v2(void *context) {
    ENTER(0);
    if (depth == DEPTH) LEAVE(INVALID_VALUE);
    stack[depth++] = (int)(uintptr_t)context;
    LEAVE(0);
}

int cuCtxPopCurrent_v2(void **context) {
    ENTER(1);
    *context = (void *)(uintptr_t)stack[--depth];
    LEAVE(0);
}

int cuCtxSetCurrent(void *context) {
    ENTER(0);
    if (depth == 0) depth = 1;
    stack[depth - 1] = (int)(uintptr_t)context;
    LEAVE(0);
}

int cuCtxGetCurrent(void **context) {
    ENTER(0);
    *context = depth == 0 ? NULL : (void *)(uintptr_t)stack[depth - 1];
    LEAVE(0);
}

int cuCtxGetDevice(int *number) {
    ENTER(1);
    *number = stack[depth - 1] - 1;
    LEAVE(0);
}

/* All work is done when it is asked for, so streams and events have nothing to do but to be valid. */

int cuStreamSynchronize(void *stream) {
    ENTER(1);
    (void)stream;
    LEAVE(0);
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    ENTER(1);
    (void)stream;
    LEAVE(event == NULL || flags != 0 ? INVALID_VALUE : 0);
}

int cuEventCreate(void **event, unsigned flags) {
    ENTER(1);
    (void)flags;
    *event = malloc(1);
    LEAVE(0);
}

int cuEventRecord(void *event, void *stream) {
    ENTER(1);
    (void)stream;
    LEAVE(event == NULL ? INVALID_VALUE : 0);
}

int cuEventDestroy_v2(void *event) {
    ENTER(0);
    free(event);
    LEAVE(0);
}

int cuCtxSynchronize(void) {
    ENTER(1);
    LEAVE(0);
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER(0);
    *mode = 0;
    LEAVE(0);
}

static int is_mapped(void *memory) {
    unsigned char page;
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    return mincore((void *)((uintptr_t)memory / size * size), 1, &page) == 0;
}

int cuMemHostRegister_v2(void *memory, size_t size, unsigned flags) {
    ENTER(1);
    (void)flags;
    if (find(registered, (uintptr_t)memory, size) != NULL) LEAVE(ALREADY_REGISTERED);
    if (size == 0 || !is_mapped(memory)) LEAVE(INVALID_VALUE);
    *room(registered) = (Range){(uintptr_t)memory, size, 1, 0, "", 0, 0, -1};
    LEAVE(0);
}

int cuMemHostUnregister(void *memory) {
    ENTER(1);
    Range *range = find(registered, (uintptr_t)memory, 1);
    if (range == NULL || range->address != (uintptr_t)memory) LEAVE(NOT_REGISTERED);
    if (!is_mapped(memory)) LEAVE(INVALID_VALUE); /* it was unmapped too early */
    range->size = 0;
    LEAVE(0);
}

int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t size) {
    ENTER(1);
    if (!is_device(source, size)) LEAVE(INVALID_VALUE);
    memcpy(target, (void *)source, size);
    LEAVE(0);
}

int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t size) {
    ENTER(1);
    if (!is_device(target, size)) LEAVE(INVALID_VALUE);
    memcpy((void *)target, source, size);
    LEAVE(0);
}

int cuMemcpyDtoD_v2(uint64_t target, uint64_t source, size_t size) {
    ENTER(1);
    if (!is_device(target, size) || !is_device(source, size)) LEAVE(INVALID_VALUE);
    memmove((void *)target, (void *)source, size);
    LEAVE(0);
}

/* Maps a file; 0 if that fails. */
static uintptr_t map(int file, size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? 0 : (uintptr_t)memory;
}

/* A handle has the process, its descriptor and the number of the allocation. The link of another
 * process's descriptor says whether it still is that allocation. Returns a descriptor, or -1. */
static int open_handle(const char *handle, size_t *size) {
    int process, descriptor, number, file = -1;
    char path[64], expected[64], found[64] = "";
    struct stat status;
    if (sscanf(handle, "fake-cuda %d %d %d", &process, &descriptor, &number) != 3) return -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, descriptor);
    snprintf(expected, sizeof expected, "/memfd:fake-cuda-%d (deleted)", number);
    if (readlink(path, found, sizeof found - 1) > 0 && strcmp(found, expected) == 0) file = open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0 && fstat(file, &status) == 0) *size = (size_t)status.st_size;
    return file;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
    ENTER(1);
    Range range = {0, size, 1, 0, "", ++range_count, stack[depth - 1] - 1, -1};
    char name[32];
    snprintf(name, sizeof name, "fake-cuda-%d", allocation_count);
    range.file = memfd_create(name, MFD_CLOEXEC);
    if (range.file < 0 || ftruncate(range.file, (off_t)size) != 0) abort();
    snprintf(range.name, sizeof range.name, "fake-cuda %d %d %d", (int)getpid(), range.file, allocation_count++);
    range.address = map(range.file, size);
    if (range.address == 0) LEAVE((close(range.file), 2));
    *room(device) = range;
    *address = range.address;
    LEAVE(0);
}

int cuMemFree_v2(uint64_t address) {
    ENTER(1);
    Range *range = find(device, address, 1);
    if (range == NULL || range->address != address || range->is_opened) LEAVE(INVALID_VALUE);
    munmap((void *)address, range->size);
    close(range->file);
    range->size = 0;
    LEAVE(0);
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
    ENTER(1);
    Range *range = find(device, address, 1);
    if (range == NULL) LEAVE(INVALID_VALUE);
    *base = range->address;
    *size = range->size;
    LEAVE(0);
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
    ENTER(1);
    Range *range = find(device, address, 1);
    if (range == NULL || (attribute != 7 && attribute != 9)) LEAVE(INVALID_VALUE);
    if (attribute == 7) memcpy(value, &range->id, sizeof range->id);
    if (attribute == 9) memcpy(value, &range->device, sizeof range->device);
    LEAVE(0);
}

int cuIpcGetMemHandle(Handle *handle, uint64_t address) {
    ENTER(1);
    Range *range = find(device, address, 1);
    if (range == NULL || range->is_opened) LEAVE(INVALID_VALUE);
    memcpy(handle->text, range->name, sizeof handle->text);
    LEAVE(0);
}

int cuIpcOpenMemHandle_v2(uint64_t *address, Handle handle, unsigned flags) {
    ENTER(1);
    if (flags != 1 || handle.text[63] != 0) LEAVE(INVALID_VALUE);
    for (int at = 0; at < MOST; at++)
        if (device[at].size && strcmp(device[at].name, handle.text) == 0) {
            if (!device[at].is_opened) LEAVE(INVALID_CONTEXT); /* its own */
            device[at].references++;
            *address = device[at].address;
            LEAVE(0);
        }
    Range range = {0, 0, 1, 1, "", ++range_count, stack[depth - 1] - 1, -1};
    memcpy(range.name, handle.text, sizeof range.name);
    int file = open_handle(range.name, &range.size);
    if (file < 0) LEAVE(INVALID_VALUE);
    range.address = map(file, range.size);
    close(file);
    if (range.address == 0) LEAVE(INVALID_VALUE);
    *room(device) = range;
    *address = range.address;
    LEAVE(0);
}

int cuIpcCloseMemHandle(uint64_t address) {
    ENTER(1);
    Range *range = find(device, address, 1);
    if (range == NULL || range->address != address || !range->is_opened) LEAVE(INVALID_VALUE);
    if (--range->references == 0) {
        munmap((void *)address, range->size);
        range->size = 0;
    }
    LEAVE(0);
}

/* For tests */

int fake_cuda_count(const char *name) {
    for (int at = 0; at < NAMES && calls[at].name != NULL; at++)
        if (strcmp(calls[at].name, name) == 0) return calls[at].count;
    return 0;
}

void fake_cuda_fail(const char *name, int code) {
    pthread_mutex_lock(&lock);
    note(name);
    for (int at = 0; at < NAMES && calls[at].name != NULL; at++)
        if (strcmp(calls[at].name, name) == 0) calls[at].count--, calls[at].code = code;
    pthread_mutex_unlock(&lock);
}

size_t fake_cuda_registered_bytes(void) {
    size_t sum = 0;
    for (int at = 0; at < MOST; at++) sum += registered[at].size;
    return sum;
}

int fake_cuda_is_registered(uintptr_t address, size_t size) {
    Range *range = find(registered, address, size);
    return range != NULL && address >= range->address && address + size <= range->address + range->size;
}

int fake_cuda_opened_count(void) {
    int count = 0;
    for (int at = 0; at < MOST; at++) count += device[at].size && device[at].is_opened;
    return count;
}

/* Writes how many allocations a process that used the library has left, when it ends by itself. */
__attribute__((destructor)) static void report(void) {
    const char *path = getenv("FAKE_CUDA_REPORT");
    int left = 0;
    if (path == NULL || initialized_by != getpid()) return;
    for (int at = 0; at < MOST; at++) left += device[at].size && !device[at].is_opened;
    FILE *file = fopen(path, "a");
    if (file == NULL) abort();
    fprintf(file, "%d of %d\n", left, allocation_count);
    fclose(file);
}
