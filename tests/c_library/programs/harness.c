// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <stdarg.h>

void must(TRITONSERVER_Error *error, const char *call) {
  if (error == NULL) return;
  fprintf(stderr, "%s: %s - %s\n", call, TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
  exit(1);
}

void show(TRITONSERVER_Error *error, const char *call) {
  if (error == NULL) {
    printf("%s: ok\n", call);
  } else {
    printf("%s: %d %s\n", call, TRITONSERVER_ErrorCode(error), TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
  }
}

void show_message(TRITONSERVER_Message *message, const char *what) {
  const char *text;
  size_t size;
  MUST(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  printf("%s: %.*s\n", what, (int)size, text);
  MUST(TRITONSERVER_MessageDelete(message));
}

TRITONSERVER_Server *new_server(const char *repository, const char *backends, bool is_explicit) {
  TRITONSERVER_ServerOptions *options;
  TRITONSERVER_Server *server;
  setvbuf(stdout, NULL, _IOLBF, 0);
  MUST(TRITONSERVER_ServerOptionsNew(&options));
  MUST(TRITONSERVER_ServerOptionsSetServerId(options, "mine"));
  MUST(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repository));
  MUST(TRITONSERVER_ServerOptionsSetBackendDirectory(options, backends));
  MUST(TRITONSERVER_ServerOptionsSetLogInfo(options, false));
  MUST(TRITONSERVER_ServerOptionsSetLogWarn(options, false));
  MUST(TRITONSERVER_ServerOptionsSetLogError(options, false));
  MUST(TRITONSERVER_ServerOptionsSetExitTimeout(options, 30));
  if (is_explicit) {
    MUST(TRITONSERVER_ServerOptionsSetModelControlMode(options, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
  }
  MUST(TRITONSERVER_ServerNew(&server, options));
  MUST(TRITONSERVER_ServerOptionsDelete(options));
  return server;
}

// --- Callbacks --------------------------------------------------------------------------------------

static void note(struct call *call, const char *format, ...) {
  size_t used = strlen(call->text);
  va_list values;
  va_start(values, format);
  vsnprintf(call->text + used, sizeof call->text - used, format, values);
  va_end(values);
}

static TRITONSERVER_Error *start(TRITONSERVER_ResponseAllocator *allocator, void *userp) {
  (void)allocator;
  struct call *call = userp;
  call->starts++;
  return NULL;
}

static TRITONSERVER_Error *allocate(TRITONSERVER_ResponseAllocator *allocator, const char *name, size_t size,
                                    TRITONSERVER_MemoryType type, int64_t id, void *userp, void **buffer,
                                    void **buffer_userp, TRITONSERVER_MemoryType *actual_type, int64_t *actual_id) {
  (void)allocator, (void)name, (void)type, (void)id;
  struct call *call = userp;
  if (call->fails_to_allocate) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no room for it");
  call->allocations++;
  *buffer = size == 0 ? NULL : malloc(size);
  *buffer_userp = call;
  *actual_type = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  return NULL;
}

static TRITONSERVER_Error *release(TRITONSERVER_ResponseAllocator *allocator, void *buffer, void *buffer_userp,
                                   size_t size, TRITONSERVER_MemoryType type, int64_t id) {
  (void)allocator, (void)size, (void)type, (void)id;
  struct call *call = buffer_userp;
  call->releases++;
  free(buffer);
  return NULL;
}

static void on_released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp) {
  struct call *call = userp;
  if (request != call->request || flags != TRITONSERVER_REQUEST_RELEASE_ALL) note(call, "  released wrongly\n");
  pthread_mutex_lock(&call->lock);
  call->is_released = true;
  pthread_cond_broadcast(&call->changed);
  pthread_mutex_unlock(&call->lock);
}

static void note_output(struct call *call, TRITONSERVER_InferenceResponse *response, uint32_t index) {
  const char *name;
  TRITONSERVER_DataType type;
  const int64_t *shape;
  uint64_t dims;
  const void *base;
  size_t size;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_id;
  void *userp;
  MUST(TRITONSERVER_InferenceResponseOutput(response, index, &name, &type, &shape, &dims, &base, &size, &memory_type,
                                            &memory_id, &userp));
  if (type == TRITONSERVER_TYPE_FP32) {
    for (size_t i = 0; i < size / sizeof(float); i++) call->sum += ((const float *)base)[i];
  }
  if (call->is_quiet) return;
  note(call, "  output %s %s [", name, TRITONSERVER_DataTypeString(type));
  for (uint64_t i = 0; i < dims; i++) note(call, "%s%" PRId64, i ? "," : "", shape[i]);
  note(call, "] %zu bytes:", size);
  if (type == TRITONSERVER_TYPE_BYTES) {
    note(call, " %.*s\n", (int)size - 4, (const char *)base + 4);
    return;
  }
  for (size_t i = 0; i < size && i < 64; i++) note(call, " %02x", ((const unsigned char *)base)[i]);
  note(call, "%s\n", userp == call ? "" : " wrong userp");
}

static void note_parameters(struct call *call, TRITONSERVER_InferenceResponse *response) {
  uint32_t count;
  MUST(TRITONSERVER_InferenceResponseParameterCount(response, &count));
  for (uint32_t i = 0; i < count; i++) {
    const char *name;
    TRITONSERVER_ParameterType type;
    const void *value;
    MUST(TRITONSERVER_InferenceResponseParameter(response, i, &name, &type, &value));
    note(call, "  parameter %s %s ", name, TRITONSERVER_ParameterTypeString(type));
    if (type == TRITONSERVER_PARAMETER_STRING) note(call, "%s\n", (const char *)value);
    if (type == TRITONSERVER_PARAMETER_INT) note(call, "%" PRId64 "\n", *(const int64_t *)value);
    if (type == TRITONSERVER_PARAMETER_BOOL) note(call, "%d\n", *(const bool *)value);
    if (type == TRITONSERVER_PARAMETER_DOUBLE) note(call, "%g\n", *(const double *)value);
  }
}

static void note_response(struct call *call, TRITONSERVER_InferenceResponse *response, uint32_t flags) {
  const char *model, *id;
  int64_t version;
  uint32_t outputs;
  MUST(TRITONSERVER_InferenceResponseModel(response, &model, &version));
  MUST(TRITONSERVER_InferenceResponseId(response, &id));
  if (!call->is_quiet) note(call, "  response of %s %" PRId64 " to '%s', flags %u\n", model, version, id, flags);
  TRITONSERVER_Error *error = TRITONSERVER_InferenceResponseError(response);
  if (error != NULL) {
    note(call, "  error %d %s\n", TRITONSERVER_ErrorCode(error), TRITONSERVER_ErrorMessage(error));
    return;
  }
  note_parameters(call, response);
  MUST(TRITONSERVER_InferenceResponseOutputCount(response, &outputs));
  for (uint32_t i = 0; i < outputs; i++) note_output(call, response, i);
}

static void on_response(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp) {
  struct call *call = userp;
  if (response == NULL) {
    note(call, "  no response, flags %u\n", flags);
  } else {
    call->responses++;
    note_response(call, response, flags);
    MUST(TRITONSERVER_InferenceResponseDelete(response));
  }
  pthread_mutex_lock(&call->lock);
  if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) call->is_final = true;
  pthread_cond_broadcast(&call->changed);
  pthread_mutex_unlock(&call->lock);
}

// --- Requests ---------------------------------------------------------------------------------------

struct call *new_call(TRITONSERVER_Server *server, const char *model) {
  struct call *call = calloc(1, sizeof *call);
  pthread_mutex_init(&call->lock, NULL);
  pthread_cond_init(&call->changed, NULL);
  MUST(TRITONSERVER_ResponseAllocatorNew(&call->allocator, allocate, release, start));
  MUST(TRITONSERVER_InferenceRequestNew(&call->request, server, model, -1));
  MUST(TRITONSERVER_InferenceRequestSetReleaseCallback(call->request, on_released, call));
  MUST(TRITONSERVER_InferenceRequestSetResponseCallback(call->request, call->allocator, call, on_response, call));
  return call;
}

void delete_call(struct call *call) {
  MUST(TRITONSERVER_InferenceRequestDelete(call->request));
  MUST(TRITONSERVER_ResponseAllocatorDelete(call->allocator));
  free(call);
}

void add_input(struct call *call, const char *name, TRITONSERVER_DataType type, int64_t size, const void *data,
               size_t byte_size, bool is_batched) {
  int64_t shape[] = {1, size};
  const int64_t *first = is_batched ? shape : shape + 1;
  MUST(TRITONSERVER_InferenceRequestAddInput(call->request, name, type, first, is_batched ? 2 : 1));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(call->request, name, data, byte_size, TRITONSERVER_MEMORY_CPU, 0));
}

TRITONSERVER_Error *send_call(struct call *call, TRITONSERVER_Server *server) {
  call->is_final = call->is_released = false;
  call->responses = call->starts = call->allocations = call->releases = 0;
  call->sum = 0;
  call->text[0] = '\0';
  return TRITONSERVER_ServerInferAsync(server, call->request, NULL);
}

void wait_for(struct call *call) {
  pthread_mutex_lock(&call->lock);
  while (!call->is_final || !call->is_released) pthread_cond_wait(&call->changed, &call->lock);
  pthread_mutex_unlock(&call->lock);
}

void run_call(struct call *call, TRITONSERVER_Server *server, const char *what) {
  TRITONSERVER_Error *error = send_call(call, server);
  if (error != NULL) {
    show(error, what);
    return;
  }
  wait_for(call);
  printf("%s:\n%s  responses %d, starts %d, allocations %d, releases %d\n", what, call->text, call->responses,
         call->starts, call->allocations, call->releases);
}
