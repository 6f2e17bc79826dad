// SPDX-License-Identifier: Apache-2.0
// Sends recorded gRPC calls that differ from each other, which h2load cannot: grpc_load PORT THREADS CONNECTIONS SECONDS FILE...
//
// Each file has a first header block, one for all later calls of a connection, which refers to the first one's headers, and a
// message, each after its length (32 bits, big-endian). Every "@@@@@@@@" in them becomes a number that counts calls. Calls follow
// each other on each connection, and take the files in turns. A second of warm-up is not counted. Prints one line of JSON.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW_UPDATE = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
enum { FILES = 16, HOLES = 8, PARTS = 3, ROOM = 1 << 16, CALL_ROOM = 1 << 14, LONGEST_US = 1 << 20, WARM_UP_S = 1 };
enum { FIRST_HEAD, LATER_HEAD, MESSAGE };
static const char HOLE[] = "@@@@@@@@";

typedef struct {
    unsigned char *bytes;
    uint32_t length;
    uint32_t holes[HOLES];
    int hole_count;
} Part;

typedef struct {
    int socket;
    uint32_t stream;      // of the call under way
    int64_t window;       // what the server lets us send
    int64_t initial;      // of each stream
    uint32_t consumed;    // what the server has to be given back
    uint32_t data;        // bytes of the answer so far
    int file, is_waiting; // for a window
    int64_t begin_us;
    size_t held;          // bytes of `input` that are no whole frame
    unsigned char input[ROOM];
} Connection;

typedef struct {
    pthread_t thread;
    int number, connections;
    int64_t calls, requests, failed, answer_bytes; // calls: with those of the warm-up
    uint32_t *times; // how many calls took so many microseconds
} Load;

static Part files[FILES][PARTS];
static int file_count, port;
static double seconds;
static int64_t begin_us, end_us;

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint32_t read_32(const unsigned char *at) { return (uint32_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3]; }

static unsigned char *write_32(unsigned char *at, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) *at++ = value >> shift;
    return at;
}

static unsigned char *write_head(unsigned char *at, uint32_t length, int kind, int flags, uint32_t stream) {
    at = write_32(at, length << 8 | kind);
    *at++ = flags;
    return write_32(at, stream);
}

static unsigned char *write_part(unsigned char *at, const Part *part, const char *number) {
    memcpy(at, part->bytes, part->length);
    for (int i = 0; i < part->hole_count; i++) memcpy(at + part->holes[i], number, strlen(HOLE));
    return at + part->length;
}

static void send_all(Connection *c, const unsigned char *bytes, size_t length) {
    for (size_t sent = 0; sent < length;) {
        ssize_t n = send(c->socket, bytes + sent, length - sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) die("send");
        sent += n > 0 ? n : 0;
    }
}

static void start_call(Load *load, Connection *c) {
    unsigned char out[CALL_ROOM + 64], *at = out;
    char number[16];
    c->file = c->stream == 0 ? load->number % file_count : (c->file + 1) % file_count;
    const Part *parts = files[c->file], *head = &parts[c->stream == 0 ? FIRST_HEAD : LATER_HEAD], *message = &parts[MESSAGE];
    if ((c->is_waiting = c->window < message->length || c->initial < message->length)) return;
    static __thread int64_t calls;
    snprintf(number, sizeof number, "%08lld", (long long)((load->number * 10000000LL + calls++) % 100000000LL));
    c->stream += c->stream == 0 ? 1 : 2;
    at = write_part(write_head(at, head->length, HEADERS, END_HEADERS, c->stream), head, number);
    at = write_32(write_head(at, 4, WINDOW_UPDATE, 0, c->stream), 5); // as gRPC's own library does
    at = write_part(write_head(at, message->length, DATA, END_STREAM, c->stream), message, number);
    if (c->consumed > 1 << 20) {
        at = write_32(write_head(at, 4, WINDOW_UPDATE, 0, 0), c->consumed);
        c->consumed = 0;
    }
    c->window -= message->length;
    c->data = 0;
    c->begin_us = now_us();
    send_all(c, out, at - out);
}

static void end_call(Load *load, Connection *c, int is_reset) {
    int64_t now = now_us(), took = now - c->begin_us;
    load->calls++;
    if (now >= begin_us && now < end_us) {
        load->requests++;
        load->answer_bytes += c->data;
        load->times[took < LONGEST_US ? took : LONGEST_US - 1]++;
    }
    // A call that failed has trailers only.
    load->failed += is_reset || c->data == 0;
    if (now < end_us) start_call(load, c);
}

static void read_settings(Connection *c, const unsigned char *at, uint32_t length) {
    unsigned char out[16];
    for (; length >= 6; at += 6, length -= 6)
        if (at[0] == 0 && at[1] == 4) c->initial = read_32(at + 2);
    send_all(c, out, write_head(out, 0, SETTINGS, ACK, 0) - out);
}

static void read_frame(Load *load, Connection *c, const unsigned char *frame, uint32_t length) {
    unsigned char out[32], *at;
    const unsigned char *payload = frame + 9;
    int kind = frame[3], flags = frame[4];
    uint32_t stream = read_32(frame + 5);
    if (kind == DATA) {
        c->data += length;
        c->consumed += length;
    } else if (kind == SETTINGS && !(flags & ACK)) {
        read_settings(c, payload, length);
    } else if (kind == PING && !(flags & ACK)) {
        at = write_head(out, 8, PING, ACK, 0);
        memcpy(at, payload, 8);
        send_all(c, out, at + 8 - out);
    } else if (kind == WINDOW_UPDATE && stream == 0) {
        c->window += read_32(payload);
        if (c->is_waiting) start_call(load, c);
    } else if (kind == GOAWAY) {
        fprintf(stderr, "the server closes a connection\n");
        exit(1);
    }
    if (stream != 0 && stream == c->stream && ((kind <= HEADERS && flags & END_STREAM) || kind == RST_STREAM))
        end_call(load, c, kind == RST_STREAM);
}

static void read_input(Load *load, Connection *c) {
    ssize_t n = recv(c->socket, c->input + c->held, ROOM - c->held, 0);
    if (n <= 0) die("recv");
    c->held += n;
    size_t at = 0;
    while (c->held - at >= 9) {
        uint32_t length = read_32(c->input + at) >> 8;
        if (9 + length > ROOM) { fprintf(stderr, "a frame is too large\n"); exit(1); }
        if (c->held - at < 9 + length) break;
        read_frame(load, c, c->input + at, length);
        at += 9 + length;
    }
    memmove(c->input, c->input + at, c->held -= at);
}

static void open_connection(Load *load, Connection *c, int poll) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    if ((c->socket = socket(AF_INET, SOCK_STREAM, 0)) < 0) die("socket");
    if (connect(c->socket, (struct sockaddr *)&address, sizeof address) < 0) die("connect");
    setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->window = c->initial = 65535;
    static const uint32_t settings[][2] = {{2, 0}, {3, 0}, {4, 4 << 20}, {5, 4 << 20}, {6, 1 << 14}};
    unsigned char out[128], *at = (unsigned char *)stpcpy((char *)out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    at = write_head(at, sizeof settings / 8 * 6, SETTINGS, 0, 0);
    for (size_t i = 0; i < sizeof settings / 8; i++) {
        *at++ = 0, *at++ = settings[i][0];
        at = write_32(at, settings[i][1]);
    }
    at = write_32(write_head(at, 4, WINDOW_UPDATE, 0, 0), 0x3f0001);
    send_all(c, out, at - out);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, c->socket, &event) < 0) die("epoll_ctl");
    start_call(load, c);
}

static void *run(void *argument) {
    Load *load = argument;
    int poll = epoll_create1(0);
    Connection *connections = calloc(load->connections, sizeof *connections);
    for (int i = 0; i < load->connections; i++) open_connection(load, &connections[i], poll);
    struct epoll_event events[64];
    while (now_us() < end_us) {
        int n = epoll_wait(poll, events, 64, 100);
        for (int i = 0; i < n; i++) read_input(load, events[i].data.ptr);
    }
    for (int i = 0; i < load->connections; i++) close(connections[i].socket);
    return NULL;
}

static void read_part(FILE *file, Part *part) {
    unsigned char length[4];
    if (fread(length, 4, 1, file) != 1) die("fread");
    part->length = read_32(length);
    part->bytes = malloc(part->length);
    if (fread(part->bytes, part->length, 1, file) != 1) die("fread");
    for (uint32_t at = 0; at + strlen(HOLE) <= part->length; at++)
        if (memcmp(part->bytes + at, HOLE, strlen(HOLE)) == 0 && part->hole_count < HOLES) part->holes[part->hole_count++] = at;
}

static int64_t percentile(const uint32_t *times, int64_t requests, double share) {
    int64_t seen = 0, us = 0;
    while (us < LONGEST_US - 1 && (seen += times[us]) < requests * share) us++;
    return us;
}

int main(int count, char **arguments) {
    if (count < 6) return fprintf(stderr, "grpc_load PORT THREADS CONNECTIONS SECONDS FILE...\n"), 2;
    port = atoi(arguments[1]);
    int threads = atoi(arguments[2]), connections = atoi(arguments[3]);
    seconds = atof(arguments[4]);
    for (int i = 5; i < count && file_count < FILES; i++, file_count++) {
        FILE *file = fopen(arguments[i], "rb");
        if (!file) die(arguments[i]);
        uint32_t length = 0;
        for (int part = 0; part < PARTS; part++) {
            read_part(file, &files[file_count][part]);
            length += files[file_count][part].length;
        }
        fclose(file);
        if (length > CALL_ROOM) return fprintf(stderr, "%s is too long\n", arguments[i]), 2;
    }
    begin_us = now_us() + WARM_UP_S * 1000000LL;
    end_us = begin_us + (int64_t)(seconds * 1e6);
    Load *loads = calloc(threads, sizeof *loads);
    uint32_t *times = calloc(LONGEST_US, sizeof *times);
    for (int i = 0; i < threads; i++) {
        loads[i].number = i;
        loads[i].connections = connections / threads + (i < connections % threads);
        loads[i].times = calloc(LONGEST_US, sizeof *times);
        if (pthread_create(&loads[i].thread, NULL, run, &loads[i])) die("pthread_create");
    }
    int64_t calls = 0, requests = 0, failed = 0, answer_bytes = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(loads[i].thread, NULL);
        calls += loads[i].calls, requests += loads[i].requests, failed += loads[i].failed, answer_bytes += loads[i].answer_bytes;
        for (int us = 0; us < LONGEST_US; us++) times[us] += loads[i].times[us];
    }
    printf("{\"requests\":%lld,\"duration_us\":%lld,\"p50_us\":%lld,\"p99_us\":%lld,\"failed\":%lld,\"bytes\":%lld,\"calls\":%lld}\n", (long long)requests,
           (long long)(end_us - begin_us), (long long)percentile(times, requests, 0.5), (long long)percentile(times, requests, 0.99),
           (long long)failed, (long long)answer_bytes, (long long)calls);
    return 0;
}
