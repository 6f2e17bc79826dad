/* SPDX-License-Identifier: Apache-2.0 */
/* Answers a number n with n responses of n, from a thread of its own, with statistics of each
 * response. Parameters of the model make the last ones empty or fail, and delay them. */
#include <pthread.h>

#include "common.h"

typedef struct {
  uint64_t infer_ns, output_ns, cancel_ns;
  int32_t failing, empty;
} Settings;

typedef struct {
  TRITONBACKEND_ModelInstance* instance;
  TRITONBACKEND_ResponseFactory* factory;
  Settings settings;
  int32_t number;
  uint32_t dims;
} Work;

static int running = 0;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

static void report(
    Work* work, uint64_t start, uint64_t output_start, TRITONSERVER_Error* error)
{
  TRITONBACKEND_ModelInstanceResponseStatistics* statistics;
  forget(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&statistics));
  forget(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, work->instance));
  forget(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(statistics, work->factory));
  forget(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, start));
  forget(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
      statistics, output_start));
  forget(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, now_ns()));
  forget(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, error));
  forget(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics));
  forget(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics));
}

static TRITONSERVER_Error* respond(Work* work, int32_t index)
{
  const int64_t shape[4] = {1, 1, 1, 1};
  TRITONBACKEND_Response* response;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseNewFromFactory(&response, work->factory));
  TRITONSERVER_Error* error = NULL;
  if (index >= work->number - work->settings.empty - work->settings.failing)
    error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNKNOWN, "simulated failure");
  else
    error = number_output(
        response, "OUT", TRITONSERVER_TYPE_INT32, work->number, shape, work->dims);
  forget(TRITONBACKEND_ResponseSend(response, 0, error));
  return error;
}

/* Whether the request is still wanted. */
static bool go_on(Work* work, int32_t index)
{
  uint64_t start = now_ns(), output_start = 0;
  sleep_ns(work->settings.infer_ns);
  bool is_cancelled = false;
  forget(TRITONBACKEND_ResponseFactoryIsCancelled(work->factory, &is_cancelled));
  TRITONSERVER_Error* error = NULL;
  if (is_cancelled) {
    sleep_ns(work->settings.cancel_ns);
    error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_CANCELLED, "request cancelled");
  } else if (index < work->number - work->settings.empty) {
    output_start = now_ns();
    sleep_ns(work->settings.output_ns);
    error = respond(work, index);
  }
  report(work, start, output_start, error);
  forget(error);
  return !is_cancelled;
}

static void* run(void* argument)
{
  Work* work = (Work*)argument;
  int32_t sent = 0;
  while (sent < work->number && go_on(work, sent)) sent++;
  if (sent < work->number)
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, "square: cancelled");
  forget(TRITONBACKEND_ResponseFactorySendFlags(work->factory, FINAL));
  forget(TRITONBACKEND_ResponseFactoryDelete(work->factory));
  free(work);
  pthread_mutex_lock(&mutex);
  running--;
  pthread_cond_signal(&ended);
  pthread_mutex_unlock(&mutex);
  return NULL;
}

static TRITONSERVER_Error* begin(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, const Settings* settings)
{
  TRITONBACKEND_Input* input;
  char* data;
  uint64_t size;
  Work* work = (Work*)calloc(1, sizeof *work);
  work->instance = instance;
  work->settings = *settings;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, "IN", &input));
  RETURN_IF_ERROR(
      TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, &work->dims, NULL, NULL));
  RETURN_IF_ERROR(input_copy(input, &data, &size));
  memcpy(&work->number, data, sizeof work->number);
  free(data);
  RETURN_IF_ERROR(TRITONBACKEND_ResponseFactoryNew(&work->factory, request));
  pthread_mutex_lock(&mutex);
  running++;
  pthread_mutex_unlock(&mutex);
  pthread_t thread;
  pthread_create(&thread, NULL, run, work);
  pthread_detach(thread);
  return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
  TRITONBACKEND_Model* model;
  char* config;
  char value[100];
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  RETURN_IF_ERROR(config_text(model, &config));
  Settings* settings = (Settings*)malloc(sizeof *settings);
  setting(config, "CUSTOM_INFER_DELAY_NS", "0", value);
  settings->infer_ns = strtoull(value, NULL, 10);
  setting(config, "CUSTOM_OUTPUT_DELAY_NS", "0", value);
  settings->output_ns = strtoull(value, NULL, 10);
  setting(config, "CUSTOM_CANCEL_DELAY_NS", "0", value);
  settings->cancel_ns = strtoull(value, NULL, 10);
  setting(config, "CUSTOM_FAIL_COUNT", "0", value);
  settings->failing = atoi(value);
  setting(config, "CUSTOM_EMPTY_COUNT", "0", value);
  settings->empty = atoi(value);
  free(config);
  return TRITONBACKEND_ModelInstanceSetState(instance, settings);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  void* settings;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceState(instance, &settings));
  for (uint32_t i = 0; i < count; i++) {
    TRITONSERVER_Error* error = begin(instance, requests[i], (const Settings*)settings);
    if (error != NULL)
      fail(requests[i], error);
    else
      forget(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
  }
  return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance)
{
  void* settings;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceState(instance, &settings));
  pthread_mutex_lock(&mutex);
  while (running > 0) pthread_cond_wait(&ended, &mutex);
  pthread_mutex_unlock(&mutex);
  free(settings);
  return NULL;
}
