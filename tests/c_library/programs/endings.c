// SPDX-License-Identifier: Apache-2.0
// How servers and programs end, and what callbacks may do. A third argument lets the program exit
// while a server runs.
#include "harness.h"

static void *send_later(void *value) {
  struct call *call = value;
  wait_for(call);
  return NULL;
}

// A server is deleted while a request runs: it is answered first.
static void delete_while_running(TRITONSERVER_Server *server) {
  float seconds = 0.5;
  struct call *call = new_call(server, "patient");
  add_input(call, "IN", TRITONSERVER_TYPE_FP32, 1, &seconds, sizeof seconds, false);
  MUST(send_call(call, server));
  pthread_t thread;
  pthread_create(&thread, NULL, send_later, call);
  MUST(TRITONSERVER_ServerDelete(server));
  printf("deleted: final %d, released %d, %d response\n%s", call->is_final, call->is_released, call->responses,
         call->text);
  pthread_join(thread, NULL);
  delete_call(call);
}

static TRITONSERVER_Server *asked;

static void ask_server(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp) {
  (void)request, (void)flags;
  struct call *call = userp;
  bool is_ready = false;
  SHOW(TRITONSERVER_ServerIsReady(asked, &is_ready));
  SHOW(TRITONSERVER_ServerDelete(asked));
  SHOW(TRITONSERVER_InferenceRequestSetId(call->request, "free again"));
  pthread_mutex_lock(&call->lock);
  call->is_released = true;
  pthread_cond_broadcast(&call->changed);
  pthread_mutex_unlock(&call->lock);
}

// Callbacks may ask the server, but not end it.
static void ask_in_callback(TRITONSERVER_Server *server) {
  float seconds = 0;
  struct call *call = new_call(server, "patient");
  asked = server;
  add_input(call, "IN", TRITONSERVER_TYPE_FP32, 1, &seconds, sizeof seconds, false);
  MUST(TRITONSERVER_InferenceRequestSetReleaseCallback(call->request, ask_server, call));
  run_call(call, server, "asked");
  delete_call(call);
}

// What a server has is left alone, and what does not exist is an error.
static void wrong_uses(TRITONSERVER_Server *server) {
  float seconds = 0.2;
  struct call *call = new_call(server, "patient");
  add_input(call, "IN", TRITONSERVER_TYPE_FP32, 1, &seconds, sizeof seconds, false);
  MUST(send_call(call, server));
  SHOW(TRITONSERVER_InferenceRequestSetId(call->request, "late"));
  SHOW(TRITONSERVER_ServerInferAsync(server, call->request, NULL));
  SHOW(TRITONSERVER_InferenceRequestDelete(call->request));
  wait_for(call);
  TRITONSERVER_InferenceRequest *request;
  MUST(TRITONSERVER_InferenceRequestNew(&request, server, "patient", 1));
  SHOW(TRITONSERVER_ServerInferAsync(server, request, NULL));
  SHOW(TRITONSERVER_InferenceRequestDelete(request));
  SHOW(TRITONSERVER_InferenceRequestDelete(request));
  SHOW(TRITONSERVER_InferenceRequestDelete(NULL));
  SHOW(TRITONSERVER_InferenceRequestSetId(call->request, NULL));
  SHOW(TRITONSERVER_ServerStop(server));
  SHOW(TRITONSERVER_ServerInferAsync(server, call->request, NULL));
  delete_call(call);
  MUST(TRITONSERVER_ServerDelete(server));
}

// Responses have parameters.
static void parameters(TRITONSERVER_Server *server) {
  const char data[] = "\12\0\0\0parameters";
  struct call *call = new_call(server, "mirror");
  add_input(call, "IN", TRITONSERVER_TYPE_BYTES, 1, data, 14, true);
  MUST(TRITONSERVER_InferenceRequestSetStringParameter(call->request, "a", "b"));
  MUST(TRITONSERVER_InferenceRequestSetIntParameter(call->request, "i", -5));
  MUST(TRITONSERVER_InferenceRequestSetBoolParameter(call->request, "t", true));
  run_call(call, server, "parameters");
  delete_call(call);
}

// Two servers do not know each other.
static void two_servers(TRITONSERVER_Server *first, TRITONSERVER_Server *second) {
  float seconds = 0;
  struct call *call = new_call(second, "patient");
  add_input(call, "IN", TRITONSERVER_TYPE_FP32, 1, &seconds, sizeof seconds, false);
  MUST(TRITONSERVER_ServerDelete(first));
  run_call(call, second, "the second");
  delete_call(call);
}

int main(int count, char **arguments) {
  if (count < 3) return 2;
  TRITONSERVER_Server *server = new_server(arguments[1], arguments[2], false);
  if (count > 3) {  // exit without an end of the server, while a request runs
    static float seconds = 60;
    struct call *call = new_call(server, "patient");
    add_input(call, "IN", TRITONSERVER_TYPE_FP32, 1, &seconds, sizeof seconds, false);
    MUST(send_call(call, server));
    exit(7);
  }
  printf("== parameters\n");
  parameters(server);
  printf("== callback\n");
  ask_in_callback(server);
  printf("== two\n");
  TRITONSERVER_Server *second = new_server(arguments[1], arguments[2], false);
  two_servers(second, server);
  printf("== wrong\n");
  wrong_uses(server);
  printf("== delete\n");
  delete_while_running(new_server(arguments[1], arguments[2], false));
  return 0;
}
