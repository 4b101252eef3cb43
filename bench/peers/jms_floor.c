/* As floor.c, for the real JMS client: the lower bound for a broker on this machine.

   OpenWire frames in the loose encoding without a cache, as the greeting requests (the file GREETING, sent first).
   Messages and acknowledgements are written to a file unchanged; the Response and the MessageDispatch are sent after the
   sync. Nothing is checked. Only for bench/peers/loads.py.

   jms_floor PORT FILE GREETING */

#include "floor_loop.h"
#include <endian.h>

enum { CONSUMER_INFO = 5, KEEP_ALIVE = 10, MESSAGE_DISPATCH = 21, MESSAGE_ACK = 22, MESSAGE_FIRST = 23, MESSAGE_LAST = 29, RESPONSE = 30 };
/* A frame: size (4), type (1), command id (4), response required (1), and the fields of the command. */
enum { SIZE = 4, HEAD = SIZE + 1 + 4 + 1 };

static struct bytes greeting;

static void put_number(struct bytes *to, uint32_t number)
{
    number = htobe32(number);
    append(to, (const char *)&number, sizeof number);
}

/* Bytes of a string: presence (1), length (2), and the text. */
static size_t text_length(const char *at)
{
    return at[0] == 0 ? 1 : 3 + ((size_t)(unsigned char)at[1] << 8 | (unsigned char)at[2]);
}

/* Bytes of a ProducerId or ConsumerId: presence, type, a string and two long numbers. */
static size_t id_length(const char *at)
{
    return at[0] == 0 ? 1 : 2 + text_length(at + 2) + 16;
}

/* Bytes of a destination: presence, type and a string. */
static size_t destination_length(const char *at)
{
    return at[0] == 0 ? 1 : 2 + text_length(at + 2);
}

static void respond(int to, const char *frame)
{
    struct bytes *out = &clients[to].out;
    if (frame[HEAD - 1] == 0)
        return;
    put_number(out, HEAD - SIZE + 4);
    append(out, (const char[]){RESPONSE}, 1);
    put_number(out, 0);
    append(out, "", 1);
    append(out, frame + SIZE + 1, 4); /* the correlation id */
}

static size_t take(int from, const char *at, size_t length)
{
    if (length < SIZE)
        return 0;
    uint32_t size;
    memcpy(&size, at, sizeof size);
    size_t whole = SIZE + (size_t)be32toh(size);
    if (length < whole)
        return 0;
    int type = at[SIZE];
    if (type >= MESSAGE_FIRST && type <= MESSAGE_LAST) {
        note_sent(from, at, whole);
    } else if (type == KEEP_ALIVE) { /* a client that receives nothing for 30 s closes the connection */
        append(&clients[from].out, at, whole);
    } else if (type == MESSAGE_ACK) {
        append(&batch, at, whole);
    } else {
        if (type == CONSUMER_INFO) {
            const char *id = at + HEAD, *destination = id + id_length(id) + 1; /* after "browser" */
            size_t name = destination_length(destination);
            if (destination[0] != 0 && memmem(destination, name, "Advisory", 8) == NULL) {
                clients[from].about.length = 0;
                append(&clients[from].about, id, id_length(id));
                consume(from, destination, name);
            }
        }
        if (whole >= HEAD && type != 1)
            respond(from, at);
    }
    return whole;
}

static void give_out(const struct sent *each)
{
    const char *frame = batch.at + each->frame, *destination = frame + HEAD + id_length(frame + HEAD);
    size_t name = destination_length(destination);
    int consumer = consumer_of(destination, name);
    if (consumer < 0)
        return;
    struct bytes *out = &clients[consumer].out;
    const struct bytes *id = &clients[consumer].about;
    put_number(out, (uint32_t)(HEAD - SIZE + id->length + name + 1 + each->length - SIZE + 4));
    append(out, (const char[]){MESSAGE_DISPATCH}, 1);
    put_number(out, 0);
    append(out, "", 1);
    append(out, id->at, id->length);
    append(out, destination, name);
    append(out, "\1", 1);
    append(out, frame + SIZE, each->length - SIZE);
    put_number(out, 0); /* it was not delivered before */
}

static void stored(void)
{
    for (size_t number = 0; number < sent; number++) {
        respond(sends[number].producer, batch.at + sends[number].frame);
        give_out(&sends[number]);
    }
}

static void opened(int fd)
{
    append(&clients[fd].out, greeting.at, greeting.length);
}

int main(int arguments, char **argument)
{
    if (arguments != 4) {
        fprintf(stderr, "jms_floor PORT FILE GREETING\n");
        return 2;
    }
    char room[4096];
    int file = open(argument[3], O_RDONLY);
    ssize_t length = file < 0 ? -1 : read(file, room, sizeof room);
    if (length < 0)
        die(argument[3]);
    append(&greeting, room, (size_t)length);
    serve(argument[1], argument[2]);
}
