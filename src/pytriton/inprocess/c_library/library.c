// SPDX-License-Identifier: Apache-2.0
// libtritonserver.so: the functions of an application, served by Python in the application's process.
//
// The first call starts an interpreter on a thread of its own and has `pytriton.inprocess.c_library.start` fill
// the table of slots. `pytriton.inprocess.c_library.command` appends one function for each slot and defines:
//   PYTRITON_EXECUTABLE  the Python of the environment in which pytriton is installed
//   PYTRITON_LIBRARY     the shared library of that Python
// The variables PYTRITON_PYTHON and PYTRITON_LIBPYTHON replace them at run time.
//
// Errors are made here, not in Python: they also have to tell that Python cannot be started.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define EXPORT __attribute__((visibility("default")))

enum { UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED };

struct slot {
  const char *name;
  void *function;
};

// --- Errors -----------------------------------------------------------------------------------------

struct error {
  int32_t code;
  char text[];
};

EXPORT void *TRITONSERVER_ErrorNew(int32_t code, const char *text) {
  size_t size = strlen(text) + 1;
  struct error *error = malloc(sizeof *error + size);
  if (error == NULL) abort();
  error->code = code;
  memcpy(error->text, text, size);
  return error;
}

EXPORT void TRITONSERVER_ErrorDelete(struct error *error) { free(error); }

EXPORT int32_t TRITONSERVER_ErrorCode(struct error *error) { return error->code; }

EXPORT const char *TRITONSERVER_ErrorMessage(struct error *error) { return error->text; }

EXPORT const char *TRITONSERVER_ErrorCodeString(struct error *error) {
  static const char *const names[] = {"Unknown",     "Internal",    "Not found",      "Invalid argument",
                                      "Unavailable", "Unsupported", "Already exists", "Cancelled"};
  return names[error->code >= 0 && error->code <= CANCELLED ? error->code : UNKNOWN];
}

static void *const error_functions[] = {TRITONSERVER_ErrorNew, TRITONSERVER_ErrorDelete, TRITONSERVER_ErrorCode,
                                        TRITONSERVER_ErrorMessage};

// --- The functions of libpython that are used -------------------------------------------------------

static struct {
  int (*is_initialized)(void);
  void (*initialize)(int installs_signal_handlers);
  void (*set_program_name)(const wchar_t *name);
  wchar_t *(*decode)(const char *text, size_t *size);
  int (*run)(const char *code);
  void *(*save_thread)(void);
  void (*restore_thread)(void *state);
  int (*ensure)(void);
  void (*release)(int state);
  void *(*this_thread)(void);
  int *utf8_mode;
} python;

static char failure[4096];  // why Python could not be started; empty if it runs

static bool find_python(void *library) {
  const struct {
    const char *name;
    void *place;
  } symbols[] = {
      {"Py_IsInitialized", &python.is_initialized},
      {"Py_InitializeEx", &python.initialize},
      {"Py_SetProgramName", &python.set_program_name},
      {"Py_DecodeLocale", &python.decode},
      {"PyRun_SimpleString", &python.run},
      {"PyEval_SaveThread", &python.save_thread},
      {"PyEval_RestoreThread", &python.restore_thread},
      {"PyGILState_Ensure", &python.ensure},
      {"PyGILState_Release", &python.release},
      {"PyGILState_GetThisThreadState", &python.this_thread},
      {"Py_UTF8Mode", &python.utf8_mode},
  };
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    void *address = dlsym(library, symbols[i].name);
    if (address == NULL) {
      snprintf(failure, sizeof failure, "Python cannot be started: its library has no %s, expected Python 3.10 to 3.14",
               symbols[i].name);
      return false;
    }
    memcpy(symbols[i].place, &address, sizeof address);
  }
  return true;
}

static const char *setting(const char *variable, const char *otherwise) {
  const char *value = getenv(variable);
  return value != NULL && *value ? value : otherwise;
}

// --- Starting Python --------------------------------------------------------------------------------

extern struct slot pytriton_slots[];  // appended below, with one exported function for each
extern const unsigned pytriton_slot_count;

// Import the Python side, which fills the slots. The interpreter lock is held.
static void fill_slots(bool is_own_python) {
  char code[1024];
  snprintf(code, sizeof code,
           "try:\n"
           "    __import__('pytriton.inprocess.c_library.start', fromlist=['fill']).fill(%llu, %u, %llu, %d)\n"
           "except BaseException as _error:\n"
           "    import ctypes as _ctypes\n"
           "    _text = f'pytriton cannot be used: {type(_error).__name__}: {_error}'.encode()[:%zu]\n"
           "    _ctypes.memmove(%llu, _text, len(_text))\n",
           (unsigned long long)(uintptr_t)pytriton_slots, pytriton_slot_count,
           (unsigned long long)(uintptr_t)error_functions, is_own_python, sizeof failure - 1,
           (unsigned long long)(uintptr_t)failure);
  if (python.run(code) != 0) snprintf(failure, sizeof failure, "pytriton cannot be used: see Python's error output");
}

static bool open_python(const char *executable) {
  const char *path = setting("PYTRITON_LIBPYTHON", PYTRITON_LIBRARY);
  if (access(executable, X_OK) != 0) {
    snprintf(failure, sizeof failure,
             "Python cannot be started: there is no program %s; PYTRITON_PYTHON names the Python in whose environment "
             "pytriton is installed",
             executable);
    return false;
  }
  // Modules in C find the functions of Python only if those are visible to all.
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) {
    snprintf(failure, sizeof failure,
             "Python cannot be started: %s; PYTRITON_LIBPYTHON names the shared library of that Python", dlerror());
    return false;
  }
  return find_python(library);
}

static void initialize(const char *executable) {
  char *before = strdup(setlocale(LC_CTYPE, NULL));
  *python.utf8_mode = 1;  // so that names of files do not depend on the locale
  // As the program of the environment: so its packages are found, and workers run the same Python.
  wchar_t *name = python.decode(executable, NULL);
  if (name != NULL) python.set_program_name(name);
  python.initialize(0);  // signals stay the application's
  if (before != NULL) setlocale(LC_CTYPE, before);  // Python has changed it
  free(before);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_started;

// Python's main thread, which lives as long as the process. Without it, the thread that happens to make
// the first call would be the main thread, and might end.
static void *run_python(void *unused) {
  (void)unused;
  // A write to a worker that died must be an error, not the end of the application.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, NULL);
  const char *executable = setting("PYTRITON_PYTHON", PYTRITON_EXECUTABLE);
  if (python.run != NULL || open_python(executable)) {
    initialize(executable);
    fill_slots(true);
    python.save_thread();
  }
  pthread_mutex_lock(&lock);
  is_started = true;
  pthread_cond_broadcast(&changed);
  while (!*failure) pthread_cond_wait(&changed, &lock);  // for ever
  pthread_mutex_unlock(&lock);
  return NULL;
}

static void start(void) {
  // The application may have Python in it, or be one.
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized") != NULL) {
    if (!find_python(RTLD_DEFAULT)) return;
    if (python.is_initialized()) {
      int state = python.ensure();
      fill_slots(false);
      python.release(state);
      return;
    }
  }
  pthread_t thread;
  if (pthread_create(&thread, NULL, run_python, NULL) != 0) {
    snprintf(failure, sizeof failure, "Python cannot be started: no thread can be made for it");
    return;
  }
  pthread_detach(thread);
  pthread_mutex_lock(&lock);
  while (!is_started) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

// --- Threads of the application ---------------------------------------------------------------------

// Python makes a thread state for each call of a thread that it does not know, and drops it after the
// call, which takes longer than most calls. So a state is kept for such a thread until it ends.
struct kept_state {
  int number;
  void *state;
};

static _Thread_local bool is_known;
static pthread_key_t kept_states;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool is_ready;

static void drop_state(void *value) {
  struct kept_state *kept = value;
  python.restore_thread(kept->state);
  python.release(kept->number);
  free(kept);
}

static void start_once(void) {
  pthread_key_create(&kept_states, drop_state);
  start();
  atomic_store_explicit(&is_ready, !*failure, memory_order_release);
}

static void know_thread(void) {
  is_known = true;
  if (python.this_thread() != NULL) return;  // one of Python's own
  struct kept_state *kept = malloc(sizeof *kept);
  if (kept == NULL) return;  // only slower
  kept->number = python.ensure();
  kept->state = python.save_thread();
  pthread_setspecific(kept_states, kept);
}

// Returns what serves a function; NULL if Python could not be started.
static void *enter(unsigned index) {
  if (!atomic_load_explicit(&is_ready, memory_order_acquire)) {
    pthread_once(&once, start_once);
    if (*failure) return NULL;
  }
  if (!is_known) know_thread();
  return pytriton_slots[index].function;
}

static void *no_python(void) { return TRITONSERVER_ErrorNew(UNAVAILABLE, failure); }

// --- The functions: appended when this is compiled --------------------------------------------------
