/* SPDX-License-Identifier: Apache-2.0 */
/* Answers element after element of IN with OUT and IDX, each after its DELAY in milliseconds, from
 * a thread of its own; Execute comes back after WAIT milliseconds. The request is released before
 * most responses are sent. */
#include <pthread.h>

#include "common.h"

typedef struct {
  TRITONBACKEND_ResponseFactory* factory;
  int32_t* values;
  uint32_t* delays;
  uint64_t count;
} Work;

static int running = 0;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

static TRITONSERVER_Error* respond(Work* work, uint64_t index)
{
  const int64_t shape[1] = {1};
  TRITONBACKEND_Response* response;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseNewFromFactory(&response, work->factory));
  TRITONSERVER_Error* error = number_output(
      response, "OUT", TRITONSERVER_TYPE_INT32, work->values[index], shape, 1);
  if (error == NULL)
    error = number_output(response, "IDX", TRITONSERVER_TYPE_UINT32, (int32_t)index, shape, 1);
  TRITONSERVER_Error* sending = TRITONBACKEND_ResponseSend(response, 0, error);
  forget(error);
  return sending;
}

static void* run(void* argument)
{
  Work* work = (Work*)argument;
  for (uint64_t i = 0; i < work->count; i++) {
    sleep_ns((uint64_t)work->delays[i] * 1000000u);
    forget(respond(work, i));
  }
  forget(TRITONBACKEND_ResponseFactorySendFlags(work->factory, FINAL));
  forget(TRITONBACKEND_ResponseFactoryDelete(work->factory));
  free(work->values);
  free(work->delays);
  free(work);
  pthread_mutex_lock(&mutex);
  running--;
  pthread_cond_signal(&ended);
  pthread_mutex_unlock(&mutex);
  return NULL;
}

static TRITONSERVER_Error* vector(
    TRITONBACKEND_Request* request, const char* name, char** data, uint64_t* count)
{
  TRITONBACKEND_Input* input;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, name, &input));
  RETURN_IF_ERROR(input_copy(input, data, count));
  *count /= 4;
  return NULL;
}

static TRITONSERVER_Error* begin(TRITONBACKEND_Request* request, uint32_t* wait_ms)
{
  char *values, *delays, *wait;
  uint64_t value_count, delay_count, wait_count;
  RETURN_IF_ERROR(vector(request, "IN", &values, &value_count));
  RETURN_IF_ERROR(vector(request, "DELAY", &delays, &delay_count));
  RETURN_IF_ERROR(vector(request, "WAIT", &wait, &wait_count));
  memcpy(wait_ms, wait, sizeof *wait_ms);
  free(wait);
  if (value_count != delay_count) {
    char text[100];
    snprintf(text, sizeof text, "expected IN and DELAY shape to match, got [%llu] and [%llu]",
             (unsigned long long)value_count, (unsigned long long)delay_count);
    free(values);
    free(delays);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, text);
  }
  Work* work = (Work*)malloc(sizeof *work);
  work->values = (int32_t*)(void*)values;
  work->delays = (uint32_t*)(void*)delays;
  work->count = value_count;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseFactoryNew(&work->factory, request));
  pthread_mutex_lock(&mutex);
  running++;
  pthread_mutex_unlock(&mutex);
  pthread_t thread;
  pthread_create(&thread, NULL, run, work);
  pthread_detach(thread);
  return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    uint64_t start = now_ns();
    uint32_t wait_ms = 0;
    TRITONSERVER_Error* error = begin(requests[i], &wait_ms);
    if (error != NULL) {
      fail(requests[i], error);
      continue;
    }
    sleep_ns((uint64_t)wait_ms * 1000000u);
    uint64_t end = now_ns();
    forget(TRITONBACKEND_ModelInstanceReportStatistics(
        instance, requests[i], true, start, start, end, end));
    forget(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, start, start, end, end));
    forget(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
  }
  return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance)
{
  (void)instance;
  pthread_mutex_lock(&mutex);
  while (running > 0) pthread_cond_wait(&ended, &mutex);
  pthread_mutex_unlock(&mutex);
  TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, "repeat: all threads ended");
  return NULL;
}
