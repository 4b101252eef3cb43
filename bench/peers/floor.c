/* The least that a broker has to do for the driver's load, in C: what a figure cannot be better than on a machine.

   One thread. Each turn reads what the sockets have, writes the SEND and ACK frames of the turn to a file as they are,
   syncs it once, and only then answers RECEIPT and gives each message to a consumer of its destination. No index, no
   limits, no recovery, nothing checked: for bench/peers/floor.py alone, whose frames hold no NUL but at their ends.

   floor PORT FILE */

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
    int waits_to_write;
};

/* A SEND of this turn: where it lies in the batch, and who is to be told. */
struct sent {
    size_t frame, length;
    int producer;
};

static struct client clients[CLIENTS];
static struct bytes batch;
static struct sent *sends;
static size_t sent, sends_room;
static long next_message;
static int next_consumer, poll_fd;

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

static void append_text(struct bytes *to, const char *text)
{
    append(to, text, strlen(text));
}

/* The value of a header (with its line's beginning, "\nname:") in a head that ends with an empty line; its length. */
static size_t header(const char *frame, const char *name, const char **value)
{
    const char *end = strstr(frame, "\n\n"), *found = strstr(frame, name);
    if (end == NULL || found == NULL || found > end)
        return 0;
    *value = found + strlen(name);
    return strcspn(*value, "\n");
}

static void receipt(int to, const char *frame, const char *asked)
{
    const char *value;
    size_t length = header(frame, asked, &value);
    if (length == 0)
        return;
    append_text(&clients[to].out, "RECEIPT\nreceipt-id:");
    append(&clients[to].out, value, length);
    append(&clients[to].out, "\n\n", 3);
}

static void take(int from, const char *frame, size_t length)
{
    if (strncmp(frame, "SEND", 4) == 0) {
        if (sent == sends_room) {
            sends_room = 2 * sends_room + 1024;
            sends = realloc(sends, sends_room * sizeof *sends);
            if (sends == NULL)
                die("realloc");
        }
        sends[sent++] = (struct sent){batch.length, length, from};
        append(&batch, frame, length + 1);
    } else if (strncmp(frame, "ACK", 3) == 0) {
        append(&batch, frame, length + 1);
    } else if (strncmp(frame, "CONNECT", 7) == 0 || strncmp(frame, "STOMP", 5) == 0) {
        static const char connected[] = "CONNECTED\nversion:1.2\nheart-beat:0,0\n\n";
        append(&clients[from].out, connected, sizeof connected);
    } else {
        const char *value;
        size_t name = header(frame, "\ndestination:", &value);
        if (name > 0 && name < NAME) {
            memcpy(clients[from].destination, value, name);
            clients[from].destination[name] = '\0';
        }
        receipt(from, frame, "\nreceipt:");
    }
}

static int consumer_of(const char *destination, size_t length)
{
    for (int tried = 0; tried < CLIENTS; tried++) {
        next_consumer = (next_consumer + 1) % CLIENTS;
        const char *own = clients[next_consumer].destination;
        if (strncmp(own, destination, length) == 0 && own[length] == '\0')
            return next_consumer;
    }
    return -1;
}

static void give_out(const struct sent *each)
{
    const char *frame = batch.at + each->frame, *destination = "";
    size_t name = header(frame, "\ndestination:", &destination);
    int consumer = consumer_of(destination, name);
    if (consumer < 0)
        return;
    struct bytes *out = &clients[consumer].out;
    char head[2 * NAME];
    const char *body = strstr(frame, "\n\n") + 2;
    size_t length = each->length - (size_t)(body - frame);
    int made = snprintf(head, sizeof head, "MESSAGE\nack:%ld\nmessage-id:%ld\nsubscription:1\ncontent-length:%zu\ndestination:%.*s\n\n",
                        next_message, next_message, length, (int)name, destination);
    next_message++;
    append(out, head, (size_t)made);
    append(out, body, length + 1);
}

static void close_client(int fd)
{
    close(fd);
    clients[fd].in.length = clients[fd].out.length = 0;
    clients[fd].destination[0] = '\0';
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
    size_t begin = 0;
    char *end;
    while ((end = memchr(in->at + begin, '\0', in->length - begin)) != NULL) {
        while (in->at[begin] == '\n')
            begin++;
        take(fd, in->at + begin, (size_t)(end - in->at) - begin);
        begin = (size_t)(end - in->at) + 1;
    }
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
    for (size_t number = 0; number < sent; number++) {
        receipt(sends[number].producer, batch.at + sends[number].frame, "\nreceipt:");
        give_out(&sends[number]);
    }
    batch.length = 0;
    sent = 0;
}

int main(int arguments, char **argument)
{
    if (arguments != 3) {
        fprintf(stderr, "floor PORT FILE\n");
        return 2;
    }
    int on = 1, door = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int file = open(argument[2], O_CREAT | O_WRONLY | O_APPEND, 0600);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argument[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (file < 0)
        die(argument[2]);
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
            }
        }
        store(file);
        for (int fd = 0; fd < CLIENTS; fd++)
            if (clients[fd].out.length > 0)
                flush_client(fd);
    }
}
