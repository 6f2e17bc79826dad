/* SPDX-License-Identifier: Apache-2.0 */
/* Does what a backend should not do, or seldom does, as SCRIPT says. */
#include <pthread.h>

#include "common.h"

#ifdef NEWER
/* A function that this version of the API does not have. */
TRITONSERVER_Error* TRITONBACKEND_RequestColour(TRITONBACKEND_Request* request, const char** name);
#endif

typedef struct {
  TRITONBACKEND_ResponseFactory* factory;
  bool leaks;
} Later;

static TRITONSERVER_Error* output_of(
    TRITONBACKEND_Response* response, const int64_t shape[2], uint64_t size, bool has_buffer)
{
  TRITONBACKEND_Output* output;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(
      response, &output, "NUMBERS", TRITONSERVER_TYPE_INT32, shape, 2));
  if (!has_buffer) return NULL;
  void* buffer = NULL;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &id));
  if (size < 1000) memset(buffer, 0, size);
  return NULL;
}

static TRITONSERVER_Error* fill(
    TRITONBACKEND_Response* response, const char* script, TRITONBACKEND_Request* request)
{
  const int64_t good[2] = {1, 2}, empty[2] = {1, 0}, unknown[2] = {1, -1}, other[2] = {1, 3};
  if (strcmp(script, "huge buffer") == 0) return output_of(response, good, (uint64_t)-5, true);
  if (strcmp(script, "negative shape") == 0) return output_of(response, unknown, 8, true);
  if (strcmp(script, "small buffer") == 0) return output_of(response, good, 4, true);
  if (strcmp(script, "large buffer") == 0) return output_of(response, good, 16, true);
  if (strcmp(script, "other shape") == 0) return output_of(response, other, 12, true);
  if (strcmp(script, "no buffer") == 0) return output_of(response, good, 8, false);
  if (strcmp(script, "empty output") == 0) return output_of(response, empty, 0, true);
  if (strcmp(script, "unknown output") == 0)
    return number_output(response, "NOBODY", TRITONSERVER_TYPE_INT32, 5, good, 1);
  if (strcmp(script, "both outputs") == 0) {
    RETURN_IF_ERROR(string_output(response, "OUT", "fine", 1));
    return output_of(response, good, 8, true);
  }
  if (strcmp(script, "other datatype") == 0)
    return number_output(response, "OUT", TRITONSERVER_TYPE_INT32, 5, good, 1);
#ifdef NEWER
  if (strcmp(script, "newer function") == 0) {
    const char* name;
    return TRITONBACKEND_RequestColour(request, &name);
  }
#endif
  (void)request;
  return strcmp(script, "no outputs") == 0 ? NULL : string_output(response, "OUT", "fine", 1);
}

static void respond(TRITONBACKEND_ResponseFactory* factory, uint32_t flags)
{
  TRITONBACKEND_Response* response = NULL;
  forget(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
  TRITONSERVER_Error* error = string_output(response, "OUT", "from a thread", 1);
  forget(TRITONBACKEND_ResponseSend(response, flags, error));
  forget(error);
}

static void* respond_later(void* argument)
{
  Later* later = (Later*)argument;
  sleep_ns(20000000);
  respond(later->factory, FINAL);
  if (!later->leaks) forget(TRITONBACKEND_ResponseFactoryDelete(later->factory));
  free(later);
  return NULL;
}

static TRITONSERVER_Error* respond_from_a_thread(TRITONBACKEND_Request* request, bool leaks)
{
  Later* later = (Later*)malloc(sizeof *later);
  later->leaks = leaks;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseFactoryNew(&later->factory, request));
  pthread_t thread;
  pthread_create(&thread, NULL, respond_later, later);
  pthread_detach(thread);
  return NULL;
}

/* Calls that no backend should make; the answer says which of them were refused. */
static void misuse(Text* text)
{
  TRITONBACKEND_Input* input = NULL;
  TRITONBACKEND_Output* output = NULL;
  TRITONBACKEND_Response* response = NULL;
  TRITONBACKEND_Response* nonsense = (TRITONBACKEND_Response*)(uintptr_t)0x11;
  const int64_t shape[1] = {1};
  const char* name = NULL;
  uint32_t count = 0;
  bool truth = false;
  FACT(text, "message of NULL", "%d", TRITONSERVER_ErrorMessage(NULL) != NULL);
  TRITONSERVER_ErrorDelete(NULL);
  outcome(text, "input of NULL", TRITONBACKEND_RequestInput(NULL, "IN", &input));
  outcome(text, "parameter of nonsense", TRITONBACKEND_ResponseSetIntParameter(nonsense, "a", 1));
  outcome(text, "id of NULL", TRITONBACKEND_RequestId(NULL, &name));
  outcome(text, "count of NULL", TRITONBACKEND_RequestInputCount(NULL, &count));
  outcome(text, "cancelled of NULL", TRITONBACKEND_RequestIsCancelled(NULL, &truth));
  outcome(text, "release of NULL", TRITONBACKEND_RequestRelease(NULL, RELEASE_ALL));
  outcome(text, "response of NULL", TRITONBACKEND_ResponseNew(&response, NULL));
  outcome(text, "parameter of NULL", TRITONBACKEND_ResponseSetIntParameter(NULL, "a", 1));
  outcome(text, "output of NULL", TRITONBACKEND_ResponseOutput(
                                      NULL, &output, "OUT", TRITONSERVER_TYPE_INT32, shape, 1));
  outcome(text, "send of NULL", TRITONBACKEND_ResponseSend(NULL, FINAL, NULL));
  outcome(text, "delete of NULL", TRITONBACKEND_ResponseDelete(NULL));
  outcome(text, "factory of NULL", TRITONBACKEND_ResponseFactoryDelete(NULL));
  outcome(text, "properties of NULL",
          TRITONBACKEND_InputProperties(NULL, &name, NULL, NULL, NULL, NULL, NULL));
  outcome(text, "model of NULL", TRITONBACKEND_ModelName(NULL, &name));
  outcome(text, "json of NULL", TRITONSERVER_MessageSerializeToJson(NULL, &name, NULL));
  outcome(text, "message deleted", TRITONSERVER_MessageDelete(NULL));
  outcome(text, "metric of NULL", TRITONSERVER_MetricIncrement(NULL, 1));
  outcome(text, "buffer of NULL", TRITONBACKEND_OutputBuffer(NULL, NULL, 5, NULL, NULL));
  outcome(text, "unsupported", TRITONSERVER_ServerStop(NULL));
}

static TRITONSERVER_Error* play(TRITONBACKEND_Request* request, const char* script)
{
  TRITONBACKEND_Response* response;
  Text text = {NULL, 0};
  if (strcmp(script, "release only") == 0) return NULL;
  if (strcmp(script, "thread") == 0) return respond_from_a_thread(request, false);
  if (strcmp(script, "leaking thread") == 0) return respond_from_a_thread(request, true);
  if (strcmp(script, "after final") == 0) {
    TRITONBACKEND_ResponseFactory* factory;
    RETURN_IF_ERROR(TRITONBACKEND_ResponseFactoryNew(&factory, request));
    respond(factory, FINAL);
    respond(factory, FINAL);
    forget(TRITONBACKEND_ResponseFactorySendFlags(factory, FINAL));
    return TRITONBACKEND_ResponseFactoryDelete(factory);
  }
  RETURN_IF_ERROR(TRITONBACKEND_ResponseNew(&response, request));
  if (strcmp(script, "misuse") == 0) {
    misuse(&text);
    RETURN_IF_ERROR(string_output(response, "OUT", text.data, 1));
    free(text.data);
    return TRITONBACKEND_ResponseSend(response, FINAL, NULL);
  }
  TRITONSERVER_Error* error = fill(response, script, request);
  TRITONSERVER_Error* sending = TRITONBACKEND_ResponseSend(response, FINAL, error);
  forget(error);
  return sending;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  (void)instance;
  for (uint32_t i = 0; i < count; i++) {
    char* script;
    RETURN_IF_ERROR(string_input(requests[i], "SCRIPT", &script));
    forget(play(requests[i], script));
    bool twice = strcmp(script, "release twice") == 0;
    free(script);
    forget(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
    if (twice) forget(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
  }
  return NULL;
}
