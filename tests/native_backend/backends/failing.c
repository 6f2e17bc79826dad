/* SPDX-License-Identifier: Apache-2.0 */
/* Fails where the parameter fail_at of the model says, with the error code in the parameter code.
 * In Execute the request's SCRIPT says what happens. Compiled with FAIL_AT_START, the backend
 * already fails in the function of that name; with NO_EXECUTE it lacks what it must have. */
#include "common.h"

static TRITONSERVER_Error_Code code_of(const char* name)
{
  const char* const names[] = {"UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE",
                               "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"};
  for (int i = 0; i < 8; i++)
    if (strcmp(names[i], name) == 0) return (TRITONSERVER_Error_Code)i;
  return TRITONSERVER_ERROR_UNKNOWN;
}

static TRITONSERVER_Error* check(TRITONBACKEND_Model* model, const char* place)
{
  char fail_at[100], code[100], text[200];
  RETURN_IF_ERROR(model_setting(model, "fail_at", "", fail_at));
  RETURN_IF_ERROR(model_setting(model, "code", "INTERNAL", code));
  if (strcmp(fail_at, place) != 0) return NULL;
  snprintf(text, sizeof text, "no luck in %s", place);
  return TRITONSERVER_ErrorNew(code_of(code), text);
}

static TRITONSERVER_Error* at_start(const char* place)
{
#ifdef FAIL_AT_START
  if (strcmp(FAIL_AT_START, place) == 0)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no luck at the start");
#endif
  (void)place;
  return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend)
{
  (void)backend;
  return at_start("Initialize");
}

TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attribute)
{
  (void)backend;
  RETURN_IF_ERROR(TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attribute, true));
  return at_start("GetBackendAttribute");
}

TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend)
{
  (void)backend;
  return at_start("Finalize");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
  return check(model, "ModelInitialize");
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model)
{
  return check(model, "ModelFinalize");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
  TRITONBACKEND_Model* model;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  return check(model, "ModelInstanceInitialize");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance)
{
  TRITONBACKEND_Model* model;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  return check(model, "ModelInstanceFinalize");
}

#ifndef NO_EXECUTE

static TRITONSERVER_Error* send_text(
    TRITONBACKEND_Request* request, const char* text, uint32_t flags, TRITONSERVER_Error* error)
{
  TRITONBACKEND_Response* response;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseNew(&response, request));
  TRITONSERVER_Error* problem = string_output(response, "OUT", text, 1);
  if (problem != NULL) return problem;
  return TRITONBACKEND_ResponseSend(response, flags, error);
}

/* An error from here is returned by Execute. */
static TRITONSERVER_Error* play(TRITONBACKEND_Request* request, const char* script)
{
  char text[200];
  snprintf(text, sizeof text, "said by %s", script);
  if (strncmp(script, "execute ", 8) == 0)
    return TRITONSERVER_ErrorNew(code_of(script + 8), text);
  if (strncmp(script, "respond ", 8) == 0) {
    fail(request, TRITONSERVER_ErrorNew(code_of(script + 8), text));
    return NULL;
  }
  if (strcmp(script, "empty text") == 0) {
    fail(request, TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, ""));
    return NULL;
  }
  if (strcmp(script, "unicode") == 0) {
    fail(request, TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "gr\xc3\xbc\xc3\x9f\n\"dich\""));
    return NULL;
  }
  TRITONSERVER_Error* error = NULL;
  if (strcmp(script, "output and error") == 0)
    error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, text);
  TRITONSERVER_Error* sending = send_text(request, text, FINAL, error);
  forget(error);
  if (sending != NULL) return sending;
  return TRITONBACKEND_RequestRelease(request, RELEASE_ALL);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  TRITONBACKEND_Model* model;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  RETURN_IF_ERROR(check(model, "ModelInstanceExecute"));
  for (uint32_t i = 0; i < count; i++) {
    char* script;
    RETURN_IF_ERROR(string_input(requests[i], "SCRIPT", &script));
    TRITONSERVER_Error* error = play(requests[i], script);
    free(script);
    if (error != NULL) return error;
  }
  return NULL;
}

#endif
