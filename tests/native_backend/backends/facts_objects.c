/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about backend, model, instance and server. */
#include "facts.h"

static void tell_message(Text* text, const char* name, TRITONSERVER_Message* message)
{
  const char* base;
  size_t size;
  TRITONSERVER_Error* error = TRITONSERVER_MessageSerializeToJson(message, &base, &size);
  if (error == NULL)
    FACT(text, name, "%.*s", (int)size, base);
  else
    outcome(text, name, error);
}

void tell_backend(Text* text, TRITONBACKEND_Model* model)
{
  TRITONBACKEND_Backend* backend = NULL;
  const char *name = NULL, *location = NULL;
  TRITONSERVER_Message* config = NULL;
  TRITONBACKEND_ArtifactType type = (TRITONBACKEND_ArtifactType)9;
  TRITONBACKEND_ExecutionPolicy policy = (TRITONBACKEND_ExecutionPolicy)9;
  void* state = NULL;
  outcome(text, "backend", TRITONBACKEND_ModelBackend(model, &backend));
  outcome(text, "name", TRITONBACKEND_BackendName(backend, &name));
  FACT(text, "is named", "%s", shown(name));
  outcome(text, "config", TRITONBACKEND_BackendConfig(backend, &config));
  tell_message(text, "config is", config);
  outcome(text, "artifacts", TRITONBACKEND_BackendArtifacts(backend, &type, &location));
  FACT(text, "artifacts are", "%d %s", (int)type, shown(location));
  outcome(text, "policy", TRITONBACKEND_BackendExecutionPolicy(backend, &policy));
  FACT(text, "policy is", "%d", (int)policy);
  outcome(text, "state", TRITONBACKEND_BackendState(backend, &state));
  FACT(text, "state is", "%d", (int)(uintptr_t)state);
}

void tell_memory(Text* text, TRITONBACKEND_Model* model)
{
  TRITONBACKEND_Backend* backend = NULL;
  TRITONBACKEND_MemoryManager* manager = NULL;
  void *small = NULL, *large = NULL, *none = NULL, *device = NULL;
  forget(TRITONBACKEND_ModelBackend(model, &backend));
  outcome(text, "manager", TRITONBACKEND_BackendMemoryManager(backend, &manager));
  outcome(text, "allocate", TRITONBACKEND_MemoryManagerAllocate(
                                manager, &small, TRITONSERVER_MEMORY_CPU, 0, 100));
  memset(small, 1, 100);
  outcome(text, "allocate much", TRITONBACKEND_MemoryManagerAllocate(
                                     manager, &large, TRITONSERVER_MEMORY_CPU, 0, 50000000));
  memset(large, 1, 50000000);
  outcome(text, "allocate nothing", TRITONBACKEND_MemoryManagerAllocate(
                                        manager, &none, TRITONSERVER_MEMORY_CPU, 0, 0));
  outcome(text, "allocate on a GPU", TRITONBACKEND_MemoryManagerAllocate(
                                         manager, &device, TRITONSERVER_MEMORY_GPU, 0, 100));
  outcome(text, "free", TRITONBACKEND_MemoryManagerFree(
                            manager, small, TRITONSERVER_MEMORY_CPU, 0));
  outcome(text, "free much", TRITONBACKEND_MemoryManagerFree(
                                 manager, large, TRITONSERVER_MEMORY_CPU, 0));
}

void tell_model(Text* text, TRITONBACKEND_Model* model)
{
  const char *name = NULL, *location = NULL;
  uint64_t version = 0;
  TRITONBACKEND_ArtifactType type = (TRITONBACKEND_ArtifactType)9;
  TRITONSERVER_Message* config = NULL;
  bool completes = true;
  void* state = NULL;
  outcome(text, "name", TRITONBACKEND_ModelName(model, &name));
  FACT(text, "is named", "%s", shown(name));
  outcome(text, "version", TRITONBACKEND_ModelVersion(model, &version));
  FACT(text, "version is", "%llu", (unsigned long long)version);
  outcome(text, "repository", TRITONBACKEND_ModelRepository(model, &type, &location));
  FACT(text, "repository is", "%d %s", (int)type, shown(location));
  outcome(text, "config", TRITONBACKEND_ModelConfig(model, 1, &config));
  tell_message(text, "config is", config);
  outcome(text, "config again", TRITONSERVER_MessageDelete(config));
  outcome(text, "config of version 2", TRITONBACKEND_ModelConfig(model, 2, &config));
  outcome(text, "completes", TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
  FACT(text, "does complete", "%d", completes);
  outcome(text, "state", TRITONBACKEND_ModelState(model, &state));
  FACT(text, "state is", "%d", (int)(uintptr_t)state);
  TRITONSERVER_BufferAttributes* usage = NULL;
  forget(TRITONSERVER_BufferAttributesNew(&usage));
  forget(TRITONSERVER_BufferAttributesSetByteSize(usage, 1000));
  outcome(text, "memory usage", TRITONBACKEND_ModelReportMemoryUsage(model, &usage, 1));
  outcome(text, "no memory usage", TRITONBACKEND_ModelReportMemoryUsage(model, NULL, 0));
  forget(TRITONSERVER_BufferAttributesDelete(usage));
}

void tell_instance(Text* text, TRITONBACKEND_ModelInstance* instance)
{
  const char* name = NULL;
  TRITONSERVER_InstanceGroupKind kind = (TRITONSERVER_InstanceGroupKind)9;
  int32_t device = 9;
  TRITONSERVER_Message* policy = NULL;
  bool is_passive = true;
  uint32_t count = 9;
  void* state = NULL;
  outcome(text, "name", TRITONBACKEND_ModelInstanceName(instance, &name));
  FACT(text, "is named", "%s", shown(name));
  outcome(text, "kind", TRITONBACKEND_ModelInstanceKind(instance, &kind));
  FACT(text, "kind is", "%d", (int)kind);
  outcome(text, "device", TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
  FACT(text, "device is", "%d", (int)device);
  outcome(text, "policy", TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy));
  tell_message(text, "policy is", policy);
  outcome(text, "passive", TRITONBACKEND_ModelInstanceIsPassive(instance, &is_passive));
  FACT(text, "is passive", "%d", is_passive);
  outcome(text, "profiles", TRITONBACKEND_ModelInstanceProfileCount(instance, &count));
  FACT(text, "profiles are", "%u", count);
  outcome(text, "profile 5", TRITONBACKEND_ModelInstanceProfileName(instance, 5, &name));
  outcome(text, "devices", TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance, &count));
  FACT(text, "devices are", "%u", count);
  const char* kind_name;
  int64_t id;
  outcome(text, "device 5", TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
                                instance, 5, &kind_name, &id));
  outcome(text, "state", TRITONBACKEND_ModelInstanceState(instance, &state));
  FACT(text, "state is", "%d", (int)(uintptr_t)state);
  outcome(text, "no memory usage", TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, NULL, 0));
}

void tell_server(Text* text, TRITONBACKEND_Model* model)
{
  TRITONSERVER_Server* server = NULL;
  bool answer = false;
  uint32_t flags = 0;
  void* more = text;
  TRITONSERVER_Message* message = NULL;
  outcome(text, "server", TRITONBACKEND_ModelServer(model, &server));
  FACT(text, "server is", "%s", server == NULL ? "NULL" : "there");
  outcome(text, "ready", TRITONSERVER_ServerModelIsReady(server, "identity", -1, &answer));
  FACT(text, "is ready", "%d", answer);
  outcome(text, "ready 1", TRITONSERVER_ServerModelIsReady(server, "identity", 1, &answer));
  FACT(text, "is ready 1", "%d", answer);
  outcome(text, "ready 7", TRITONSERVER_ServerModelIsReady(server, "identity", 7, &answer));
  FACT(text, "is ready 7", "%d", answer);
  outcome(text, "ready unknown", TRITONSERVER_ServerModelIsReady(server, "nobody", -1, &answer));
  FACT(text, "is ready unknown", "%d", answer);
  outcome(text, "transaction",
          TRITONSERVER_ServerModelTransactionProperties(server, "identity", -1, &flags, &more));
  FACT(text, "transaction is", "%u", flags);
  outcome(text, "decoupled transaction",
          TRITONSERVER_ServerModelTransactionProperties(server, "repeat", -1, &flags, &more));
  FACT(text, "decoupled transaction is", "%u", flags);
  outcome(text, "unknown transaction",
          TRITONSERVER_ServerModelTransactionProperties(server, "nobody", -1, &flags, &more));
  outcome(text, "batching",
          TRITONSERVER_ServerModelBatchProperties(server, "identity", -1, &flags, &more));
  FACT(text, "batching is", "%u", flags);
  outcome(text, "configuration", TRITONSERVER_ServerModelConfig(server, "nobody", -1, 1, &message));
}
