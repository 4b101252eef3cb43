/* Common part of the minimal servers in this directory: sockets, one file, and a turn of the loop.

   One thread. Each turn reads what the sockets have, writes what `take` put into the batch to a file, syncs it once, and
   then calls `stored`, which answers. A file that includes this defines:

   size_t take(int from, const char *at, size_t length)   the bytes of the first whole frame there; 0: it is not whole
   void stored(void)                                       the batch is on the disk
   void opened(int fd)                                     a client came */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS = 1024, EVENTS = 256, READ = 1 << 18, NAME = 256 };

struct bytes {
    char *at;
    size_t length, room;
};

struct client {
    struct bytes in, out;
    char destination[NAME];
    size_t destination_length;
    struct bytes about; /* what the protocol wants to know of its consumer */
    int waits_to_write;
};

/* A message of this turn: its place in the batch, and the client that gets the answer. */
struct sent {
    size_t frame, length;
    int producer;
};

static struct client clients[CLIENTS];
static struct bytes batch;
static struct sent *sends;
static size_t sent, sends_room;
static int next_consumer, poll_fd;

static size_t take(int from, const char *at, size_t length);
static void stored(void);
static void opened(int fd);

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void append(struct bytes *to, const char *from, size_t length)
{
    if (to->length + length > to->room) {
        to->room = 2 * (to->length + length);
        to->at = realloc(to->at, to->room);
        if (to->at == NULL)
            die("realloc");
    }
    memcpy(to->at + to->length, from, length);
    to->length += length;
}

static void note_sent(int from, const char *frame, size_t length)
{
    if (sent == sends_room) {
        sends_room = 2 * sends_room + 1024;
        sends = realloc(sends, sends_room * sizeof *sends);
        if (sends == NULL)
            die("realloc");
    }
    sends[sent++] = (struct sent){batch.length, length, from};
    append(&batch, frame, length);
}

static int consumer_of(const char *destination, size_t length)
{
    for (int tried = 0; tried < CLIENTS; tried++) {
        next_consumer = (next_consumer + 1) % CLIENTS;
        const struct client *own = &clients[next_consumer];
        if (own->destination_length == length && memcmp(own->destination, destination, length) == 0)
            return next_consumer;
    }
    return -1;
}

static void consume(int fd, const char *destination, size_t length)
{
    if (length > 0 && length < NAME) {
        memcpy(clients[fd].destination, destination, length);
        clients[fd].destination_length = length;
    }
}

static void close_client(int fd)
{
    close(fd);
    clients[fd].in.length = clients[fd].out.length = 0;
    clients[fd].destination_length = 0;
    clients[fd].waits_to_write = 0;
}

static void flush_client(int fd)
{
    struct client *own = &clients[fd];
    ssize_t written = own->out.length ? send(fd, own->out.at, own->out.length, MSG_NOSIGNAL) : 0;
    if (written < 0 && errno != EAGAIN) {
        close_client(fd);
        return;
    }
    if (written > 0) {
        own->out.length -= (size_t)written;
        memmove(own->out.at, own->out.at + written, own->out.length);
    }
    int waits = own->out.length > 0;
    if (waits != own->waits_to_write) {
        struct epoll_event event = {waits ? EPOLLIN | EPOLLOUT : EPOLLIN, {.fd = fd}};
        own->waits_to_write = waits;
        epoll_ctl(poll_fd, EPOLL_CTL_MOD, fd, &event);
    }
}

static void read_client(int fd)
{
    static char room[READ];
    struct bytes *in = &clients[fd].in;
    ssize_t length = recv(fd, room, sizeof room, 0);
    if (length == 0 || (length < 0 && errno != EAGAIN)) {
        close_client(fd);
        return;
    }
    if (length < 0)
        return;
    append(in, room, (size_t)length);
    size_t begin = 0, taken;
    while (begin < in->length && (taken = take(fd, in->at + begin, in->length - begin)) > 0)
        begin += taken;
    in->length -= begin;
    memmove(in->at, in->at + begin, in->length);
}

static void store(int file)
{
    if (batch.length == 0)
        return;
    for (size_t done = 0; done < batch.length;) {
        ssize_t written = write(file, batch.at + done, batch.length - done);
        if (written < 0)
            die("write");
        done += (size_t)written;
    }
    if (fdatasync(file) < 0)
        die("fdatasync");
    stored();
    batch.length = 0;
    sent = 0;
}

static _Noreturn void serve(const char *port, const char *path)
{
    int on = 1, door = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int file = open(path, O_CREAT | O_WRONLY | O_APPEND, 0600);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (file < 0)
        die(path);
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(door, (struct sockaddr *)&address, sizeof address) < 0 || listen(door, CLIENTS) < 0)
        die("bind");
    poll_fd = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.fd = door}}, ready[EVENTS];
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, door, &event);
    for (;;) {
        int number = epoll_wait(poll_fd, ready, EVENTS, -1);
        for (int each = 0; each < number; each++) {
            int fd = ready[each].data.fd;
            if (fd != door) {
                if (ready[each].events & ~(uint32_t)EPOLLOUT)
                    read_client(fd);
                continue;
            }
            while ((fd = accept4(door, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                if (fd >= CLIENTS) {
                    close(fd);
                    continue;
                }
                struct epoll_event own = {EPOLLIN, {.fd = fd}};
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &own);
                opened(fd);
            }
        }
        store(file);
        for (int fd = 0; fd < CLIENTS; fd++)
            if (clients[fd].out.length > 0)
                flush_client(fd);
    }
}
