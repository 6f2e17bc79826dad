/* SPDX-License-Identifier: Apache-2.0 */
/* What the backends of these tests share: texts that grow, settings of a model, single values. */
#ifndef COMMON_H
#define COMMON_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "triton/core/tritonbackend.h"

#define RETURN_IF_ERROR(call)                      \
  do {                                             \
    TRITONSERVER_Error* error_of_call = (call);    \
    if (error_of_call != NULL) return error_of_call; \
  } while (0)

#define FINAL TRITONSERVER_RESPONSE_COMPLETE_FINAL
#define RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_ALL

static inline void forget(TRITONSERVER_Error* error)
{
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
}

static inline uint64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void sleep_ns(uint64_t duration)
{
  struct timespec time = {(time_t)(duration / 1000000000u), (long)(duration % 1000000000u)};
  nanosleep(&time, NULL);
}

/* ---- a text that grows ------------------------------------------------------------------------ */

typedef struct {
  char* data;
  size_t size;
} Text;

static inline void add(Text* text, const char* format, ...)
{
  va_list first, second;
  va_start(first, format);
  va_copy(second, first);
  int more = vsnprintf(NULL, 0, format, first);
  text->data = (char*)realloc(text->data, text->size + (size_t)more + 1);
  vsnprintf(text->data + text->size, (size_t)more + 1, format, second);
  text->size += (size_t)more;
  va_end(first);
  va_end(second);
}

/* A line "name<tab>value". */
#define FACT(text, name, ...)   \
  do {                          \
    add((text), "%s\t", (name)); \
    add((text), __VA_ARGS__);   \
    add((text), "\n");          \
  } while (0)

/* A fact that is an error, or "ok". */
static inline void outcome(Text* text, const char* name, TRITONSERVER_Error* error)
{
  if (error == NULL) {
    FACT(text, name, "ok");
  } else {
    FACT(text, name, "%s: %s", TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
  }
}

static inline const char* shown(const char* text) { return text == NULL ? "NULL" : text; }

/* ---- the configuration ------------------------------------------------------------------------ */

/* A copy of the configuration's JSON; the caller frees it. */
static inline TRITONSERVER_Error* config_text(TRITONBACKEND_Model* model, char** text)
{
  TRITONSERVER_Message* message;
  RETURN_IF_ERROR(TRITONBACKEND_ModelConfig(model, 1, &message));
  const char* base;
  size_t size;
  RETURN_IF_ERROR(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  *text = (char*)malloc(size + 1);
  memcpy(*text, base, size);
  (*text)[size] = 0;
  return TRITONSERVER_MessageDelete(message);
}

/* The string value of a parameter of the configuration, or `otherwise`. Cut at 99 characters. */
static inline void setting(
    const char* config, const char* name, const char* otherwise, char value[100])
{
  char key[100];
  snprintf(key, sizeof key, "\"%s\"", name);
  snprintf(value, 100, "%s", otherwise);
  const char* at = strstr(config, "\"parameters\"");
  at = at == NULL ? NULL : strstr(at, key);
  at = at == NULL ? NULL : strstr(at, "\"string_value\"");
  at = at == NULL ? NULL : strchr(at + strlen("\"string_value\""), '"');
  if (at == NULL) return;
  size_t size = strcspn(at + 1, "\"");
  snprintf(value, 100, "%.*s", (int)(size > 99 ? 99 : size), at + 1);
}

/* The same, of the model. */
static inline TRITONSERVER_Error* model_setting(
    TRITONBACKEND_Model* model, const char* name, const char* otherwise, char value[100])
{
  char* config;
  RETURN_IF_ERROR(config_text(model, &config));
  setting(config, name, otherwise, value);
  free(config);
  return NULL;
}

/* ---- tensors ---------------------------------------------------------------------------------- */

/* A copy of all buffers of an input. The caller frees it. */
static inline TRITONSERVER_Error* input_copy(
    TRITONBACKEND_Input* input, char** data, uint64_t* size)
{
  uint32_t count;
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, size, &count));
  *data = (char*)malloc(*size + 1);
  uint64_t at = 0;
  for (uint32_t i = 0; i < count; i++) {
    const void* part;
    uint64_t part_size;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, i, &part, &part_size, &type, &id));
    memcpy(*data + at, part, part_size);
    at += part_size;
  }
  (*data)[*size] = 0;
  return NULL;
}

/* The one string in an input of type BYTES; empty if there is none. The caller frees it. */
static inline TRITONSERVER_Error* string_input(
    TRITONBACKEND_Request* request, const char* name, char** text)
{
  TRITONBACKEND_Input* input;
  char* data;
  uint64_t size;
  *text = NULL;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, name, &input));
  RETURN_IF_ERROR(input_copy(input, &data, &size));
  *text = (char*)calloc(1, size + 1);
  if (size > 4) memcpy(*text, data + 4, size - 4);
  free(data);
  return NULL;
}

/* An output of one string, in the shape [1] or [1,1]. */
static inline TRITONSERVER_Error* string_output(
    TRITONBACKEND_Response* response, const char* name, const char* text, uint32_t dims)
{
  const int64_t shape[2] = {1, 1};
  TRITONBACKEND_Output* output;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(
      response, &output, name, TRITONSERVER_TYPE_BYTES, shape, dims));
  uint32_t size = (uint32_t)strlen(text);
  void* buffer;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, size + 4, &type, &id));
  memcpy(buffer, &size, 4);
  memcpy((char*)buffer + 4, text, size);
  return NULL;
}

/* An output of one number of 32 bits. */
static inline TRITONSERVER_Error* number_output(
    TRITONBACKEND_Response* response, const char* name, TRITONSERVER_DataType datatype,
    int32_t value, const int64_t* shape, uint32_t dims)
{
  TRITONBACKEND_Output* output;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, name, datatype, shape, dims));
  void* buffer;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof value, &type, &id));
  memcpy(buffer, &value, sizeof value);
  return NULL;
}

/* Answer a request with an error, which is deleted, and release it. */
static inline void fail(TRITONBACKEND_Request* request, TRITONSERVER_Error* error)
{
  TRITONBACKEND_Response* response;
  forget(TRITONBACKEND_ResponseNew(&response, request));
  forget(TRITONBACKEND_ResponseSend(response, FINAL, error));
  forget(error);
  forget(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
}

#endif
