/* SPDX-License-Identifier: Apache-2.0 */
/* Answers with what the functions of the API gave: GROUP says which. */
#include "facts.h"

static void tell(
    const char* group, Text* text, TRITONBACKEND_ModelInstance* instance,
    TRITONBACKEND_Request* request)
{
  TRITONBACKEND_Model* model = NULL;
  forget(TRITONBACKEND_ModelInstanceModel(instance, &model));
  if (strcmp(group, "names") == 0) tell_names(text);
  if (strcmp(group, "messages") == 0) tell_messages(text);
  if (strcmp(group, "parameters") == 0) tell_parameters(text);
  if (strcmp(group, "errors") == 0) tell_errors(text);
  if (strcmp(group, "buffers") == 0) tell_buffers(text);
  if (strcmp(group, "log") == 0) tell_log(text);
  if (strcmp(group, "backend") == 0) tell_backend(text, model);
  if (strcmp(group, "memory") == 0) tell_memory(text, model);
  if (strcmp(group, "model") == 0) tell_model(text, model);
  if (strcmp(group, "instance") == 0) tell_instance(text, instance);
  if (strcmp(group, "server") == 0) tell_server(text, model);
  if (strcmp(group, "request") == 0) tell_request(text, request);
  if (strcmp(group, "inputs") == 0) tell_inputs(text, request);
  if (strcmp(group, "responses") == 0) tell_responses(text, request);
  if (strcmp(group, "statistics") == 0) tell_statistics(text, instance, request);
  if (strcmp(group, "metrics") == 0) tell_metrics(text);
  if (strcmp(group, "histograms") == 0) tell_histograms(text);
}

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend)
{
  return TRITONBACKEND_BackendSetState(backend, (void*)(uintptr_t)11);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
  return TRITONBACKEND_ModelSetState(model, (void*)(uintptr_t)22);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
  return TRITONBACKEND_ModelInstanceSetState(instance, (void*)(uintptr_t)33);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    char* group;
    Text text = {NULL, 0};
    RETURN_IF_ERROR(string_input(requests[i], "GROUP", &group));
    tell(group, &text, instance, requests[i]);
    free(group);
    TRITONBACKEND_Response* response;
    RETURN_IF_ERROR(TRITONBACKEND_ResponseNew(&response, requests[i]));
    TRITONSERVER_Error* error = string_output(response, "FACTS", shown(text.data), 1);
    forget(TRITONBACKEND_ResponseSend(response, FINAL, error));
    forget(error);
    forget(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
    free(text.data);
  }
  return NULL;
}
