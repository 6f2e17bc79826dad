/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of facts that the backend `facts` tells, each in a file of its own. */
#ifndef FACTS_H
#define FACTS_H

#include "common.h"

void tell_names(Text* text);
void tell_messages(Text* text);
void tell_parameters(Text* text);
void tell_errors(Text* text);
void tell_buffers(Text* text);
void tell_log(Text* text);

void tell_backend(Text* text, TRITONBACKEND_Model* model);
void tell_memory(Text* text, TRITONBACKEND_Model* model);
void tell_model(Text* text, TRITONBACKEND_Model* model);
void tell_instance(Text* text, TRITONBACKEND_ModelInstance* instance);
void tell_server(Text* text, TRITONBACKEND_Model* model);

void tell_request(Text* text, TRITONBACKEND_Request* request);
void tell_inputs(Text* text, TRITONBACKEND_Request* request);
void tell_responses(Text* text, TRITONBACKEND_Request* request);
void tell_statistics(
    Text* text, TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request);

void tell_metrics(Text* text);
void tell_histograms(Text* text);

#endif
