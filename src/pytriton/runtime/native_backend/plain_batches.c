// SPDX-License-Identifier: Apache-2.0
// The functions that a backend calls for each request of a batch, without Python.
//
// A batch is plain as long as each of its requests gets one response, which the thread that executes
// the batch makes and sends, and as long as an output has the same number of bytes for each row, or has
// strings that are written in the order of the requests. Then
// Python calls `pytriton_execute` once, and reads one report. Whatever else a backend does (another
// thread, a second response, an error, a parameter, a wrong handle) goes to the function of Python. That
// one takes the batch away from here (`pytriton_detach`), makes its own objects of what was done so far,
// and does the rest; `plain_batches.py` is its side. So every fault of a backend is answered by Python.
//
// No handle is followed: a request must be the address of a record of the running batch, and a response
// or an output is a number with the number of the batch, so that one of an earlier batch is not taken for
// one of this. All that Python reads and writes here consists of words, signed numbers of 64 bits.

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef int64_t word;
typedef uint64_t handle;  // an object of the API; of an error: 0 is success

// Of records.py, where machine code reads them.
enum { ID, FLAGS, INPUT_COUNT, OUTPUT_COUNT, INPUTS, OUTPUT_NAMES, TIMEOUT_US, PARAMETER_COUNT, REQUEST_WORDS };
enum { NAME, SHAPE, SIZE, BUFFER, DATATYPE, DIMS_COUNT, MEMORY_TYPE, MEMORY_ID, INPUT_WORDS };

enum { MAX_DIMS = 8, MAX_OUTPUTS = 32, MAX_REQUESTS = 1 << 16 };
enum { FINAL = 1, RELEASE_ALL = 1, MEMORY_CPU = 0, TYPE_BYTES = 13 };  // of the API

struct output {  // one of a response
  word name;     // index of the model's outputs
  word datatype;
  word dims;
  word size;
  word address;  // 0: the backend has not asked for its memory
  word shape[MAX_DIMS];
};

struct answer {  // what the backend has done with a request
  word is_released;
  word has_response;
  word is_sent;
  word output_count;
};

struct lane {  // an output of all requests, in their order
  word address;
  word row_bytes;  // 0: strings, whose rows differ in size
  word size;       // of the whole lane; of strings, so far
  word next;       // the request whose strings follow
};

struct batch {
  // What Python reads.
  word count;
  word records;       // the address of the records of requests
  word record_bytes;  // the size of one of them, with its inputs
  word answers;       // the address of the answers
  word outputs;       // the address of outputs: for each request as many as the model has
  word lanes;         // the address of a lane for each output of the model
  handle first_response;  // the handle of a response to the first request
  // Ours.
  word row_count;
  word *rows, *row_starts;
  handle *requests;
  char *scratch[MAX_OUTPUTS];  // memory for small lanes
  struct lane lane[MAX_OUTPUTS];
  word request_capacity, record_capacity;
  struct batch *next;
};

static struct {  // all from Python, see `pytriton_connect`
  handle instance;
  handle (*execute)(handle instance, handle *requests, uint32_t count);
  word output_count;
  const char *const *output_names;
  word empty;          // the address of an empty C string
  word scratch_bytes;  // lanes up to this size are in our memory, others in that of `make_lane`
  word max_lane_bytes;
  word datatype_count;
  const word *datatype_bytes;  // by number; negative: there is no such datatype
  // The functions of Python.
  handle (*response_new)(handle *response, handle request);
  handle (*response_output)(handle, handle *, const char *, int32_t, const int64_t *, uint32_t);
  handle (*output_buffer)(handle, void **, uint64_t, int32_t *, int64_t *);
  handle (*response_send)(handle response, uint32_t flags, handle error);
  handle (*request_release)(handle request, uint32_t flags);
  word (*make_lane)(word name, word row_bytes);  // returns the address, or 0
} host;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // never held while Python is called
static pthread_t thread;                                  // executes all batches
static struct batch *running;                             // NULL: there is none, or Python has it
static struct batch *unused;  // a list; batches are never freed, because a backend may keep addresses
static handle batch_number;

EXPORT void pytriton_connect(const word *values) {
  memcpy(&host, values, sizeof host);
  thread = pthread_self();
}

// Returns the running batch, with the lock held until `leave`; NULL if the call is for Python.
static struct batch *enter(void) {
  if (!pthread_equal(pthread_self(), thread)) return NULL;
  pthread_mutex_lock(&lock);
  struct batch *batch = running;
  if (batch == NULL) pthread_mutex_unlock(&lock);
  return batch;
}

static void leave(void) { pthread_mutex_unlock(&lock); }

// --- Handles ----------------------------------------------------------------------------------------

static const handle MARK = (handle)1 << 62;  // neither Python's handles nor addresses have this bit
enum { OUTPUT_BITS = 8, POSITION_BITS = 16, NUMBER_BITS = 36 };

static handle next_first_response(void) {
  handle number = ++batch_number & (((handle)1 << NUMBER_BITS) - 1);
  return MARK | number << (OUTPUT_BITS + POSITION_BITS);
}

// Outputs count from 1; 0 is the response itself.
static handle make_handle(const struct batch *batch, word position, word output) {
  return batch->first_response | (handle)position << OUTPUT_BITS | (handle)output;
}

static struct answer *answer_at(const struct batch *batch, word position) {
  return (struct answer *)batch->answers + position;
}

static struct output *outputs_at(const struct batch *batch, word position) {
  return (struct output *)batch->outputs + position * host.output_count;
}

static word find_request(const struct batch *batch, handle request) {
  word distance = (word)(request - (handle)batch->records);
  if (distance < 0 || distance % batch->record_bytes) return -1;
  word position = distance / batch->record_bytes;
  return position < batch->count ? position : -1;
}

// The position of the request of a response that is not sent, or of an output of it.
static word find_response(const struct batch *batch, handle value, word *output) {
  *output = (word)(value & (((handle)1 << OUTPUT_BITS) - 1));
  word position = (word)(value >> OUTPUT_BITS & (((handle)1 << POSITION_BITS) - 1));
  if (value != make_handle(batch, position, *output) || position >= batch->count) return -1;
  const struct answer *answer = answer_at(batch, position);
  return answer->has_response && !answer->is_sent && *output <= answer->output_count ? position : -1;
}

// --- Functions of the API ---------------------------------------------------------------------------

EXPORT handle pytriton_response_new(handle *response, handle request) {
  struct batch *batch = enter();
  if (batch != NULL) {
    word position = find_request(batch, request);
    struct answer *answer = position < 0 ? NULL : answer_at(batch, position);
    bool is_plain = answer != NULL && !answer->is_released && !answer->has_response;
    if (is_plain) {
      answer->has_response = 1;
      *response = make_handle(batch, position, 0);
    }
    leave();
    if (is_plain) return 0;
  }
  return host.response_new(response, request);
}

static word find_name(const char *name) {
  if (name == NULL) return -1;
  for (word i = 0; i < host.output_count; i++)
    if (strcmp(name, host.output_names[i]) == 0) return i;
  return -1;
}

// Returns the handle of a new output, or 0 if that is for Python.
static handle add_output(
    struct batch *batch, handle response, const char *name, int32_t datatype, const int64_t *shape, uint32_t dims) {
  word none, position = find_response(batch, response, &none);
  word index = find_name(name);
  if (position < 0 || none != 0 || index < 0 || dims > MAX_DIMS || (dims != 0 && shape == NULL)) return 0;
  if (datatype < 0 || datatype >= host.datatype_count || host.datatype_bytes[datatype] < 0) return 0;
  struct answer *answer = answer_at(batch, position);
  struct output *outputs = outputs_at(batch, position);
  if (answer->output_count >= host.output_count) return 0;
  for (word i = 0; i < answer->output_count; i++)
    if (outputs[i].name == index) return 0;
  struct output *output = &outputs[answer->output_count++];
  *output = (struct output){.name = index, .datatype = datatype, .dims = dims};
  for (uint32_t i = 0; i < dims; i++) output->shape[i] = shape[i];
  return make_handle(batch, position, answer->output_count);
}

EXPORT handle pytriton_response_output(
    handle response, handle *output, const char *name, int32_t datatype, const int64_t *shape, uint32_t dims) {
  struct batch *batch = enter();
  if (batch != NULL) {
    handle made = add_output(batch, response, name, datatype, shape, dims);
    leave();
    if (made != 0) {
      *output = made;
      return 0;
    }
  }
  return host.response_output(response, output, name, datatype, shape, dims);
}

static char *scratch_of(struct batch *batch, word name) {
  void *memory = batch->scratch[name];
  if (memory == NULL && posix_memalign(&memory, 64, (size_t)host.scratch_bytes) != 0) memory = NULL;
  return batch->scratch[name] = memory;
}

// Returns the address of strings behind those of the request before, or 0 if that is for Python.
static word append_strings(struct batch *batch, word name, word position, word size) {
  struct lane *lane = &batch->lane[name];
  if (lane->address == 0) lane->address = (word)scratch_of(batch, name);
  if (lane->address == 0 || lane->row_bytes != 0 || lane->next != position) return 0;
  if (size > host.scratch_bytes - lane->size) return 0;
  word address = lane->address + lane->size;
  memset((void *)address, 0, (size_t)size);  // another client must not see what was there before
  lane->size += size;
  lane->next++;
  return address;
}

// Makes the lane of an output whose rows have this size. The lock is held, but not while Python is called.
static bool make_lane(struct batch *batch, word name, word row_bytes) {
  struct lane *lane = &batch->lane[name];
  word size = row_bytes * batch->row_count;
  if (size > host.scratch_bytes) {
    leave();
    word address = host.make_lane(name, row_bytes);
    pthread_mutex_lock(&lock);
    if (address == 0 || running != batch) return false;  // no memory, or Python has it all now
    *lane = (struct lane){.address = address, .row_bytes = row_bytes, .size = size};
    return true;
  }
  char *scratch = scratch_of(batch, name);
  if (scratch == NULL) return false;
  memset(scratch, 0, (size_t)size);  // as above
  *lane = (struct lane){.address = (word)scratch, .row_bytes = row_bytes, .size = size};
  return true;
}

// Returns the address of the memory of an output, or 0 if that is for Python.
static word place_output(struct batch *batch, handle value, uint64_t unsigned_size) {
  word index, position = find_response(batch, value, &index);
  if (position < 0 || index == 0) return 0;
  struct output *output = &outputs_at(batch, position)[index - 1];
  word rows = batch->rows[position];
  word size = (word)unsigned_size;
  bool is_string = output->datatype == TYPE_BYTES;
  if (output->address != 0 || rows <= 0 || size <= 0 || (size % rows && !is_string)) return 0;
  if (rows > 1 && (output->dims == 0 || output->shape[0] != rows)) return 0;
  if (size / rows > host.max_lane_bytes / batch->row_count) return 0;
  if (is_string && batch->count > 1) {
    output->address = append_strings(batch, output->name, position, size);
    if (output->address == 0) return 0;
  } else {
    struct lane *lane = &batch->lane[output->name];
    if (lane->address == 0 && !make_lane(batch, output->name, size / rows)) return 0;
    if (size != rows * lane->row_bytes) return 0;
    output->address = lane->address + batch->row_starts[position] * lane->row_bytes;
  }
  output->size = size;
  return output->address;
}

EXPORT handle pytriton_output_buffer(
    handle output, void **buffer, uint64_t size, int32_t *memory_type, int64_t *memory_id) {
  struct batch *batch = enter();
  if (batch != NULL) {
    word address = place_output(batch, output, size);
    leave();
    if (address != 0) {
      *buffer = (void *)address;
      *memory_type = MEMORY_CPU;
      *memory_id = 0;
      return 0;
    }
  }
  return host.output_buffer(output, buffer, size, memory_type, memory_id);
}

// Whether an output has the bytes of its shape. One without memory is for Python.
static bool is_complete(const struct output *output) {
  word expected = host.datatype_bytes[output->datatype];
  if (output->address == 0) return false;
  for (word i = 0; i < output->dims; i++) {
    if (output->shape[i] < 0 || __builtin_mul_overflow(expected, output->shape[i], &expected)) return false;
  }
  return output->datatype == TYPE_BYTES || expected == output->size;
}

static bool send_plain(struct batch *batch, handle response, uint32_t flags, handle error) {
  word none, position = find_response(batch, response, &none);
  if (position < 0 || none != 0 || !(flags & FINAL) || error != 0) return false;
  struct answer *answer = answer_at(batch, position);
  const struct output *outputs = outputs_at(batch, position);
  for (word i = 0; i < answer->output_count; i++)
    if (!is_complete(&outputs[i])) return false;
  answer->is_sent = 1;
  return true;
}

EXPORT handle pytriton_response_send(handle response, uint32_t flags, handle error) {
  struct batch *batch = enter();
  if (batch != NULL) {
    bool is_sent = send_plain(batch, response, flags, error);
    leave();
    if (is_sent) return 0;
  }
  return host.response_send(response, flags, error);
}

EXPORT handle pytriton_request_release(handle request, uint32_t flags) {
  struct batch *batch = enter();
  if (batch != NULL) {
    word position = find_request(batch, request);
    bool is_plain = position >= 0 && flags == RELEASE_ALL && !answer_at(batch, position)->is_released;
    if (is_plain) answer_at(batch, position)->is_released = 1;
    leave();
    if (is_plain) return 0;
  }
  return host.request_release(request, flags);
}

// --- Batches ----------------------------------------------------------------------------------------

// What Python orders: these words, the words of each input, the rows of each request, and changes of
// words of the records, each by its request, the index of the word and its value.
enum { O_COUNT, O_ROWS, O_INPUTS, O_OUTPUT_COUNT, O_OUTPUT_NAMES, O_CHANGES, O_FIRST_INPUT };
// Of an input; its shape follows. It has all rows of the batch.
enum { I_NAME, I_DATATYPE, I_ADDRESS, I_SIZE, I_DIMS, I_SHAPE };

static void *zeroed(word count, size_t size) { return calloc((size_t)(count > 0 ? count : 1), size); }

static bool reserve(struct batch *batch, word count, word record_words) {
  if (count > batch->request_capacity) {
    word capacity = 2 * count;
    free(batch->rows), free(batch->row_starts), free(batch->requests);
    free((void *)batch->answers), free((void *)batch->outputs);
    batch->request_capacity = 0;
    batch->rows = zeroed(capacity, sizeof(word));
    batch->row_starts = zeroed(capacity, sizeof(word));
    batch->requests = zeroed(capacity, sizeof(handle));
    batch->answers = (word)zeroed(capacity, sizeof(struct answer));
    batch->outputs = (word)zeroed(capacity * host.output_count, sizeof(struct output));
    if (!batch->rows || !batch->row_starts || !batch->requests || !batch->answers || !batch->outputs) return false;
    batch->request_capacity = capacity;
  }
  if (count * record_words > batch->record_capacity) {
    // The old memory stays: a backend may read a record after its end. All of it is less than the new.
    word capacity = 2 * count * record_words;
    word *records = zeroed(capacity, sizeof(word));
    if (records == NULL) return false;
    batch->records = (word)records;
    batch->record_capacity = capacity;
  }
  batch->count = count;
  batch->record_bytes = record_words * (word)sizeof(word);
  return true;
}

// The number of bytes of so many elements, which each begin with their length; negative: they do not fit.
static word elements_bytes(const char *data, word size, word count) {
  word at = 0;
  if (count > size / (word)sizeof(uint32_t)) return -1;
  for (word i = 0; i < count; i++) {
    uint32_t length;
    if (size - at < (word)sizeof length) return -1;
    memcpy(&length, data + at, sizeof length);
    at += (word)sizeof length;
    if (size - at < (word)length) return -1;
    at += length;
  }
  return at;
}

static word *record_at(const struct batch *batch, word position) {
  return (word *)(batch->records + position * batch->record_bytes);
}

// Writes an input of all requests to their records; `shape_at` is where its shape is in each of them.
static bool write_input(struct batch *batch, const word *input, word index, word shape_at) {
  word dims = input[I_DIMS], address = input[I_ADDRESS], left = input[I_SIZE];
  bool is_split = batch->count > 1;
  word row_elements = 1;
  for (word i = 1; i < dims; i++)
    if (__builtin_mul_overflow(row_elements, input[I_SHAPE + i], &row_elements)) return false;
  for (word position = 0; position < batch->count; position++) {
    word *record = record_at(batch, position);
    word *to = record + REQUEST_WORDS + INPUT_WORDS * index, *shape = record + shape_at;
    word rows = batch->rows[position], size = left, count;
    memcpy(shape, input + I_SHAPE, (size_t)dims * sizeof(word));
    if (is_split) {
      shape[0] = rows;
      if (__builtin_mul_overflow(rows, row_elements, &count)) return false;
      size = input[I_DATATYPE] == TYPE_BYTES ? elements_bytes((const char *)address, left, count)
                                             : input[I_SIZE] / batch->row_count * rows;
      if (size < 0 || size > left) return false;
    }
    to[NAME] = input[I_NAME];
    to[SHAPE] = (word)shape;
    to[SIZE] = size;
    to[BUFFER] = address;
    to[DATATYPE] = input[I_DATATYPE];
    to[DIMS_COUNT] = dims;
    to[MEMORY_TYPE] = MEMORY_CPU;
    to[MEMORY_ID] = 0;
    address += size;
    left -= size;
  }
  return true;
}

static bool write_records(struct batch *batch, const word *order) {
  word count = order[O_COUNT], input_count = order[O_INPUTS], record_words = REQUEST_WORDS;
  const word *rows = order + O_FIRST_INPUT;
  for (word i = 0; i < input_count; i++) {
    record_words += INPUT_WORDS + rows[I_DIMS];
    rows += I_SHAPE + rows[I_DIMS];
  }
  if (!reserve(batch, count, record_words)) return false;
  word start = 0;
  for (word position = 0; position < count; position++) {
    word *record = record_at(batch, position);
    batch->rows[position] = rows[position];
    batch->row_starts[position] = start;
    start += rows[position];
    batch->requests[position] = (handle)record;
    record[ID] = host.empty;
    record[FLAGS] = 0;
    record[INPUT_COUNT] = input_count;
    record[OUTPUT_COUNT] = order[O_OUTPUT_COUNT];
    record[INPUTS] = (word)(record + REQUEST_WORDS);
    record[OUTPUT_NAMES] = order[O_OUTPUT_NAMES];
    record[TIMEOUT_US] = 0;
    record[PARAMETER_COUNT] = 0;
  }
  batch->row_count = order[O_ROWS];
  const word *input = order + O_FIRST_INPUT;
  word shape_at = REQUEST_WORDS + INPUT_WORDS * input_count;
  for (word i = 0; i < input_count; i++) {
    if (!write_input(batch, input, i, shape_at)) return false;
    shape_at += input[I_DIMS];
    input += I_SHAPE + input[I_DIMS];
  }
  const word *change = rows + count;
  for (word i = 0; i < order[O_CHANGES]; i++, change += 3) record_at(batch, change[0])[change[1]] = change[2];
  return true;
}

static struct batch *take_unused(void) {
  pthread_mutex_lock(&lock);
  struct batch *batch = unused;
  if (batch != NULL) unused = batch->next;
  pthread_mutex_unlock(&lock);
  return batch != NULL ? batch : zeroed(1, sizeof *batch);
}

// Use the memory of a batch again, of which the backend has no handle any more.
EXPORT void pytriton_recycle(struct batch *batch) {
  pthread_mutex_lock(&lock);
  batch->next = unused;
  unused = batch;
  pthread_mutex_unlock(&lock);
}

static struct batch *prepare(const word *order) {
  struct batch *batch = take_unused();
  if (batch == NULL) return NULL;
  batch->lanes = (word)batch->lane;
  if (order[O_COUNT] < 1 || order[O_COUNT] > MAX_REQUESTS || !write_records(batch, order)) {
    pytriton_recycle(batch);
    return NULL;
  }
  memset((void *)batch->answers, 0, (size_t)batch->count * sizeof(struct answer));
  memset(batch->lane, 0, sizeof batch->lane);
  batch->first_response = next_first_response();
  return batch;
}

// --- The report for Python --------------------------------------------------------------------------

enum { REFUSED, PLAIN, OPEN };  // nothing was called; all are answered; Python has to see
enum { R_STATUS, R_ERROR, R_OUTPUTS_OF_ALL, R_OUTPUTS, R_FIRST_OUTPUT };
enum { OUTPUT_REPORT_WORDS = sizeof(struct output) / sizeof(word) };
static word report[R_FIRST_OUTPUT + MAX_OUTPUTS * OUTPUT_REPORT_WORDS];

// Whether an output differs from that of the first request in its number of rows only.
static bool is_alike(const struct output *output, const struct output *first, word rows) {
  return output->name == first->name && output->datatype == first->datatype && output->dims == first->dims &&
         output->dims > 0 && output->shape[0] == rows &&
         memcmp(output->shape + 1, first->shape + 1, (size_t)(output->dims - 1) * sizeof(word)) == 0;
}

// Writes the outputs of the batch, each as one tensor. False if Python has to answer request by request.
static bool report_outputs(const struct batch *batch) {
  const struct answer *first = answer_at(batch, 0);
  const struct output *columns = outputs_at(batch, 0);
  for (word position = 0; position < batch->count; position++) {
    const struct answer *answer = answer_at(batch, position);
    if (!answer->is_sent || !answer->is_released || answer->output_count != first->output_count) return false;
    for (word i = 0; batch->count > 1 && i < first->output_count; i++)
      if (!is_alike(&outputs_at(batch, position)[i], &columns[i], batch->rows[position])) return false;
  }
  report[R_OUTPUTS_OF_ALL] = batch->outputs;
  report[R_OUTPUTS] = first->output_count;
  for (word i = 0; i < first->output_count; i++) {
    struct output *column = (struct output *)(report + R_FIRST_OUTPUT) + i;
    *column = columns[i];
    const struct lane *lane = &batch->lane[column->name];
    column->address = lane->address;
    column->size = lane->size;
    if (batch->count > 1) column->shape[0] = batch->row_count;
  }
  return true;
}

// Execute a batch; returns the report. The memory of its outputs stays as it is until the next call.
EXPORT word *pytriton_execute(const word *order) {
  report[R_STATUS] = REFUSED;
  struct batch *batch = prepare(order);
  if (batch == NULL) return report;
  pthread_mutex_lock(&lock);
  running = batch;
  pthread_mutex_unlock(&lock);
  handle error = host.execute(host.instance, batch->requests, (uint32_t)batch->count);
  pthread_mutex_lock(&lock);
  bool is_plain = running == batch && error == 0 && report_outputs(batch);
  if (is_plain) {
    running = NULL;
    batch->next = unused;
    unused = batch;
  }
  pthread_mutex_unlock(&lock);
  report[R_STATUS] = is_plain ? PLAIN : OPEN;
  report[R_ERROR] = (word)error;
  return report;
}

// Returns the position of a request in the running batch; negative if it is not there or released.
EXPORT word pytriton_find(handle request) {
  pthread_mutex_lock(&lock);
  word position = running == NULL ? -1 : find_request(running, request);
  if (position >= 0 && answer_at(running, position)->is_released) position = -1;
  pthread_mutex_unlock(&lock);
  return position;
}

// Returns the running batch, if there is one: it is Python's from now on, until `pytriton_recycle`.
EXPORT struct batch *pytriton_detach(void) {
  pthread_mutex_lock(&lock);
  struct batch *batch = running;
  running = NULL;
  pthread_mutex_unlock(&lock);
  return batch;
}
