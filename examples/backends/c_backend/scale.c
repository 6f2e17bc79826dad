/* SPDX-License-Identifier: Apache-2.0 */
/* A backend in one file: Y is X times the parameter "factor" of the model. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton/core/tritonbackend.h"

#define TRY(call)                            \
  do {                                       \
    TRITONSERVER_Error* error_ = (call);     \
    if (error_ != NULL) return error_;       \
  } while (0)

static uint64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Reads the parameter from the configuration, which is JSON without blanks:
 * ..."parameters":{"factor":{"string_value":"0.5"}}... */
static TRITONSERVER_Error* read_factor(TRITONBACKEND_Model* model, double* factor)
{
  static const char key[] = "\"factor\":{\"string_value\":\"";
  TRITONSERVER_Message* config;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &config));
  const char* text;
  size_t size;
  TRY(TRITONSERVER_MessageSerializeToJson(config, &text, &size));
  char* copy = calloc(1, size + 1); /* the text has no end mark */
  memcpy(copy, text, size);
  const char* found = strstr(copy, key);
  if (found != NULL) *factor = atof(found + strlen(key));
  free(copy);
  TRY(TRITONSERVER_MessageDelete(config));
  if (found == NULL)
    return TRITONSERVER_ErrorNew(
        TRITONSERVER_ERROR_INVALID_ARG, "expected a parameter 'factor' in the configuration");
  return NULL;
}

/* Called once for each model, before its instances. An error fails the load. */
TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
  double* factor = malloc(sizeof *factor);
  TRY(read_factor(model, factor));
  return TRITONBACKEND_ModelSetState(model, factor);
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model)
{
  void* factor;
  TRY(TRITONBACKEND_ModelState(model, &factor));
  free(factor);
  return NULL;
}

/* Fills the response to one request. */
static TRITONSERVER_Error* compute(
    TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, double factor)
{
  TRITONBACKEND_Input* input;
  const int64_t* shape;
  uint32_t dims, buffers;
  uint64_t size;
  TRY(TRITONBACKEND_RequestInput(request, "X", &input));
  TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dims, &size, &buffers));

  TRITONBACKEND_Output* output;
  void* y;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t device = 0;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "Y", TRITONSERVER_TYPE_FP32, shape, dims));
  TRY(TRITONBACKEND_OutputBuffer(output, &y, size, &memory, &device));

  float* at = y;
  for (uint32_t i = 0; i < buffers; i++) { /* an input may come in several parts */
    const void* x;
    TRY(TRITONBACKEND_InputBuffer(input, i, &x, &size, &memory, &device));
    for (uint64_t k = 0; k < size / sizeof(float); k++)
      *at++ = (float)(((const float*)x)[k] * factor);
  }
  return NULL;
}

/* Called with all requests that the server has put together. */
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  TRITONBACKEND_Model* model;
  void* factor;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &factor));
  uint64_t start = now_ns();
  for (uint32_t i = 0; i < count; i++) {
    TRITONBACKEND_Response* response;
    TRY(TRITONBACKEND_ResponseNew(&response, requests[i]));
    TRITONSERVER_Error* error = compute(requests[i], response, *(double*)factor);
    TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error);
    uint64_t end = now_ns();
    TRITONBACKEND_ModelInstanceReportStatistics(
        instance, requests[i], error == NULL, start, start, end, end);
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
    TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL);
  }
  return NULL;
}
