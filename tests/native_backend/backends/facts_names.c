/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about functions that need no object of the server. */
#include "facts.h"

void tell_names(Text* text)
{
  char name[60];
  uint32_t major = 0, minor = 0;
  outcome(text, "backend API", TRITONBACKEND_ApiVersion(&major, &minor));
  FACT(text, "backend API major", "%u", major);
  FACT(text, "backend API is new enough", "%d", minor >= 19);
  outcome(text, "server API", TRITONSERVER_ApiVersion(&major, &minor));
  FACT(text, "server API major", "%u", major);
  for (int i = -1; i < 16; i++) {
    snprintf(name, sizeof name, "datatype %d", i);
    FACT(text, name, "%s of %u", TRITONSERVER_DataTypeString((TRITONSERVER_DataType)i),
         TRITONSERVER_DataTypeByteSize((TRITONSERVER_DataType)i));
  }
  for (int i = -1; i < 6; i++) {
    snprintf(name, sizeof name, "number %d", i);
    FACT(text, name, "%s %s %s",
         TRITONSERVER_MemoryTypeString((TRITONSERVER_MemoryType)i),
         TRITONSERVER_ParameterTypeString((TRITONSERVER_ParameterType)i),
         TRITONSERVER_InstanceGroupKindString((TRITONSERVER_InstanceGroupKind)i));
  }
  for (int i = -1; i < 12; i++) {
    snprintf(name, sizeof name, "trace %d", i);
    FACT(text, name, "%s %s",
         TRITONSERVER_InferenceTraceLevelString((TRITONSERVER_InferenceTraceLevel)i),
         TRITONSERVER_InferenceTraceActivityString((TRITONSERVER_InferenceTraceActivity)i));
  }
  const char* const words[] = {"BOOL", "BF16", "BYTES", "STRING", "TYPE_FP32", "fp32", "", "FP32 "};
  for (int i = 0; i < 8; i++) {
    snprintf(name, sizeof name, "word '%s'", words[i]);
    FACT(text, name, "%d", (int)TRITONSERVER_StringToDataType(words[i]));
  }
}

static void tell_message(Text* text, const char* json)
{
  TRITONSERVER_Message* message = NULL;
  TRITONSERVER_Error* error =
      TRITONSERVER_MessageNewFromSerializedJson(&message, json, strlen(json));
  if (error != NULL) {
    outcome(text, json, error);
    return;
  }
  const char* base;
  size_t size;
  error = TRITONSERVER_MessageSerializeToJson(message, &base, &size);
  if (error == NULL)
    FACT(text, json, "%.*s", (int)size, base);
  else
    outcome(text, json, error);
  outcome(text, "deleted", TRITONSERVER_MessageDelete(message));
}

void tell_messages(Text* text)
{
  tell_message(text, "{\"a\": [1, 2.5, true, null, \"x\"]}");
  tell_message(text, "{ }");
  tell_message(text, "[1, 2]");
  tell_message(text, "\"text\"");
  tell_message(text, "{\"a\":18446744073709551615,\"b\":-9223372036854775808}");
  tell_message(text, "{\"a\":\"\\u00e9\"}");
  tell_message(text, "");
  tell_message(text, "{\"a\": }");
  tell_message(text, "{} x");
}

void tell_parameters(Text* text)
{
  int64_t number = 7;
  bool truth = true;
  double real = 2.5;
  struct {
    const char* name;
    TRITONSERVER_ParameterType type;
    const void* value;
  } const made[] = {
      {"string", TRITONSERVER_PARAMETER_STRING, "value"},
      {"int", TRITONSERVER_PARAMETER_INT, &number},
      {"bool", TRITONSERVER_PARAMETER_BOOL, &truth},
      {"double", TRITONSERVER_PARAMETER_DOUBLE, &real},
      {"bytes", TRITONSERVER_PARAMETER_BYTES, "value"},
      {"type 9", (TRITONSERVER_ParameterType)9, "value"},
  };
  for (int i = 0; i < 6; i++) {
    TRITONSERVER_Parameter* parameter =
        TRITONSERVER_ParameterNew(made[i].name, made[i].type, made[i].value);
    FACT(text, made[i].name, "%s", parameter == NULL ? "NULL" : "made");
    if (parameter != NULL) TRITONSERVER_ParameterDelete(parameter);
  }
  TRITONSERVER_Parameter* parameter = TRITONSERVER_ParameterBytesNew("b", "bytes", 5);
  FACT(text, "of bytes", "%s", parameter == NULL ? "NULL" : "made");
  if (parameter != NULL) TRITONSERVER_ParameterDelete(parameter);
}

void tell_errors(Text* text)
{
  char name[60];
  for (int i = 0; i < 8; i++) {
    char message[] = "an error";
    TRITONSERVER_Error* error = TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)i, message);
    memset(message, 'x', 3); /* the text was copied */
    snprintf(name, sizeof name, "error %d", i);
    FACT(text, name, "%d %s %s", (int)TRITONSERVER_ErrorCode(error),
         TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
  }
}

void tell_buffers(Text* text)
{
  TRITONSERVER_BufferAttributes* made = NULL;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
  int64_t id = 5;
  size_t size = 5;
  char content[64] = "what stands for a handle";
  void* handle = &id;
  outcome(text, "new", TRITONSERVER_BufferAttributesNew(&made));
  forget(TRITONSERVER_BufferAttributesMemoryType(made, &type));
  forget(TRITONSERVER_BufferAttributesMemoryTypeId(made, &id));
  forget(TRITONSERVER_BufferAttributesCudaIpcHandle(made, &handle));
  FACT(text, "as made", "%d %lld %s", (int)type, (long long)id, shown((char*)handle));
  outcome(text, "set type", TRITONSERVER_BufferAttributesSetMemoryType(
                                made, TRITONSERVER_MEMORY_CPU_PINNED));
  outcome(text, "set id", TRITONSERVER_BufferAttributesSetMemoryTypeId(made, -3));
  outcome(text, "set size", TRITONSERVER_BufferAttributesSetByteSize(made, 1u << 30));
  outcome(text, "set handle", TRITONSERVER_BufferAttributesSetCudaIpcHandle(made, content));
  outcome(text, "type", TRITONSERVER_BufferAttributesMemoryType(made, &type));
  outcome(text, "id", TRITONSERVER_BufferAttributesMemoryTypeId(made, &id));
  outcome(text, "size", TRITONSERVER_BufferAttributesByteSize(made, &size));
  outcome(text, "handle", TRITONSERVER_BufferAttributesCudaIpcHandle(made, &handle));
  FACT(text, "as set", "%d %lld %zu %s", (int)type, (long long)id, size, shown((char*)handle));
  outcome(text, "delete", TRITONSERVER_BufferAttributesDelete(made));
}

void tell_log(Text* text)
{
  char name[60];
  for (int i = 0; i < 4; i++) {
    snprintf(name, sizeof name, "level %d", i);
    FACT(text, name, "%d", TRITONSERVER_LogIsEnabled((TRITONSERVER_LogLevel)i));
    outcome(text, "said", TRITONSERVER_LogMessage((TRITONSERVER_LogLevel)i, "/a/folder/source.c",
                                                  40 + i, "facts: a line\nand another"));
  }
}
