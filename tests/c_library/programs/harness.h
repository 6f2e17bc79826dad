// SPDX-License-Identifier: Apache-2.0
// What the programs of these tests share: a server, requests whose events are printed, waiting.
#ifndef HARNESS_H
#define HARNESS_H

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonserver.h"

// Ends the program if a function fails that must not.
#define MUST(call) must(call, #call)
// Prints what a function returned.
#define SHOW(call) show(call, #call)

void must(TRITONSERVER_Error *error, const char *call);
void show(TRITONSERVER_Error *error, const char *call);
void show_message(TRITONSERVER_Message *message, const char *what);

// How a server is made: a repository, the folder of backends, and whether models are loaded by hand.
TRITONSERVER_Server *new_server(const char *repository, const char *backends, bool is_explicit);

// A request and what came of it. Events are printed when `wait_for` returns.
struct call {
  TRITONSERVER_InferenceRequest *request;
  TRITONSERVER_ResponseAllocator *allocator;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool is_final, is_released, fails_to_allocate, is_quiet;
  int responses, starts, allocations, releases;
  float sum;  // of all elements of FP32 outputs
  char text[8192];
};

struct call *new_call(TRITONSERVER_Server *server, const char *model);
void delete_call(struct call *call);
void add_input(struct call *call, const char *name, TRITONSERVER_DataType type, int64_t size, const void *data,
               size_t byte_size, bool is_batched);
TRITONSERVER_Error *send_call(struct call *call, TRITONSERVER_Server *server);
void wait_for(struct call *call);
// Sends, waits and prints; an error of sending is printed, too.
void run_call(struct call *call, TRITONSERVER_Server *server, const char *what);

#endif
