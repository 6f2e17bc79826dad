/* SPDX-License-Identifier: Apache-2.0 */
/* Sends requests to other models, as SCRIPT says, and answers with what came back. */
#include <pthread.h>

#include "common.h"

typedef struct {
  Text* text;
  int allocated, freed, released;
  bool is_over;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
} Call;

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t size,
    TRITONSERVER_MemoryType type, int64_t id, void* userp, void** buffer, void** buffer_userp,
    TRITONSERVER_MemoryType* actual_type, int64_t* actual_id)
{
  (void)allocator;
  (void)name;
  (void)type;
  (void)id;
  Call* call = (Call*)userp;
  call->allocated++;
  *buffer = size == 0 ? NULL : malloc(size);
  *buffer_userp = call;
  *actual_type = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  return NULL;
}

static TRITONSERVER_Error* give_back(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t size,
    TRITONSERVER_MemoryType type, int64_t id)
{
  (void)allocator;
  (void)size;
  (void)type;
  (void)id;
  ((Call*)buffer_userp)->freed++;
  free(buffer);
  return NULL;
}

static void tell_output(Text* text, TRITONSERVER_InferenceResponse* response, uint32_t index)
{
  const char* name;
  TRITONSERVER_DataType datatype;
  const int64_t* shape;
  uint64_t dims;
  const void* base;
  size_t size;
  TRITONSERVER_MemoryType type;
  int64_t id;
  void* userp;
  TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseOutput(
      response, index, &name, &datatype, &shape, &dims, &base, &size, &type, &id, &userp);
  if (error != NULL) {
    outcome(text, "output", error);
    return;
  }
  add(text, "output %s\t%s [", name, TRITONSERVER_DataTypeString(datatype));
  for (uint64_t i = 0; i < dims; i++) add(text, "%lld,", (long long)shape[i]);
  add(text, "]");
  for (size_t i = 0; i < size && datatype != TRITONSERVER_TYPE_BYTES; i += 4)
    add(text, " %d", ((const int32_t*)base)[i / 4]);
  if (datatype == TRITONSERVER_TYPE_BYTES && size >= 4)
    add(text, " %.*s", (int)size - 4, (const char*)base + 4);
  add(text, "\n");
}

static void tell_parameters(Text* text, TRITONSERVER_InferenceResponse* response)
{
  uint32_t count = 0;
  forget(TRITONSERVER_InferenceResponseParameterCount(response, &count));
  for (uint32_t i = 0; i < count; i++) {
    const char* name;
    TRITONSERVER_ParameterType type;
    const void* value;
    forget(TRITONSERVER_InferenceResponseParameter(response, i, &name, &type, &value));
    if (type == TRITONSERVER_PARAMETER_STRING) FACT(text, name, "%s", (const char*)value);
    if (type == TRITONSERVER_PARAMETER_INT) FACT(text, name, "%lld", (long long)*(const int64_t*)value);
    if (type == TRITONSERVER_PARAMETER_BOOL) FACT(text, name, "%d", *(const bool*)value);
    if (type == TRITONSERVER_PARAMETER_DOUBLE) FACT(text, name, "%g", *(const double*)value);
  }
}

static void tell_response(Text* text, TRITONSERVER_InferenceResponse* response)
{
  const char *model = NULL, *id = NULL;
  int64_t version = 0;
  uint32_t count = 0;
  TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(response);
  if (error != NULL) /* it stays the response's */
    FACT(text, "error", "%s: %s", TRITONSERVER_ErrorCodeString(error),
         TRITONSERVER_ErrorMessage(error));
  outcome(text, "model", TRITONSERVER_InferenceResponseModel(response, &model, &version));
  FACT(text, "model is", "%s %lld", shown(model), (long long)version);
  outcome(text, "id", TRITONSERVER_InferenceResponseId(response, &id));
  FACT(text, "id is", "%s", shown(id));
  outcome(text, "outputs", TRITONSERVER_InferenceResponseOutputCount(response, &count));
  for (uint32_t i = 0; i < count; i++) tell_output(text, response, i);
  tell_parameters(text, response);
}

static void complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
  Call* call = (Call*)userp;
  pthread_mutex_lock(&call->mutex);
  FACT(call->text, "response", "%s, flags %u", response == NULL ? "none" : "one", flags);
  if (response != NULL) {
    tell_response(call->text, response);
    outcome(call->text, "delete", TRITONSERVER_InferenceResponseDelete(response));
  }
  if (flags & FINAL) call->is_over = true;
  pthread_cond_signal(&call->changed);
  pthread_mutex_unlock(&call->mutex);
}

static void released(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp)
{
  Call* call = (Call*)userp;
  (void)request;
  (void)flags;
  pthread_mutex_lock(&call->mutex);
  call->released++;
  pthread_cond_signal(&call->changed);
  pthread_mutex_unlock(&call->mutex);
}

static TRITONSERVER_Error* add_input(
    TRITONSERVER_InferenceRequest* request, const char* name, TRITONSERVER_DataType datatype,
    const int64_t* shape, uint64_t dims, const void* data, size_t size)
{
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestAddInput(request, name, datatype, shape, dims));
  return TRITONSERVER_InferenceRequestAppendInputData(
      request, name, data, size, TRITONSERVER_MEMORY_CPU, 0);
}

static const int32_t NUMBERS[] = {4, 2, 0};
static const uint32_t DELAYS[] = {0, 1, 2};
static const uint32_t WAIT[] = {0};

static TRITONSERVER_Error* fill(TRITONSERVER_InferenceRequest* request, const char* script)
{
  const int64_t row[2] = {1, 3}, three[1] = {3}, one[1] = {1};
  if (strcmp(script, "repeat") == 0) {
    RETURN_IF_ERROR(add_input(request, "IN", TRITONSERVER_TYPE_INT32, three, 1, NUMBERS, 12));
    RETURN_IF_ERROR(add_input(request, "DELAY", TRITONSERVER_TYPE_UINT32, three, 1, DELAYS, 12));
    return add_input(request, "WAIT", TRITONSERVER_TYPE_UINT32, one, 1, WAIT, 4);
  }
  if (strcmp(script, "failing") == 0) {
    static const char text[] = "\x11\0\0\0respond NOT_FOUND";
    return add_input(request, "SCRIPT", TRITONSERVER_TYPE_BYTES, one, 1, text, sizeof text - 1);
  }
  if (strcmp(script, "no inputs") == 0) return NULL;
  if (strcmp(script, "unknown input") == 0)
    return add_input(request, "NOBODY", TRITONSERVER_TYPE_INT32, row, 2, NUMBERS, 12);
  if (strcmp(script, "wrong datatype") == 0)
    return add_input(request, "INT32", TRITONSERVER_TYPE_FP32, row, 2, NUMBERS, 12);
  if (strcmp(script, "wrong size") == 0)
    return add_input(request, "INT32", TRITONSERVER_TYPE_INT32, row, 2, NUMBERS, 8);
  if (strcmp(script, "two buffers") == 0) {
    RETURN_IF_ERROR(add_input(request, "INT32", TRITONSERVER_TYPE_INT32, row, 2, NUMBERS, 4));
    return TRITONSERVER_InferenceRequestAppendInputData(
        request, "INT32", NUMBERS + 1, 8, TRITONSERVER_MEMORY_CPU, 0);
  }
  RETURN_IF_ERROR(add_input(request, "INT32", TRITONSERVER_TYPE_INT32, row, 2, NUMBERS, 12));
  if (strcmp(script, "input twice") == 0)
    return TRITONSERVER_InferenceRequestAddInput(
        request, "INT32", TRITONSERVER_TYPE_INT32, row, 2);
  if (strcmp(script, "output") == 0)
    return TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUT_INT32");
  if (strcmp(script, "unknown output") == 0)
    return TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUT_NOBODY");
  if (strcmp(script, "parameters") == 0) {
    RETURN_IF_ERROR(TRITONSERVER_InferenceRequestSetStringParameter(request, "a string", "s"));
    RETURN_IF_ERROR(TRITONSERVER_InferenceRequestSetIntParameter(request, "an int", -5));
    RETURN_IF_ERROR(TRITONSERVER_InferenceRequestSetBoolParameter(request, "a bool", true));
    return TRITONSERVER_InferenceRequestSetDoubleParameter(request, "a double", 0.25);
  }
  return NULL;
}

static void tell_request(Text* text, TRITONSERVER_InferenceRequest* request)
{
  const char *id = NULL, *word = NULL;
  uint64_t number = 9;
  uint32_t flags = 9, priority = 9;
  bool is_cancelled = true;
  outcome(text, "set id", TRITONSERVER_InferenceRequestSetId(request, "called"));
  outcome(text, "get id", TRITONSERVER_InferenceRequestId(request, &id));
  FACT(text, "request id is", "%s", shown(id));
  outcome(text, "set flags", TRITONSERVER_InferenceRequestSetFlags(request, 3));
  forget(TRITONSERVER_InferenceRequestFlags(request, &flags));
  forget(TRITONSERVER_InferenceRequestSetFlags(request, 0));
  outcome(text, "set correlation", TRITONSERVER_InferenceRequestSetCorrelationId(request, 77));
  forget(TRITONSERVER_InferenceRequestCorrelationId(request, &number));
  FACT(text, "flags and correlation", "%u %llu", flags, (unsigned long long)number);
  outcome(text, "correlation word",
          TRITONSERVER_InferenceRequestCorrelationIdString(request, &word));
  outcome(text, "set word", TRITONSERVER_InferenceRequestSetCorrelationIdString(request, "w"));
  forget(TRITONSERVER_InferenceRequestCorrelationIdString(request, &word));
  FACT(text, "word is", "%s", shown(word));
  outcome(text, "number of a word", TRITONSERVER_InferenceRequestCorrelationId(request, &number));
  forget(TRITONSERVER_InferenceRequestSetCorrelationId(request, 0));
  outcome(text, "set priority", TRITONSERVER_InferenceRequestSetPriorityUInt64(request, 5));
  outcome(text, "get priority", TRITONSERVER_InferenceRequestPriority(request, &priority));
  FACT(text, "priority is", "%u", priority);
  forget(TRITONSERVER_InferenceRequestSetPriority(request, 0));
  outcome(text, "set timeout", TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, 500));
  outcome(text, "get timeout", TRITONSERVER_InferenceRequestTimeoutMicroseconds(request, &number));
  FACT(text, "timeout is", "%llu", (unsigned long long)number);
  forget(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, 0));
  outcome(text, "get cancelled",
          TRITONSERVER_InferenceRequestIsCancelled(request, &is_cancelled));
  outcome(text, "remove unknown", TRITONSERVER_InferenceRequestRemoveInput(request, "NOBODY"));
  outcome(text, "add output", TRITONSERVER_InferenceRequestAddRequestedOutput(request, "X"));
  outcome(text, "remove output", TRITONSERVER_InferenceRequestRemoveRequestedOutput(request, "X"));
  outcome(text, "remove outputs", TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(request));
  outcome(text, "remove data", TRITONSERVER_InferenceRequestRemoveAllInputData(request, "NOBODY"));
  outcome(text, "remove inputs", TRITONSERVER_InferenceRequestRemoveAllInputs(request));
}

static void infer(
    Text* text, TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request,
    const char* script)
{
  Call call = {text, 0, 0, 0, false, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  outcome(text, "allocator",
          TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, give_back, NULL));
  outcome(text, "fill", fill(request, script));
  outcome(text, "on release",
          TRITONSERVER_InferenceRequestSetReleaseCallback(request, released, &call));
  outcome(text, "on response", TRITONSERVER_InferenceRequestSetResponseCallback(
                                   request, allocator, &call, complete, &call));
  pthread_mutex_lock(&call.mutex);
  TRITONSERVER_Error* error = TRITONSERVER_ServerInferAsync(server, request, NULL);
  bool is_sent = error == NULL;
  outcome(text, "infer", error);
  while (is_sent && (!call.is_over || call.released == 0))
    pthread_cond_wait(&call.changed, &call.mutex);
  pthread_mutex_unlock(&call.mutex);
  FACT(text, "buffers", "%d allocated, %d freed", call.allocated, call.freed);
  FACT(text, "released", "%d", call.released);
  outcome(text, "delete allocator", TRITONSERVER_ResponseAllocatorDelete(allocator));
}

static void play(Text* text, TRITONBACKEND_Model* model, const char* script)
{
  TRITONSERVER_Server* server = NULL;
  TRITONSERVER_InferenceRequest* request = NULL;
  const char* name = "identity";
  int64_t version = -1;
  if (strcmp(script, "repeat") == 0 || strcmp(script, "failing") == 0) name = script;
  if (strcmp(script, "unknown model") == 0) name = "nobody";
  if (strcmp(script, "unknown version") == 0) version = 7;
  forget(TRITONBACKEND_ModelServer(model, &server));
  TRITONSERVER_Error* error = TRITONSERVER_InferenceRequestNew(&request, server, name, version);
  bool is_made = error == NULL;
  outcome(text, "request", error);
  if (!is_made) return;
  if (strcmp(script, "request") == 0) tell_request(text, request);
  infer(text, server, request, script);
  outcome(text, "delete request", TRITONSERVER_InferenceRequestDelete(request));
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  TRITONBACKEND_Model* model;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  for (uint32_t i = 0; i < count; i++) {
    char* script;
    Text text = {NULL, 0};
    RETURN_IF_ERROR(string_input(requests[i], "SCRIPT", &script));
    play(&text, model, script);
    free(script);
    TRITONBACKEND_Response* response;
    RETURN_IF_ERROR(TRITONBACKEND_ResponseNew(&response, requests[i]));
    RETURN_IF_ERROR(string_output(response, "OUT", shown(text.data), 1));
    RETURN_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, NULL));
    RETURN_IF_ERROR(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
    free(text.data);
  }
  return NULL;
}
