/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about metrics of one's own. Some stay on the page for Prometheus. */
#include "facts.h"

static TRITONSERVER_Metric* metric_of(
    Text* text, const char* name, TRITONSERVER_MetricFamily* family, const char* key,
    const char* value)
{
  TRITONSERVER_Metric* metric = NULL;
  TRITONSERVER_Parameter* label =
      TRITONSERVER_ParameterNew(key, TRITONSERVER_PARAMETER_STRING, value);
  const TRITONSERVER_Parameter* labels[1] = {label};
  outcome(text, name, TRITONSERVER_MetricNew(&metric, family, labels, 1));
  TRITONSERVER_ParameterDelete(label);
  return metric;
}

static void tell_value(Text* text, const char* name, TRITONSERVER_Metric* metric)
{
  double value = -1;
  TRITONSERVER_Error* error = TRITONSERVER_MetricValue(metric, &value);
  if (error == NULL)
    FACT(text, name, "%g", value);
  else
    outcome(text, name, error);
}

static void tell_gauge(Text* text)
{
  TRITONSERVER_MetricFamily* family = NULL;
  TRITONSERVER_MetricKind kind = TRITONSERVER_METRIC_KIND_HISTOGRAM;
  outcome(text, "gauge family",
          TRITONSERVER_MetricFamilyNew(
              &family, TRITONSERVER_METRIC_KIND_GAUGE, "facts_gauge", "A gauge"));
  TRITONSERVER_Metric* gauge = NULL;
  outcome(text, "gauge", TRITONSERVER_MetricNewWithArgs(&gauge, family, NULL, 0, NULL));
  outcome(text, "delete no arguments", TRITONSERVER_MetricArgsDelete(NULL));
  outcome(text, "gauge set", TRITONSERVER_MetricSet(gauge, 7.5));
  outcome(text, "gauge down", TRITONSERVER_MetricIncrement(gauge, -10));
  tell_value(text, "gauge value", gauge);
  outcome(text, "gauge observe", TRITONSERVER_MetricObserve(gauge, 1));
  outcome(text, "gauge kind", TRITONSERVER_GetMetricKind(gauge, &kind));
  FACT(text, "gauge kind is", "%d", (int)kind);
}

void tell_metrics(Text* text)
{
  TRITONSERVER_MetricFamily *family = NULL, *same = NULL, *other = NULL;
  TRITONSERVER_MetricKind kind = TRITONSERVER_METRIC_KIND_HISTOGRAM;
  outcome(text, "family", TRITONSERVER_MetricFamilyNew(
                              &family, TRITONSERVER_METRIC_KIND_COUNTER, "facts_counter", "Counts"));
  outcome(text, "kind", TRITONSERVER_GetMetricFamilyKind(family, &kind));
  FACT(text, "kind is", "%d", (int)kind);
  TRITONSERVER_Metric* counter = metric_of(text, "metric", family, "place", "here \"now\"");
  outcome(text, "increment", TRITONSERVER_MetricIncrement(counter, 2.5));
  tell_value(text, "value", counter);
  outcome(text, "decrement", TRITONSERVER_MetricIncrement(counter, -1));
  tell_value(text, "value then", counter);
  outcome(text, "set", TRITONSERVER_MetricSet(counter, 1));
  outcome(text, "observe", TRITONSERVER_MetricObserve(counter, 1));
  TRITONSERVER_Metric* shared = metric_of(text, "same metric", family, "place", "here \"now\"");
  tell_value(text, "same value", shared);
  outcome(text, "delete same", TRITONSERVER_MetricDelete(shared));
  outcome(text, "same family", TRITONSERVER_MetricFamilyNew(
      &same, TRITONSERVER_METRIC_KIND_COUNTER, "facts_counter", "Counts"));
  outcome(text, "family of another kind", TRITONSERVER_MetricFamilyNew(
      &other, TRITONSERVER_METRIC_KIND_GAUGE, "facts_counter", "Counts"));
  outcome(text, "family of no kind", TRITONSERVER_MetricFamilyNew(
      &other, (TRITONSERVER_MetricKind)7, "facts_none", "None"));
  int64_t number = 5;
  TRITONSERVER_Parameter* label =
      TRITONSERVER_ParameterNew("n", TRITONSERVER_PARAMETER_INT, &number);
  const TRITONSERVER_Parameter* labels[1] = {label};
  TRITONSERVER_Metric* numbered = NULL;
  outcome(text, "label of a number", TRITONSERVER_MetricNew(&numbered, family, labels, 1));
  TRITONSERVER_ParameterDelete(label);
  TRITONSERVER_Metric* gone = metric_of(text, "metric that goes", family, "place", "gone");
  outcome(text, "delete", TRITONSERVER_MetricDelete(gone));
  tell_gauge(text);
}

void tell_histograms(Text* text)
{
  const double buckets[] = {0.5, 1, 5};
  TRITONSERVER_MetricFamily* family = NULL;
  TRITONSERVER_MetricArgs* arguments = NULL;
  TRITONSERVER_Metric *plain = NULL, *histogram = NULL;
  outcome(text, "family",
          TRITONSERVER_MetricFamilyNew(
              &family, TRITONSERVER_METRIC_KIND_HISTOGRAM, "facts_histogram", "A histogram"));
  outcome(text, "without arguments", TRITONSERVER_MetricNew(&plain, family, NULL, 0));
  outcome(text, "arguments", TRITONSERVER_MetricArgsNew(&arguments));
  outcome(text, "unset arguments",
          TRITONSERVER_MetricNewWithArgs(&plain, family, NULL, 0, arguments));
  outcome(text, "set buckets", TRITONSERVER_MetricArgsSetHistogram(arguments, buckets, 3));
  outcome(text, "metric", TRITONSERVER_MetricNewWithArgs(&histogram, family, NULL, 0, arguments));
  outcome(text, "delete arguments", TRITONSERVER_MetricArgsDelete(arguments));
  outcome(text, "observe", TRITONSERVER_MetricObserve(histogram, 0.7));
  outcome(text, "observe more", TRITONSERVER_MetricObserve(histogram, 70));
  outcome(text, "increment", TRITONSERVER_MetricIncrement(histogram, 1));
  outcome(text, "set", TRITONSERVER_MetricSet(histogram, 1));
  double value = 0;
  outcome(text, "value", TRITONSERVER_MetricValue(histogram, &value));
}
