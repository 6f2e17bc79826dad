// SPDX-License-Identifier: Apache-2.0
// Asks servers and changes them, and prints the answers. The arguments are a repository, the folder of
// backends, and a second repository.
#include <unistd.h>

#include "harness.h"

static void questions(TRITONSERVER_Server *server) {
  bool is;
  uint32_t flags;
  void *further = server;
  TRITONSERVER_Message *message;
  MUST(TRITONSERVER_ServerIsLive(server, &is));
  printf("live %d\n", is);
  MUST(TRITONSERVER_ServerIsReady(server, &is));
  printf("ready %d\n", is);
  const char *names[] = {"add_sub", "repeat", "nobody"};
  for (int i = 0; i < 3; i++) {
    MUST(TRITONSERVER_ServerModelIsReady(server, names[i], -1, &is));
    printf("%s ready %d\n", names[i], is);
    flags = 0;
    SHOW(TRITONSERVER_ServerModelBatchProperties(server, names[i], -1, &flags, &further));
    printf("flags %u, %s\n", flags, further == NULL ? "nothing more" : "something more");
    flags = 0;
    SHOW(TRITONSERVER_ServerModelTransactionProperties(server, names[i], -1, &flags, NULL));
    printf("flags %u\n", flags);
    TRITONSERVER_Error *error = TRITONSERVER_ServerModelMetadata(server, names[i], -1, &message);
    if (error == NULL) show_message(message, "metadata");
    else show(error, "metadata");
  }
  SHOW(TRITONSERVER_ServerModelMetadata(server, "add_sub", 9, &message));
  MUST(TRITONSERVER_ServerModelConfig(server, "add_sub", 1, 1, &message));
  show_message(message, "config");
  SHOW(TRITONSERVER_ServerModelConfig(server, "add_sub", 1, 2, &message));
  SHOW(TRITONSERVER_ServerModelStatistics(server, "nobody", -1, &message));
}

static void index_of(TRITONSERVER_Server *server, uint32_t flags) {
  TRITONSERVER_Message *message;
  MUST(TRITONSERVER_ServerModelIndex(server, flags, &message));
  show_message(message, flags ? "ready" : "index");
}

static void changes(TRITONSERVER_Server *server, const char *second) {
  SHOW(TRITONSERVER_ServerPollModelRepository(server));
  index_of(server, 0);
  SHOW(TRITONSERVER_ServerLoadModel(server, "nobody"));
  SHOW(TRITONSERVER_ServerLoadModel(server, "add_sub"));
  index_of(server, TRITONSERVER_INDEX_FLAG_READY);
  const char *config = "{\"backend\": \"python\", \"max_batch_size\": 2,"
                       "\"input\": [{\"name\": \"INPUT0\", \"data_type\": \"TYPE_FP32\", \"dims\": [3]},"
                       "{\"name\": \"INPUT1\", \"data_type\": \"TYPE_FP32\", \"dims\": [3]}],"
                       "\"output\": [{\"name\": \"OUTPUT0\", \"data_type\": \"TYPE_FP32\", \"dims\": [3]}],"
                       "\"instance_group\": [{\"kind\": \"KIND_CPU\"}]}";
  const TRITONSERVER_Parameter *parameters[] = {
      TRITONSERVER_ParameterNew("config", TRITONSERVER_PARAMETER_STRING, config)};
  SHOW(TRITONSERVER_ServerLoadModelWithParameters(server, "add_sub", parameters, 1));
  TRITONSERVER_ParameterDelete((TRITONSERVER_Parameter *)parameters[0]);
  TRITONSERVER_Message *message;
  MUST(TRITONSERVER_ServerModelMetadata(server, "add_sub", -1, &message));
  show_message(message, "metadata");
  SHOW(TRITONSERVER_ServerUnloadModel(server, "add_sub"));
  SHOW(TRITONSERVER_ServerUnloadModel(server, "nobody"));
  SHOW(TRITONSERVER_ServerModelMetadata(server, "add_sub", -1, &message));
  SHOW(TRITONSERVER_ServerRegisterModelRepository(server, "/no/such/folder", NULL, 0));
  const TRITONSERVER_Parameter *names[] = {
      TRITONSERVER_ParameterNew("twice", TRITONSERVER_PARAMETER_STRING, "doubled")};
  MUST(TRITONSERVER_ServerRegisterModelRepository(server, second, names, 1));
  SHOW(TRITONSERVER_ServerLoadModel(server, "doubled"));
  index_of(server, TRITONSERVER_INDEX_FLAG_READY);
  MUST(TRITONSERVER_ServerUnregisterModelRepository(server, second));
  SHOW(TRITONSERVER_ServerUnregisterModelRepository(server, "/no/such/folder"));
}

static void print_lines(TRITONSERVER_Server *server, const char *word) {
  TRITONSERVER_Metrics *metrics;
  const char *text;
  size_t size;
  MUST(TRITONSERVER_ServerMetrics(server, &metrics));
  SHOW(TRITONSERVER_MetricsFormatted(metrics, 9, &text, &size));
  MUST(TRITONSERVER_MetricsFormatted(metrics, TRITONSERVER_METRIC_PROMETHEUS, &text, &size));
  char *copy = strndup(text, size);
  for (char *line = strtok(copy, "\n"); line != NULL; line = strtok(NULL, "\n")) {
    if (strstr(line, word) != NULL) printf("metrics: %s\n", line);
  }
  free(copy);
  MUST(TRITONSERVER_MetricsDelete(metrics));
}

static void metrics(TRITONSERVER_Server *server) {
  TRITONSERVER_MetricFamily *family, *histograms;
  TRITONSERVER_Metric *metric, *histogram;
  TRITONSERVER_MetricArgs *arguments;
  TRITONSERVER_MetricKind kind;
  double value, buckets[] = {1, 2.5};
  SHOW(TRITONSERVER_MetricFamilyNew(&family, TRITONSERVER_METRIC_KIND_COUNTER, "not a name", "text"));
  MUST(TRITONSERVER_MetricFamilyNew(&family, TRITONSERVER_METRIC_KIND_COUNTER, "my_counter", "what it counts"));
  TRITONSERVER_Parameter *label = TRITONSERVER_ParameterNew("where", TRITONSERVER_PARAMETER_STRING, "here");
  const TRITONSERVER_Parameter *labels[] = {label};
  MUST(TRITONSERVER_MetricNew(&metric, family, labels, 1));
  SHOW(TRITONSERVER_MetricIncrement(metric, 2.5));
  SHOW(TRITONSERVER_MetricIncrement(metric, -1));
  SHOW(TRITONSERVER_MetricSet(metric, 1));
  SHOW(TRITONSERVER_MetricValue(metric, &value));
  MUST(TRITONSERVER_GetMetricKind(metric, &kind));
  printf("value %g, kind %d\n", value, kind);
  MUST(TRITONSERVER_MetricFamilyNew(&histograms, TRITONSERVER_METRIC_KIND_HISTOGRAM, "my_histogram", "sizes"));
  SHOW(TRITONSERVER_MetricNew(&histogram, histograms, NULL, 0));
  MUST(TRITONSERVER_MetricArgsNew(&arguments));
  MUST(TRITONSERVER_MetricArgsSetHistogram(arguments, buckets, 2));
  MUST(TRITONSERVER_MetricNewWithArgs(&histogram, histograms, NULL, 0, arguments));
  MUST(TRITONSERVER_MetricArgsDelete(arguments));
  SHOW(TRITONSERVER_MetricObserve(histogram, 2));
  SHOW(TRITONSERVER_MetricValue(histogram, &value));
  print_lines(server, "my_");
  SHOW(TRITONSERVER_MetricFamilyDelete(family));
  MUST(TRITONSERVER_MetricDelete(metric));
  MUST(TRITONSERVER_MetricDelete(histogram));
  SHOW(TRITONSERVER_MetricFamilyDelete(family));
  MUST(TRITONSERVER_MetricFamilyDelete(histograms));
  TRITONSERVER_ParameterDelete(label);
}

static void options(const char *repository) {
  TRITONSERVER_ServerOptions *settings;
  TRITONSERVER_Server *server;
  MUST(TRITONSERVER_ServerOptionsNew(&settings));
  SHOW(TRITONSERVER_ServerOptionsSetModelControlMode(settings, 9));
  SHOW(TRITONSERVER_ServerOptionsSetRateLimiterMode(settings, 9));
  SHOW(TRITONSERVER_ServerOptionsSetModelRepositoryPath(settings, "/no/such/repository"));
  SHOW(TRITONSERVER_ServerNew(&server, settings));
  MUST(TRITONSERVER_ServerOptionsDelete(settings));
  MUST(TRITONSERVER_ServerOptionsNew(&settings));
  MUST(TRITONSERVER_ServerOptionsSetModelRepositoryPath(settings, repository));
  MUST(TRITONSERVER_ServerOptionsSetModelControlMode(settings, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
  MUST(TRITONSERVER_ServerOptionsSetStartupModel(settings, "nobody"));
  SHOW(TRITONSERVER_ServerNew(&server, settings));
  MUST(TRITONSERVER_ServerOptionsDelete(settings));
}

static void names(void) {
  uint32_t major, minor;
  MUST(TRITONSERVER_ApiVersion(&major, &minor));
  printf("version %u, at least 1.34 or as old as the library: %d\n", major, minor >= 33);
  printf("%s %s %s %d %u\n", TRITONSERVER_DataTypeString(TRITONSERVER_TYPE_BF16), TRITONSERVER_MemoryTypeString(1),
         TRITONSERVER_InstanceGroupKindString(3), TRITONSERVER_StringToDataType("FP16"),
         TRITONSERVER_DataTypeByteSize(TRITONSERVER_TYPE_INT64));
  printf("%d %d\n", TRITONSERVER_LogIsEnabled(TRITONSERVER_LOG_ERROR), TRITONSERVER_LogIsEnabled(TRITONSERVER_LOG_VERBOSE));
  SHOW(TRITONSERVER_LogMessage(9, "file.c", 1, "text"));
}

int main(int count, char **arguments) {
  if (count != 4) return 2;
  TRITONSERVER_Server *first = new_server(arguments[1], arguments[2], false);
  TRITONSERVER_Server *second = new_server(arguments[1], arguments[2], true);
  names();
  questions(first);
  changes(second, arguments[3]);
  metrics(first);
  options(arguments[1]);
  bool is;
  MUST(TRITONSERVER_ServerSetExitTimeout(second, 1));
  TRITONSERVER_Error *error = TRITONSERVER_ServerStop(second);
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
  SHOW(TRITONSERVER_ServerIsLive(second, &is));
  SHOW(TRITONSERVER_ServerIsReady(first, &is));
  fflush(stdout);
  _exit(0);  // Triton's own library crashes where two servers with its Python backend end
}
