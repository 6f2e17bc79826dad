// SPDX-License-Identifier: Apache-2.0
// Sends requests in every way, and prints what comes of them.
#include "harness.h"

static void add_and_subtract(TRITONSERVER_Server *server) {
  float first[] = {1, 2, 3, 4}, second[] = {10, 20, 30, 40};
  struct call *call = new_call(server, "add_sub");
  add_input(call, "INPUT0", TRITONSERVER_TYPE_FP32, 4, first, sizeof first, true);
  add_input(call, "INPUT1", TRITONSERVER_TYPE_FP32, 4, second, sizeof second, true);
  MUST(TRITONSERVER_InferenceRequestSetId(call->request, "first"));
  run_call(call, server, "add and subtract");
  first[0] = 100;  // data is read when a request is sent, and a request may be sent again
  run_call(call, server, "other data");
  MUST(TRITONSERVER_InferenceRequestAddRequestedOutput(call->request, "OUTPUT1"));
  run_call(call, server, "one output");
  MUST(TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(call->request));
  MUST(TRITONSERVER_InferenceRequestRemoveAllInputData(call->request, "INPUT0"));
  for (int i = 3; i >= 0; i--) {
    MUST(TRITONSERVER_InferenceRequestAppendInputData(call->request, "INPUT0", first + i, 4, TRITONSERVER_MEMORY_CPU, 0));
  }
  run_call(call, server, "data in four buffers");
  call->fails_to_allocate = true;
  TRITONSERVER_Error *error = send_call(call, server);
  must(error, "send");
  wait_for(call);
  printf("no memory:\n%s", call->text);
  call->fails_to_allocate = false;
  MUST(TRITONSERVER_InferenceRequestRemoveAllInputs(call->request));
  run_call(call, server, "no inputs");
  add_input(call, "INPUT0", TRITONSERVER_TYPE_FP32, 4, first, sizeof first, true);
  add_input(call, "INPUT1", TRITONSERVER_TYPE_FP32, 4, second, 12, true);
  run_call(call, server, "too little data");
  MUST(TRITONSERVER_InferenceRequestRemoveInput(call->request, "INPUT1"));
  add_input(call, "INPUT1", TRITONSERVER_TYPE_INT32, 4, second, sizeof second, true);
  run_call(call, server, "another datatype");
  MUST(TRITONSERVER_InferenceRequestAddRequestedOutput(call->request, "NOWHERE"));
  run_call(call, server, "unknown output");
  delete_call(call);
}

static void large(TRITONSERVER_Server *server) {
  enum { COUNT = 1 << 20 };
  float *values = malloc(COUNT * sizeof *values);
  for (int i = 0; i < COUNT; i++) values[i] = 0.5f;
  struct call *call = new_call(server, "add_sub");
  call->is_quiet = true;
  add_input(call, "INPUT0", TRITONSERVER_TYPE_FP32, COUNT, values, COUNT * sizeof *values, true);
  int64_t shape[] = {1, COUNT};
  MUST(TRITONSERVER_InferenceRequestAddInput(call->request, "INPUT1", TRITONSERVER_TYPE_FP32, shape, 2));
  for (int i = 0; i < 4; i++) {
    MUST(TRITONSERVER_InferenceRequestAppendInputData(call->request, "INPUT1", values + i * COUNT / 4,
                                                      COUNT / 4 * sizeof *values, TRITONSERVER_MEMORY_CPU, 0));
  }
  run_call(call, server, "four megabytes");
  printf("sum %g\n", call->sum);
  delete_call(call);
  free(values);
}

static void repeat(TRITONSERVER_Server *server) {
  int32_t values[] = {7, 8, -1, 9}, many[1000];
  struct call *call = new_call(server, "repeat");
  add_input(call, "IN", TRITONSERVER_TYPE_INT32, 4, values, sizeof values, false);
  run_call(call, server, "four responses");
  MUST(TRITONSERVER_InferenceRequestRemoveAllInputs(call->request));
  add_input(call, "IN", TRITONSERVER_TYPE_INT32, 0, values, 0, false);
  run_call(call, server, "no response");
  MUST(TRITONSERVER_InferenceRequestRemoveAllInputs(call->request));
  for (int i = 0; i < 1000; i++) many[i] = i;
  add_input(call, "IN", TRITONSERVER_TYPE_INT32, 1000, many, sizeof many, false);
  call->is_quiet = true;
  run_call(call, server, "a thousand responses");
  delete_call(call);
}

static void texts(TRITONSERVER_Server *server) {
  const char data[] = "\5\0\0\0hello", bad[] = "\4\0\0\0fail";
  struct call *call = new_call(server, "mirror");
  MUST(TRITONSERVER_InferenceRequestSetId(call->request, "text"));
  add_input(call, "IN", TRITONSERVER_TYPE_BYTES, 1, data, 9, true);
  MUST(TRITONSERVER_InferenceRequestSetStringParameter(call->request, "a", "b"));
  MUST(TRITONSERVER_InferenceRequestSetIntParameter(call->request, "number", -5));
  MUST(TRITONSERVER_InferenceRequestSetBoolParameter(call->request, "flag", true));
  run_call(call, server, "a text");
  MUST(TRITONSERVER_InferenceRequestRemoveAllInputs(call->request));
  add_input(call, "IN", TRITONSERVER_TYPE_BYTES, 1, bad, 8, true);
  run_call(call, server, "an error of the model");
  MUST(TRITONSERVER_InferenceRequestRemoveAllInputs(call->request));
  MUST(TRITONSERVER_InferenceRequestAddRawInput(call->request, "IN"));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(call->request, "IN", "raw", 3, TRITONSERVER_MEMORY_CPU, 0));
  run_call(call, server, "a raw text");
  delete_call(call);
}

static void cancel(TRITONSERVER_Server *server) {
  float seconds = 60;
  bool is_cancelled;
  struct call *call = new_call(server, "patient");
  add_input(call, "IN", TRITONSERVER_TYPE_FP32, 1, &seconds, sizeof seconds, false);
  SHOW(TRITONSERVER_InferenceRequestCancel(call->request));
  SHOW(TRITONSERVER_InferenceRequestIsCancelled(call->request, &is_cancelled));
  MUST(send_call(call, server));
  SHOW(TRITONSERVER_InferenceRequestCancel(call->request));
  wait_for(call);
  printf("cancelled: %d response, final %d\n", call->responses, call->is_final);
  SHOW(TRITONSERVER_InferenceRequestIsCancelled(call->request, &is_cancelled));
  printf("is cancelled %d\n", is_cancelled);
  seconds = 0;
  run_call(call, server, "sent again");
  delete_call(call);
}

static void *send_many(void *value) {
  TRITONSERVER_Server *server = value;
  float first, second = 1;
  struct call *call = new_call(server, "add_sub");
  call->is_quiet = true;
  add_input(call, "INPUT0", TRITONSERVER_TYPE_FP32, 1, &first, sizeof first, true);
  add_input(call, "INPUT1", TRITONSERVER_TYPE_FP32, 1, &second, sizeof second, true);
  uintptr_t right = 0;
  for (int i = 0; i < 50; i++) {
    first = (float)i;
    must(send_call(call, server), "send");
    wait_for(call);
    if (call->sum == 2 * first && call->releases == 2) right++;
  }
  delete_call(call);
  return (void *)right;
}

static void threads(TRITONSERVER_Server *server) {
  pthread_t thread[8];
  uintptr_t right = 0;
  for (int i = 0; i < 8; i++) pthread_create(thread + i, NULL, send_many, server);
  for (int i = 0; i < 8; i++) {
    void *result;
    pthread_join(thread[i], &result);
    right += (uintptr_t)result;
  }
  printf("threads: %d of 400 right\n", (int)right);
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  TRITONSERVER_Server *server = new_server(arguments[1], arguments[2], false);
  TRITONSERVER_InferenceRequest *request;
  SHOW(TRITONSERVER_InferenceRequestNew(&request, server, "nobody", -1));
  SHOW(TRITONSERVER_InferenceRequestNew(&request, server, "add_sub", 7));
  add_and_subtract(server);
  large(server);
  repeat(server);
  texts(server);
  cancel(server);
  threads(server);
  MUST(TRITONSERVER_ServerSetExitTimeout(server, 1));
  TRITONSERVER_ServerDelete(server);  // Triton's own Python backend may need longer
  return 0;
}
