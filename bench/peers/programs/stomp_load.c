/* Persistent messages over STOMP 1.2, until standard input ends. bench/peers/loads.py states what it reads and writes.

   One thread. Each sender and each consumer has its own connection, four queues share them. A sender has at most WINDOW
   receipts outstanding. A consumer acknowledges each message with its own frame (client-individual). Senders stop while
   WAITING_MAX messages are sent and not received. With a RATE other than 0 so many messages a second are sent at fixed
   moments, and times count from the moment at which a message was due.

   stomp_load HOST PORT SENDERS CONSUMERS WINDOW BYTES RATE */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { QUEUES = 4, PEERS = 256, READ = 1 << 18, HEAD = 512, WAITING_MAX = 10000, STEPS = 1280, STALL_SECONDS = 30 };

struct bytes {
    char *at;
    size_t length, room;
};

struct peer {
    int fd, is_sender, outstanding, waits_to_write, answers; /* answers: CONNECTED, and the receipt of SUBSCRIBE */
    long number, next;
    long long *sent_at; /* by receipt, modulo the window */
    struct bytes in, out;
};

static struct peer peers[PEERS];
static int peer_count, poll_fd, window, is_going, is_pausing;
static size_t body_bytes;
static char *body;
static long sent, confirmed, received;
static long steps[STEPS], ages[STEPS];
static long long moved, began;
static long rate, sender_count, paced;
static char problem[HEAD];

static long long nanos(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void failed(const char *what, const char *detail)
{
    if (problem[0] == '\0') {
        snprintf(problem, sizeof problem, "%s: %.300s", what, detail);
        for (char *at = problem; *at != '\0'; at++)
            if (*at == '"' || *at == '\\' || (unsigned char)*at < ' ')
                *at = ' ';
    }
}

static void append(struct bytes *to, const void *from, size_t length)
{
    if (to->length + length > to->room) {
        to->room = 2 * (to->length + length);
        to->at = realloc(to->at, to->room);
        if (to->at == NULL)
            exit(1);
    }
    memcpy(to->at + to->length, from, length);
    to->length += length;
}

/* Microseconds in 32 steps for each power of two, so within 3 %. */
static void count(long *counts, long long duration)
{
    unsigned long long micros = duration > 0 ? (unsigned long long)duration / 1000 : 0;
    int shift = 0;
    while (micros >> shift >= 64)
        shift++;
    size_t place = (size_t)shift * 32 + (size_t)(micros >> shift);
    counts[place < STEPS ? place : STEPS - 1]++;
}

static long long percentile(const long *counts, long all, double share)
{
    long seen = 0;
    int place = 0;
    while ((seen += counts[place]) < (double)all * share)
        place++;
    int shift = place < 64 ? 0 : place / 32 - 1;
    return (long long)(place - shift * 32) << shift;
}

static void print_taken(const char *name, long *counts)
{
    long all = 0;
    for (int place = 0; place < STEPS; place++)
        all += counts[place];
    if (all == 0)
        printf("\"%s\":null,", name);
    else
        printf("\"%s\":[%lld,%lld],", name, percentile(counts, all, 0.5), percentile(counts, all, 0.99));
    memset(counts, 0, STEPS * sizeof *counts);
}

static void print_figures(void)
{
    printf("{\"nanos\":%lld,\"sent\":%ld,\"received\":%ld,", nanos(), confirmed, received);
    print_taken("step_us", steps);
    print_taken("receive_us", ages);
    printf("\"problems\":[%s%s%s]}\n", problem[0] ? "\"" : "", problem, problem[0] ? "\"" : "");
    fflush(stdout);
}

static void flush_peer(struct peer *own)
{
    ssize_t written = own->out.length ? send(own->fd, own->out.at, own->out.length, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    if (written < 0 && errno != EAGAIN)
        failed("send", strerror(errno));
    if (written > 0) {
        own->out.length -= (size_t)written;
        memmove(own->out.at, own->out.at + written, own->out.length);
    }
    int waits = own->out.length > 0 && problem[0] == '\0';
    if (waits != own->waits_to_write) {
        struct epoll_event event = {waits ? EPOLLIN | EPOLLOUT : EPOLLIN, {.ptr = own}};
        own->waits_to_write = waits;
        epoll_ctl(poll_fd, EPOLL_CTL_MOD, own->fd, &event);
    }
}

/* When the next message is due. */
static long long due(void)
{
    return began + paced * 1000000000LL / rate;
}

static void send_messages(struct peer *own)
{
    if (!own->is_sender || !is_going)
        return;
    long long now = nanos();
    while (own->outstanding < window && sent - received < WAITING_MAX) {
        if (rate) {
            if (paced % sender_count != own->number || due() > nanos())
                return;
            now = due();
            paced++;
        }
        char head[HEAD];
        int made = snprintf(head, sizeof head, "SEND\ndestination:/queue/bench.%ld\npersistent:true\nreceipt:%ld\ncontent-length:%zu\n\n",
                            own->number % QUEUES, own->next, body_bytes);
        append(&own->out, head, (size_t)made);
        size_t start = own->out.length;
        append(&own->out, body, body_bytes + 1);
        char stamp[17];
        snprintf(stamp, sizeof stamp, "%016llx", (unsigned long long)now);
        memcpy(own->out.at + start, stamp, 16);
        own->sent_at[own->next++ % window] = now;
        own->outstanding++;
        sent++;
    }
}

static const char *header(const char *frame, const char *end, const char *name, size_t *length)
{
    const char *found = memmem(frame, (size_t)(end - frame), name, strlen(name));
    if (found == NULL)
        return NULL;
    found += strlen(name);
    *length = strcspn(found, "\r\n");
    return found;
}

static void take_frame(struct peer *own, const char *frame, const char *end, const char *content)
{
    size_t length = 0;
    const char *value;
    long long now = nanos();
    if (strncmp(frame, "MESSAGE", 7) == 0) {
        value = header(frame, end, "\nack:", &length);
        if (value == NULL) {
            failed("a MESSAGE has no ack", "");
            return;
        }
        append(&own->out, "ACK\nid:", 7);
        append(&own->out, value, length);
        append(&own->out, "\n\n", 3);
        char stamp[17] = "";
        memcpy(stamp, content, 16);
        count(ages, now - (long long)strtoull(stamp, NULL, 16));
        received++;
        moved = now;
    } else if (strncmp(frame, "RECEIPT", 7) == 0) {
        value = header(frame, end, "\nreceipt-id:", &length);
        if (value == NULL || !own->is_sender) {
            own->answers++;
            return;
        }
        count(steps, now - own->sent_at[strtol(value, NULL, 10) % window]);
        own->outstanding--;
        confirmed++;
        moved = now;
    } else if (strncmp(frame, "CONNECTED", 9) == 0) {
        own->answers++;
    } else if (strncmp(frame, "ERROR", 5) == 0) {
        failed("ERROR", frame);
    }
}

/* The bytes of the first frame there; 0: it is not whole. */
static size_t take(struct peer *own, const char *at, size_t length)
{
    size_t begin = 0;
    while (begin < length && (at[begin] == '\n' || at[begin] == '\r'))
        begin++;
    const char *frame = at + begin;
    size_t left = length - begin;
    const char *end = memmem(frame, left, "\n\n", 2);
    size_t head = end != NULL ? (size_t)(end - frame) + 2 : 0;
    if (end == NULL && (end = memmem(frame, left, "\r\n\r\n", 4)) != NULL)
        head = (size_t)(end - frame) + 4;
    if (head == 0)
        return 0;
    size_t text = 0;
    const char *value = header(frame, end + 1, "\ncontent-length:", &text);
    const char *nul;
    if (value != NULL) {
        size_t content = strtoul(value, NULL, 10);
        if (head + content + 1 > left)
            return 0;
        nul = frame + head + content;
    } else {
        nul = memchr(frame + head, '\0', left - head);
        if (nul == NULL)
            return 0;
    }
    take_frame(own, frame, end + 1, frame + head);
    return (size_t)(nul - at) + 1;
}

static void read_peer(struct peer *own)
{
    static char room[READ];
    ssize_t length = recv(own->fd, room, sizeof room, 0); /* blocks only in ask: later there is something */
    if (length == 0 || (length < 0 && errno != EAGAIN))
        failed("the broker closed a connection", length < 0 ? strerror(errno) : "");
    if (length <= 0)
        return;
    append(&own->in, room, (size_t)length);
    size_t begin = 0, taken;
    while (begin < own->in.length && (taken = take(own, own->in.at + begin, own->in.length - begin)) > 0)
        begin += taken;
    own->in.length -= begin;
    memmove(own->in.at, own->in.at + begin, own->in.length);
}

/* Write a frame, and wait for its answer. */
static void ask(struct peer *own, const char *frame)
{
    int expected = own->answers + 1;
    ssize_t length = (ssize_t)strlen(frame) + 1;
    if (problem[0] == '\0' && write(own->fd, frame, (size_t)length) != length)
        failed("write", strerror(errno));
    while (problem[0] == '\0' && own->answers < expected)
        read_peer(own);
}

static void open_peer(const char *host, const char *port, int is_sender, long number)
{
    struct peer *own = &peers[peer_count++];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    int on = 1;
    inet_pton(AF_INET, host, &address.sin_addr);
    *own = (struct peer){.fd = socket(AF_INET, SOCK_STREAM, 0), .is_sender = is_sender, .number = number};
    own->sent_at = calloc((size_t)window, sizeof *own->sent_at);
    if (connect(own->fd, (struct sockaddr *)&address, sizeof address) < 0)
        failed("connect", strerror(errno));
    setsockopt(own->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ask(own, "CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\nheart-beat:0,0\n\n");
    if (!is_sender) {
        char text[HEAD];
        snprintf(text, sizeof text, "SUBSCRIBE\nid:1\ndestination:/queue/bench.%ld\nack:client-individual\n"
                 "activemq.prefetchSize:1000\nprefetch-count:1000\nreceipt:subscribed\n\n", number % QUEUES);
        ask(own, text);
    }
    struct epoll_event event = {EPOLLIN, {.ptr = own}};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, own->fd, &event);
}

static int read_command(void)
{
    static char line[64];
    ssize_t length = read(STDIN_FILENO, line, sizeof line - 1);
    if (length <= 0)
        return 0;
    if (strncmp(line, "pause", 5) == 0) {
        is_going = 0;
        is_pausing = 1;
        moved = nanos();
        return 1;
    }
    if (strncmp(line, "go", 2) == 0) {
        is_going = 1;
        began = nanos();
        paced = 0;
    }
    print_figures();
    return 1;
}

int main(int arguments, char **argument)
{
    if (arguments != 8) {
        fprintf(stderr, "stomp_load HOST PORT SENDERS CONSUMERS WINDOW BYTES RATE\n");
        return 2;
    }
    window = atoi(argument[5]);
    body_bytes = strtoul(argument[6], NULL, 10);
    rate = atol(argument[7]);
    sender_count = atol(argument[3]);
    body = malloc(body_bytes + 1);
    memset(body, 'x', body_bytes);
    body[body_bytes] = '\0';
    poll_fd = epoll_create1(0);
    for (int number = 0; number < atoi(argument[4]); number++)
        open_peer(argument[1], argument[2], 0, number);
    for (int number = 0; number < sender_count; number++)
        open_peer(argument[1], argument[2], 1, number);
    struct epoll_event event = {EPOLLIN, {.ptr = NULL}};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &event);
    puts("\"ready\"");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[PEERS];
        long long left = is_pausing ? 100000000LL : rate && is_going ? due() - nanos() : 3600000000000LL;
        struct timespec at_most = {left > 0 ? left / 1000000000LL : 0, left > 0 ? left % 1000000000LL : 0};
        int found = epoll_pwait2(poll_fd, events, PEERS, &at_most, NULL);
        for (int number = 0; number < found; number++) {
            if (events[number].data.ptr == NULL) {
                if (!read_command())
                    return 0;
            } else if (problem[0] == '\0') {
                read_peer(events[number].data.ptr);
            } else {
                epoll_ctl(poll_fd, EPOLL_CTL_DEL, ((struct peer *)events[number].data.ptr)->fd, NULL);
            }
        }
        for (long before = -1; before != paced && problem[0] == '\0';) { /* paced senders take turns */
            before = paced;
            for (int number = 0; number < peer_count; number++)
                send_messages(&peers[number]);
        }
        for (int number = 0; number < peer_count && problem[0] == '\0'; number++)
            flush_peer(&peers[number]);
        if (is_pausing) {
            if (nanos() - moved > STALL_SECONDS * 1000000000LL) {
                snprintf(problem, sizeof problem, "sent %ld, confirmed %ld, received %ld", sent, confirmed, received);
            }
            if (problem[0] != '\0' || (confirmed == sent && received >= sent)) {
                is_pausing = 0;
                print_figures();
            }
        }
    }
}
