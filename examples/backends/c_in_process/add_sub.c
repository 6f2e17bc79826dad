// SPDX-License-Identifier: Apache-2.0
// A program with a server in its process: loads a model, sends one request, prints the response.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "triton/core/tritonserver.h"

static void check(TRITONSERVER_Error *error) {
  if (error == NULL) return;
  fprintf(stderr, "%s: %s\n", TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
  exit(1);
}

// Memory for outputs is the program's: the server asks for it, and gives it back with the response.
static TRITONSERVER_Error *allocate(TRITONSERVER_ResponseAllocator *allocator, const char *name, size_t size,
                                    TRITONSERVER_MemoryType type, int64_t id, void *userp, void **buffer,
                                    void **buffer_userp, TRITONSERVER_MemoryType *actual_type, int64_t *actual_id) {
  (void)allocator, (void)name, (void)type, (void)id, (void)userp;
  *buffer = size == 0 ? NULL : malloc(size);
  *buffer_userp = NULL;
  *actual_type = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  return NULL;
}

static TRITONSERVER_Error *release(TRITONSERVER_ResponseAllocator *allocator, void *buffer, void *buffer_userp,
                                   size_t size, TRITONSERVER_MemoryType type, int64_t id) {
  (void)allocator, (void)buffer_userp, (void)size, (void)type, (void)id;
  free(buffer);
  return NULL;
}

// The two callbacks come from another thread.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static TRITONSERVER_InferenceResponse *answer;
static bool is_released;

static void on_response(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp) {
  (void)flags, (void)userp;
  pthread_mutex_lock(&lock);
  answer = response;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&lock);
}

static void on_released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp) {
  (void)request, (void)flags, (void)userp;
  pthread_mutex_lock(&lock);
  is_released = true;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&lock);
}

static void print_output(uint32_t index) {
  const char *name;
  TRITONSERVER_DataType type;
  const int64_t *shape;
  uint64_t dims;
  const void *base;
  size_t size;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_id;
  void *userp;
  check(TRITONSERVER_InferenceResponseOutput(answer, index, &name, &type, &shape, &dims, &base, &size, &memory_type,
                                             &memory_id, &userp));
  printf("%s:", name);
  for (size_t i = 0; i < size / sizeof(float); i++) printf(" %g", ((const float *)base)[i]);
  printf("\n");
}

int main(int count, char **arguments) {
  if (count != 2) {
    fprintf(stderr, "usage: %s MODEL_REPOSITORY\n", arguments[0]);
    return 2;
  }
  TRITONSERVER_ServerOptions *options;
  TRITONSERVER_Server *server;
  check(TRITONSERVER_ServerOptionsNew(&options));
  check(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, arguments[1]));
  check(TRITONSERVER_ServerOptionsSetLogInfo(options, false));
  check(TRITONSERVER_ServerNew(&server, options));
  check(TRITONSERVER_ServerOptionsDelete(options));

  TRITONSERVER_ResponseAllocator *allocator;
  TRITONSERVER_InferenceRequest *request;
  const int64_t shape[] = {1, 4};
  const float first[] = {1, 2, 3, 4}, second[] = {10, 20, 30, 40};
  check(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  check(TRITONSERVER_InferenceRequestNew(&request, server, "add_sub", -1));
  check(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 2));
  check(TRITONSERVER_InferenceRequestAddInput(request, "INPUT1", TRITONSERVER_TYPE_FP32, shape, 2));
  check(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", first, sizeof first, TRITONSERVER_MEMORY_CPU, 0));
  check(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT1", second, sizeof second, TRITONSERVER_MEMORY_CPU, 0));
  check(TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_released, NULL));
  check(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, on_response, NULL));
  check(TRITONSERVER_ServerInferAsync(server, request, NULL));

  pthread_mutex_lock(&lock);
  while (answer == NULL || !is_released) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  check(TRITONSERVER_InferenceResponseError(answer));
  print_output(0);
  print_output(1);

  check(TRITONSERVER_InferenceResponseDelete(answer));
  check(TRITONSERVER_InferenceRequestDelete(request));
  check(TRITONSERVER_ResponseAllocatorDelete(allocator));
  check(TRITONSERVER_ServerDelete(server));
  return 0;
}
