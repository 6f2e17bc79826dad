// SPDX-License-Identifier: Apache-2.0
// The first call of a program, from a thread that ends before the second.
#include <locale.h>

#include "harness.h"

static void *ask(void *unused) {
  uint32_t major = 0, minor = 0;
  TRITONSERVER_Error *error = TRITONSERVER_ApiVersion(&major, &minor);
  if (error == NULL) {
    printf("version %u.%u\n", major, minor);
  } else {
    printf("%s: %s\n", TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
  }
  return unused;
}

int main(void) {
  pthread_t thread;
  for (int i = 0; i < 3; i++) {
    pthread_create(&thread, NULL, ask, NULL);
    pthread_join(thread, NULL);
  }
  printf("%s, locale %s\n", TRITONSERVER_DataTypeString(TRITONSERVER_TYPE_FP32) == NULL ? "no names" : "names",
         setlocale(LC_CTYPE, NULL));
  return 0;
}
