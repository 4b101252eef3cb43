/* The minimum that a broker must do for the driver's load, in C: the lower bound of the figures on this machine.

   SEND and ACK frames are written to a file unchanged; RECEIPT and MESSAGE are sent after the sync. There is no index,
   no limit, no recovery and no check. Only for bench/peers/floor.py, whose frames have a NUL only at their ends.

   floor PORT FILE */

#include "floor_loop.h"

static long next_message;

static void append_text(struct bytes *to, const char *text)
{
    append(to, text, strlen(text));
}

/* Finds the value of a header (given as "\nname:") in a head that ends with an empty line. Returns its length. */
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

static void answer(int from, const char *frame, size_t length)
{
    if (strncmp(frame, "SEND", 4) == 0) {
        note_sent(from, frame, length + 1);
    } else if (strncmp(frame, "ACK", 3) == 0) {
        append(&batch, frame, length + 1);
    } else if (strncmp(frame, "CONNECT", 7) == 0 || strncmp(frame, "STOMP", 5) == 0) {
        static const char connected[] = "CONNECTED\nversion:1.2\nheart-beat:0,0\n\n";
        append(&clients[from].out, connected, sizeof connected);
    } else {
        const char *value = "";
        size_t name = header(frame, "\ndestination:", &value);
        consume(from, value, name);
        receipt(from, frame, "\nreceipt:");
    }
}

static size_t take(int from, const char *at, size_t length)
{
    size_t begin = 0;
    while (begin < length && at[begin] == '\n')
        begin++;
    const char *end = memchr(at + begin, '\0', length - begin);
    if (end == NULL)
        return 0;
    answer(from, at + begin, (size_t)(end - at) - begin);
    return (size_t)(end - at) + 1;
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
    size_t length = each->length - 1 - (size_t)(body - frame);
    int made = snprintf(head, sizeof head, "MESSAGE\nack:%ld\nmessage-id:%ld\nsubscription:1\ncontent-length:%zu\ndestination:%.*s\n\n",
                        next_message, next_message, length, (int)name, destination);
    next_message++;
    append(out, head, (size_t)made);
    append(out, body, length + 1);
}

static void stored(void)
{
    for (size_t number = 0; number < sent; number++) {
        receipt(sends[number].producer, batch.at + sends[number].frame, "\nreceipt:");
        give_out(&sends[number]);
    }
}

static void opened(int fd)
{
    (void)fd; /* the client speaks first */
}

int main(int arguments, char **argument)
{
    if (arguments != 3) {
        fprintf(stderr, "floor PORT FILE\n");
        return 2;
    }
    serve(argument[1], argument[2]);
}
