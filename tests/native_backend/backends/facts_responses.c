/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about responses that are never sent, and about statistics. */
#include "facts.h"

static void tell_outputs(Text* text, TRITONBACKEND_Response* response)
{
  const int64_t shape[2] = {2, 3};
  TRITONBACKEND_Output *output = NULL, *other = NULL;
  outcome(text, "output", TRITONBACKEND_ResponseOutput(
                              response, &output, "FACTS", TRITONSERVER_TYPE_INT32, shape, 2));
  outcome(text, "output twice", TRITONBACKEND_ResponseOutput(
                                    response, &other, "FACTS", TRITONSERVER_TYPE_INT32, shape, 2));
  outcome(text, "unknown output", TRITONBACKEND_ResponseOutput(
                                      response, &other, "NOBODY", TRITONSERVER_TYPE_FP32, shape, 1));
  void *buffer = NULL, *again = NULL;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
  int64_t id = 2;
  outcome(text, "buffer", TRITONBACKEND_OutputBuffer(output, &buffer, 24, &type, &id));
  FACT(text, "buffer is", "%d %lld %d", (int)type, (long long)id, buffer != NULL);
  outcome(text, "buffer twice", TRITONBACKEND_OutputBuffer(output, &again, 24, &type, &id));
  TRITONSERVER_BufferAttributes* attributes = NULL;
  size_t size = 0;
  outcome(text, "attributes", TRITONBACKEND_OutputBufferAttributes(output, &attributes));
  if (attributes != NULL) forget(TRITONSERVER_BufferAttributesByteSize(attributes, &size));
  FACT(text, "attributes are", "%zu", size);
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* found_shape = NULL;
  uint64_t dims = 0;
  const char* name = NULL;
  outcome(text, "by name", TRITONBACKEND_InferenceResponseOutputByName(
                               response, "FACTS", &datatype, &found_shape, &dims));
  FACT(text, "by name is", "%d %llu %lld", (int)datatype, (unsigned long long)dims,
       found_shape == NULL ? -1 : (long long)found_shape[1]);
  outcome(text, "by wrong name", TRITONBACKEND_InferenceResponseOutputByName(
                                     response, "NONE", &datatype, &found_shape, &dims));
  outcome(text, "by index", TRITONBACKEND_InferenceResponseOutput(
                                response, 0, &name, &datatype, &found_shape, &dims));
  FACT(text, "by index is", "%s", shown(name));
  outcome(text, "by wrong index", TRITONBACKEND_InferenceResponseOutput(
                                      response, 99, &name, &datatype, &found_shape, &dims));
}

void tell_responses(Text* text, TRITONBACKEND_Request* request)
{
  TRITONBACKEND_Response* response = NULL;
  TRITONBACKEND_ResponseFactory* factory = NULL;
  bool is_cancelled = true;
  outcome(text, "response", TRITONBACKEND_ResponseNew(&response, request));
  tell_outputs(text, response);
  outcome(text, "string", TRITONBACKEND_ResponseSetStringParameter(response, "a", "b"));
  outcome(text, "string again", TRITONBACKEND_ResponseSetStringParameter(response, "a", "c"));
  outcome(text, "int", TRITONBACKEND_ResponseSetIntParameter(response, "i", -5));
  outcome(text, "delete", TRITONBACKEND_ResponseDelete(response));
  outcome(text, "factory", TRITONBACKEND_ResponseFactoryNew(&factory, request));
  outcome(text, "cancelled", TRITONBACKEND_ResponseFactoryIsCancelled(factory, &is_cancelled));
  FACT(text, "is cancelled", "%d", is_cancelled);
  outcome(text, "from factory", TRITONBACKEND_ResponseNewFromFactory(&response, factory));
  outcome(text, "delete again", TRITONBACKEND_ResponseDelete(response));
  outcome(text, "delete factory", TRITONBACKEND_ResponseFactoryDelete(factory));
}

void tell_statistics(
    Text* text, TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request)
{
  TRITONBACKEND_ModelInstanceResponseStatistics* made = NULL;
  TRITONBACKEND_ResponseFactory* factory = NULL;
  uint64_t now = now_ns();
  forget(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  outcome(text, "new", TRITONBACKEND_ModelInstanceResponseStatisticsNew(&made));
  outcome(text, "instance",
          TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(made, instance));
  outcome(text, "factory",
          TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(made, factory));
  outcome(text, "start", TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(made, now));
  outcome(text, "end", TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(made, now + 5));
  outcome(text, "error", TRITONBACKEND_ModelInstanceResponseStatisticsSetError(made, NULL));
  outcome(text, "report", TRITONBACKEND_ModelInstanceReportResponseStatistics(made));
  outcome(text, "delete", TRITONBACKEND_ModelInstanceResponseStatisticsDelete(made));
  outcome(text, "delete factory", TRITONBACKEND_ResponseFactoryDelete(factory));
  outcome(text, "request", TRITONBACKEND_ModelInstanceReportStatistics(
                               instance, request, true, now, now, now + 1, now + 2));
  outcome(text, "batch", TRITONBACKEND_ModelInstanceReportBatchStatistics(
                             instance, 1, now, now, now + 1, now + 2));
}
