/* SPDX-License-Identifier: Apache-2.0 */
/* Answers every output OUT_x with the input x, all datatypes alike, and repeats the request's
 * parameters in the response. Reports statistics of requests and batches. */
#include "common.h"

static TRITONSERVER_Error* copy_tensor(
    TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, const char* output_name)
{
  TRITONBACKEND_Input* input;
  TRITONSERVER_Error* error = TRITONBACKEND_RequestInput(request, output_name + 4, &input);
  if (error != NULL) { /* an optional input that the request does not have */
    forget(error);
    return NULL;
  }
  TRITONSERVER_DataType datatype;
  const int64_t* shape;
  uint32_t dims, count;
  uint64_t size;
  RETURN_IF_ERROR(
      TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &dims, &size, &count));
  TRITONBACKEND_Output* output;
  RETURN_IF_ERROR(
      TRITONBACKEND_ResponseOutput(response, &output, output_name, datatype, shape, dims));
  void* buffer;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU; /* what would be preferred */
  int64_t id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &id));
  if (type == TRITONSERVER_MEMORY_GPU)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "expected memory of the CPU");
  char* at = (char*)buffer;
  for (uint32_t i = 0; i < count; i++) {
    const void* part;
    uint64_t part_size;
    type = TRITONSERVER_MEMORY_CPU;
    RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, i, &part, &part_size, &type, &id));
    memcpy(at, part, part_size);
    at += part_size;
  }
  return NULL;
}

static TRITONSERVER_Error* copy_parameters(
    TRITONBACKEND_Request* request, TRITONBACKEND_Response* response)
{
  uint32_t count;
  RETURN_IF_ERROR(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t i = 0; i < count; i++) {
    const char* key;
    TRITONSERVER_ParameterType type;
    const void* value;
    RETURN_IF_ERROR(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value));
    switch (type) {
      case TRITONSERVER_PARAMETER_STRING:
        RETURN_IF_ERROR(
            TRITONBACKEND_ResponseSetStringParameter(response, key, (const char*)value));
        break;
      case TRITONSERVER_PARAMETER_INT:
        RETURN_IF_ERROR(
            TRITONBACKEND_ResponseSetIntParameter(response, key, *(const int64_t*)value));
        break;
      case TRITONSERVER_PARAMETER_BOOL:
        RETURN_IF_ERROR(
            TRITONBACKEND_ResponseSetBoolParameter(response, key, *(const bool*)value));
        break;
      case TRITONSERVER_PARAMETER_DOUBLE:
        RETURN_IF_ERROR(
            TRITONBACKEND_ResponseSetDoubleParameter(response, key, *(const double*)value));
        break;
      default:
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "a parameter of no known type");
    }
  }
  return NULL;
}

static TRITONSERVER_Error* answer(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response)
{
  uint32_t count;
  RETURN_IF_ERROR(TRITONBACKEND_RequestOutputCount(request, &count));
  for (uint32_t i = 0; i < count; i++) {
    const char* name;
    RETURN_IF_ERROR(TRITONBACKEND_RequestOutputName(request, i, &name));
    RETURN_IF_ERROR(copy_tensor(request, response, name));
  }
  return copy_parameters(request, response);
}

static uint64_t rows(TRITONBACKEND_Request* request)
{
  TRITONBACKEND_Input* input;
  const int64_t* shape;
  uint32_t dims;
  if (TRITONBACKEND_RequestInputByIndex(request, 0, &input) != NULL) return 1;
  if (TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dims, NULL, NULL) != NULL) return 1;
  return dims == 0 ? 1 : (uint64_t)shape[0];
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  uint64_t start = now_ns(), total = 0;
  for (uint32_t i = 0; i < count; i++) {
    TRITONBACKEND_Response* response;
    RETURN_IF_ERROR(TRITONBACKEND_ResponseNew(&response, requests[i]));
    TRITONSERVER_Error* error = answer(requests[i], response);
    total += rows(requests[i]);
    forget(TRITONBACKEND_ResponseSend(response, FINAL, error));
    uint64_t end = now_ns();
    forget(TRITONBACKEND_ModelInstanceReportStatistics(
        instance, requests[i], error == NULL, start, start + 1, end - 1, end));
    forget(error);
  }
  uint64_t end = now_ns();
  forget(TRITONBACKEND_ModelInstanceReportBatchStatistics(
      instance, total, start, start + 1, end - 1, end));
  for (uint32_t i = 0; i < count; i++)
    forget(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
  return NULL;
}
