/* SPDX-License-Identifier: Apache-2.0 */
/* Completes its configuration as the model's parameter `set` says. */
#include "common.h"

#define TENSORS                                                        \
  "\"input\":[{\"name\":\"IN\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1]}]," \
  "\"output\":[{\"name\":\"OUT\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1]}]"

static const char* completed(const char* set)
{
  if (strcmp(set, "tensors") == 0) return "{\"max_batch_size\":4," TENSORS "}";
  if (strcmp(set, "dynamic") == 0)
    return "{\"max_batch_size\":4," TENSORS
           ",\"dynamic_batching\":{\"max_queue_delay_microseconds\":100}}";
  if (strcmp(set, "sequence") == 0)
    return "{\"max_batch_size\":4," TENSORS ",\"sequence_batching\":{}}";
  if (strcmp(set, "decoupled") == 0)
    return "{" TENSORS ",\"model_transaction_policy\":{\"decoupled\":true}}";
  if (strcmp(set, "others") == 0)
    return "{\"name\":\"another\",\"backend\":\"another\",\"max_batch_size\":2," TENSORS
           ",\"instance_group\":[{\"count\":3,\"kind\":\"KIND_CPU\"}],"
           "\"parameters\":{\"set\":{\"string_value\":\"another\"}},"
           "\"version_policy\":{\"all\":{}},\"response_cache\":{\"enable\":true},"
           "\"default_model_filename\":\"x.bin\"}";
  if (strcmp(set, "no tensors") == 0) return "{\"max_batch_size\":3}";
  if (strcmp(set, "bad field") == 0) return "{\"colour\":5}";
  if (strcmp(set, "bad type") == 0)
    return "{\"input\":[{\"name\":\"IN\",\"data_type\":\"TYPE_WRONG\",\"dims\":[1]}]}";
  if (strcmp(set, "bad value") == 0) return "{\"max_batch_size\":\"many\"}";
  return NULL;
}

static TRITONSERVER_Error* set_config(TRITONBACKEND_Model* model, uint32_t version, const char* json)
{
  TRITONSERVER_Message* message;
  RETURN_IF_ERROR(TRITONSERVER_MessageNewFromSerializedJson(&message, json, strlen(json)));
  TRITONSERVER_Error* error = TRITONBACKEND_ModelSetConfig(model, version, message);
  TRITONSERVER_MessageDelete(message);
  return error;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
  char set[100];
  bool completes;
  RETURN_IF_ERROR(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
  TRITONSERVER_LogMessage(
      TRITONSERVER_LOG_INFO, __FILE__, __LINE__,
      completes ? "auto_complete: completes" : "auto_complete: does not complete");
  RETURN_IF_ERROR(model_setting(model, "set", "tensors", set));
  if (strcmp(set, "version") == 0) return set_config(model, 2, completed("tensors"));
  if (strcmp(set, "unasked") == 0) return set_config(model, 1, completed("tensors"));
  if (completes && strcmp(set, "twice") == 0) {
    RETURN_IF_ERROR(set_config(model, 1, completed("no tensors")));
    return set_config(model, 1, completed("tensors"));
  }
  if (completes && completed(set) != NULL) return set_config(model, 1, completed(set));
  return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
  TRITONBACKEND_Model* model;
  char set[100];
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  RETURN_IF_ERROR(model_setting(model, "set", "tensors", set));
  if (strcmp(set, "late") == 0) return set_config(model, 1, completed("tensors"));
  return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  (void)instance;
  (void)requests;
  (void)count;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "this model only loads");
}
