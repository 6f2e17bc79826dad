/* SPDX-License-Identifier: Apache-2.0 */
/* Dies as SCRIPT says; otherwise answers with its process id. */
#include <pthread.h>
#include <unistd.h>

#include "common.h"

static void* abort_soon(void* nothing)
{
  (void)nothing;
  abort();
}

static void die(const char* script)
{
  if (script[0]) fprintf(stderr, "SCRIPT is %s\n", script);
  if (strcmp(script, "abort") == 0) abort();
  if (strcmp(script, "segfault") == 0) *(volatile int*)8 = 1;
  if (strcmp(script, "exit") == 0) _exit(3);
  if (strcmp(script, "thread") == 0) {
    pthread_t thread;
    pthread_create(&thread, NULL, abort_soon, NULL);
    pthread_join(thread, NULL);
  }
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
  char script[100];
  RETURN_IF_ERROR(model_setting(model, "initialize", "", script));
  die(script);
  return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  (void)instance;
  for (uint32_t i = 0; i < count; i++) {
    char* script;
    RETURN_IF_ERROR(string_input(requests[i], "SCRIPT", &script));
    die(script);
    free(script);
    char text[30];
    snprintf(text, sizeof text, "%d", (int)getpid());
    TRITONBACKEND_Response* response;
    RETURN_IF_ERROR(TRITONBACKEND_ResponseNew(&response, requests[i]));
    RETURN_IF_ERROR(string_output(response, "OUT", text, 1));
    RETURN_IF_ERROR(TRITONBACKEND_ResponseSend(response, FINAL, NULL));
    RETURN_IF_ERROR(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
  }
  return NULL;
}
