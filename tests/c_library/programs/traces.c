// SPDX-License-Identifier: Apache-2.0
// Traces requests, and prints the activities.
#include <unistd.h>

#include "harness.h"

static uint64_t last_ns;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_trace_released;

static void on_activity(TRITONSERVER_InferenceTrace *trace, TRITONSERVER_InferenceTraceActivity activity,
                        uint64_t time_ns, void *userp) {
  const char *model, *id;
  uint64_t parent;
  MUST(TRITONSERVER_InferenceTraceModelName(trace, &model));
  MUST(TRITONSERVER_InferenceTraceRequestId(trace, &id));
  MUST(TRITONSERVER_InferenceTraceParentId(trace, &parent));
  printf("%s of %s, '%s', parent %" PRIu64 "%s%s\n", TRITONSERVER_InferenceTraceActivityString(activity), model, id,
         parent, time_ns >= last_ns ? "" : ", before the last one", userp == &lock ? "" : ", for somebody else");
  last_ns = time_ns;
}

static void on_release(TRITONSERVER_InferenceTrace *trace, void *userp) {
  (void)userp;
  pthread_mutex_lock(&lock);
  is_trace_released = true;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  MUST(TRITONSERVER_InferenceTraceDelete(trace));
}

static void trace_request(TRITONSERVER_Server *server, struct call *call, TRITONSERVER_InferenceTraceLevel level) {
  TRITONSERVER_InferenceTrace *trace, *child;
  const char *context;
  uint64_t id, parent;
  printf("level %s\n", TRITONSERVER_InferenceTraceLevelString(level));
  MUST(TRITONSERVER_InferenceTraceNew(&trace, level, 77, on_activity, on_release, &lock));
  MUST(TRITONSERVER_InferenceTraceContext(trace, &context));
  printf("context '%s'\n", context);
  MUST(TRITONSERVER_InferenceTraceSetContext(trace, "mine"));
  MUST(TRITONSERVER_InferenceTraceContext(trace, &context));
  printf("context '%s'\n", context);
  MUST(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child));
  MUST(TRITONSERVER_InferenceTraceId(trace, &id));
  MUST(TRITONSERVER_InferenceTraceParentId(child, &parent));
  printf("its child %s\n", id == parent ? "knows it" : "has another parent");
  MUST(TRITONSERVER_InferenceTraceDelete(child));
  last_ns = 0;
  SHOW(TRITONSERVER_InferenceTraceReportActivity(trace, 5, "mine"));
  call->is_final = call->is_released = is_trace_released = false;
  MUST(TRITONSERVER_ServerInferAsync(server, call->request, trace));
  wait_for(call);
  pthread_mutex_lock(&lock);
  while (!is_trace_released) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  float seconds = 0;
  TRITONSERVER_Server *server = new_server(arguments[1], arguments[2], false);
  struct call *call = new_call(server, "patient");
  add_input(call, "IN", TRITONSERVER_TYPE_FP32, 1, &seconds, sizeof seconds, false);
  MUST(TRITONSERVER_InferenceRequestSetId(call->request, "traced"));
  trace_request(server, call, TRITONSERVER_TRACE_LEVEL_DISABLED);
  trace_request(server, call, TRITONSERVER_TRACE_LEVEL_MAX);
  trace_request(server, call, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS);
  fflush(stdout);
  _exit(0);
}
