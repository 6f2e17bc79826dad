/* SPDX-License-Identifier: Apache-2.0 */
/* Answers with its input, or, if that begins with a zero, asks for memory and writes nothing there. */
#include "common.h"

static TRITONSERVER_Error* answer(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response)
{
  TRITONBACKEND_Input* input;
  TRITONBACKEND_Output* output;
  TRITONSERVER_DataType datatype;
  const int64_t* shape;
  uint32_t dims;
  uint64_t size;
  char* data;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, "X", &input));
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &dims, NULL, NULL));
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, "Y", datatype, shape, dims));
  RETURN_IF_ERROR(input_copy(input, &data, &size));
  void* buffer = NULL;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  TRITONSERVER_Error* error = TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &id);
  if (error == NULL && size > 0 && data[3] != 0) memcpy(buffer, data, size);
  free(data);
  return error;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  (void)instance;
  for (uint32_t i = 0; i < count; i++) {
    TRITONBACKEND_Response* response;
    RETURN_IF_ERROR(TRITONBACKEND_ResponseNew(&response, requests[i]));
    TRITONSERVER_Error* error = answer(requests[i], response);
    forget(TRITONBACKEND_ResponseSend(response, FINAL, error));
    forget(error);
    forget(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
  }
  return NULL;
}
