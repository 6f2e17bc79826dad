/* SPDX-License-Identifier: Apache-2.0 */
/* Adds the numbers of a sequence up, in a state that the server keeps. SCRIPT may make mistakes. */
#include "common.h"

static TRITONSERVER_Error* number(TRITONBACKEND_Request* request, const char* name, int32_t* value)
{
  TRITONBACKEND_Input* input;
  char* data;
  uint64_t size;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, name, &input));
  RETURN_IF_ERROR(input_copy(input, &data, &size));
  memcpy(value, data, sizeof *value);
  free(data);
  return NULL;
}

static TRITONSERVER_Error* keep(
    TRITONBACKEND_Request* request, const char* name, TRITONSERVER_DataType datatype, int32_t value,
    bool updates)
{
  const int64_t shape[2] = {1, 1};
  TRITONBACKEND_State* state;
  RETURN_IF_ERROR(TRITONBACKEND_StateNew(&state, request, name, datatype, shape, 2));
  void* buffer;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_StateBuffer(state, &buffer, sizeof value, &type, &id));
  memcpy(buffer, &value, sizeof value);
  TRITONSERVER_BufferAttributes* attributes;
  RETURN_IF_ERROR(TRITONBACKEND_StateBufferAttributes(state, &attributes));
  size_t size;
  RETURN_IF_ERROR(TRITONSERVER_BufferAttributesByteSize(attributes, &size));
  if (size != sizeof value)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "a state of another size");
  return updates ? TRITONBACKEND_StateUpdate(state) : NULL;
}

static TRITONSERVER_Error* play(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response)
{
  const int64_t shape[2] = {1, 1};
  int32_t value, state;
  char* script;
  RETURN_IF_ERROR(number(request, "IN", &value));
  RETURN_IF_ERROR(number(request, "STATE_IN", &state));
  RETURN_IF_ERROR(string_input(request, "SCRIPT", &script));
  const char* name = strcmp(script, "unknown state") == 0 ? "NOWHERE" : "STATE_OUT";
  TRITONSERVER_DataType datatype =
      strcmp(script, "other datatype") == 0 ? TRITONSERVER_TYPE_FP32 : TRITONSERVER_TYPE_INT32;
  bool updates = strcmp(script, "no update") != 0;
  free(script);
  RETURN_IF_ERROR(keep(request, name, datatype, state + value, updates));
  return number_output(response, "OUT", TRITONSERVER_TYPE_INT32, state + value, shape, 2);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  (void)instance;
  for (uint32_t i = 0; i < count; i++) {
    TRITONBACKEND_Response* response;
    RETURN_IF_ERROR(TRITONBACKEND_ResponseNew(&response, requests[i]));
    TRITONSERVER_Error* error = play(requests[i], response);
    forget(TRITONBACKEND_ResponseSend(response, FINAL, error));
    forget(error);
    forget(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
  }
  return NULL;
}
