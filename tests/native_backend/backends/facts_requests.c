/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about a request and its inputs. */
#include "facts.h"

void tell_request(Text* text, TRITONBACKEND_Request* request)
{
  const char *word = NULL, *name = NULL;
  uint64_t number = 9;
  uint32_t flags = 9, count = 9;
  bool is_cancelled = true;
  TRITONSERVER_InferenceTrace* trace = NULL;
  outcome(text, "id", TRITONBACKEND_RequestId(request, &word));
  FACT(text, "id is", "%s", shown(word));
  outcome(text, "correlation id", TRITONBACKEND_RequestCorrelationId(request, &number));
  FACT(text, "correlation id is", "%llu", (unsigned long long)number);
  word = NULL;
  outcome(text, "correlation word", TRITONBACKEND_RequestCorrelationIdString(request, &word));
  FACT(text, "correlation word is", "%s", shown(word));
  outcome(text, "flags", TRITONBACKEND_RequestFlags(request, &flags));
  FACT(text, "flags are", "%u", flags);
  outcome(text, "cancelled", TRITONBACKEND_RequestIsCancelled(request, &is_cancelled));
  FACT(text, "is cancelled", "%d", is_cancelled);
  number = 9;
  outcome(text, "timeout", TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &number));
  FACT(text, "timeout is", "%llu", (unsigned long long)number);
  outcome(text, "trace", TRITONBACKEND_RequestTrace(request, &trace));
  FACT(text, "is traced", "%d", trace != NULL);
  outcome(text, "parameters", TRITONBACKEND_RequestParameterCount(request, &count));
  FACT(text, "parameters are", "%u", count);
  TRITONSERVER_ParameterType type;
  const void* value;
  outcome(text, "parameter 99", TRITONBACKEND_RequestParameter(request, 99, &name, &type, &value));
  outcome(text, "outputs", TRITONBACKEND_RequestOutputCount(request, &count));
  for (uint32_t i = 0; i < count; i++) {
    outcome(text, "output", TRITONBACKEND_RequestOutputName(request, i, &name));
    FACT(text, "output is", "%s", shown(name));
  }
  outcome(text, "output 99", TRITONBACKEND_RequestOutputName(request, 99, &name));
  size_t size = 1000;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_GPU;
  int64_t memory_id = 3;
  outcome(text, "output memory", TRITONBACKEND_RequestOutputBufferProperties(
                                     request, "FACTS", &size, &memory, &memory_id));
  FACT(text, "output memory is", "%zu %d %lld", size, (int)memory, (long long)memory_id);
}

void tell_inputs(Text* text, TRITONBACKEND_Request* request)
{
  uint32_t count = 0;
  TRITONBACKEND_Input* input = NULL;
  const char* name = NULL;
  outcome(text, "inputs", TRITONBACKEND_RequestInputCount(request, &count));
  FACT(text, "inputs are", "%u", count);
  for (uint32_t i = 0; i < count; i++) {
    TRITONSERVER_DataType datatype;
    const int64_t* shape;
    uint32_t dims, buffers;
    uint64_t size;
    outcome(text, "name", TRITONBACKEND_RequestInputName(request, i, &name));
    outcome(text, "input", TRITONBACKEND_RequestInput(request, name, &input));
    outcome(text, "properties", TRITONBACKEND_InputProperties(
                                    input, &name, &datatype, &shape, &dims, &size, &buffers));
    add(text, "%s\t%s of %llu in %u [", name, TRITONSERVER_DataTypeString(datatype),
        (unsigned long long)size, buffers);
    for (uint32_t d = 0; d < dims; d++) add(text, "%lld,", (long long)shape[d]);
    add(text, "]\n");
  }
  outcome(text, "by index 0", TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  outcome(text, "by index 99", TRITONBACKEND_RequestInputByIndex(request, 99, &input));
  outcome(text, "name 99", TRITONBACKEND_RequestInputName(request, 99, &name));
  outcome(text, "unknown", TRITONBACKEND_RequestInput(request, "NOBODY", &input));
  forget(TRITONBACKEND_RequestInput(request, "GROUP", &input));
  outcome(text, "nothing asked", TRITONBACKEND_InputProperties(
                                     input, NULL, NULL, NULL, NULL, NULL, NULL));
  uint64_t size = 0, policy_size = 0;
  uint32_t policy_buffers = 0;
  outcome(text, "with policy", TRITONBACKEND_InputPropertiesForHostPolicy(
                                   input, "cpu", NULL, NULL, NULL, NULL, &size, &policy_buffers));
  FACT(text, "with policy is", "%llu %u", (unsigned long long)size, policy_buffers);
  const void *buffer = NULL, *same = NULL;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
  int64_t id = 4;
  outcome(text, "buffer", TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
  FACT(text, "buffer is", "%llu %d %lld", (unsigned long long)size, (int)type, (long long)id);
  outcome(text, "buffer 99", TRITONBACKEND_InputBuffer(input, 99, &same, &size, &type, &id));
  outcome(text, "buffer with policy", TRITONBACKEND_InputBufferForHostPolicy(
                                          input, "other", 0, &same, &policy_size, &type, &id));
  FACT(text, "buffer with policy is", "%d %llu", same == buffer, (unsigned long long)policy_size);
  TRITONSERVER_BufferAttributes* attributes = NULL;
  size_t length = 0;
  outcome(text, "attributes", TRITONBACKEND_InputBufferAttributes(input, 0, &same, &attributes));
  if (attributes != NULL) {
    forget(TRITONSERVER_BufferAttributesByteSize(attributes, &length));
    forget(TRITONSERVER_BufferAttributesMemoryType(attributes, &type));
  }
  FACT(text, "attributes are", "%d %zu %d", same == buffer, length, (int)type);
  outcome(text, "attributes 99", TRITONBACKEND_InputBufferAttributes(input, 99, &same, &attributes));
}
