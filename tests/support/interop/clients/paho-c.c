// Paho C (MQTT 3.1.1) over a pair of brokers, QoS 2 both ways: a lost connection is made again with both addresses.

#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <MQTTAsync.h>

static MQTTAsync client;
static char *addresses[2];
static char *topic;
static sem_t confirmed;

static void connect_again(void *context, char *cause);

static void on_failure(void *context, MQTTAsync_failureData *response)
{
    usleep(100000);
    connect_again(context, NULL);
}

static void on_success(void *context, MQTTAsync_successData *response)
{
    MQTTAsync_subscribe(client, topic, 2, NULL);
}

static void connect_again(void *context, char *cause)
{
    MQTTAsync_connectOptions options = MQTTAsync_connectOptions_initializer;
    options.MQTTVersion = MQTTVERSION_3_1_1;
    options.cleansession = 0;
    options.serverURIs = addresses;
    options.serverURIcount = 2;
    options.connectTimeout = 5;
    options.onSuccess = on_success;
    options.onFailure = on_failure;
    int code = MQTTAsync_connect(client, &options);
    if (code != MQTTASYNC_SUCCESS) {
        printf("{\"note\": \"connect: %d\"}\n", code);
    }
}

static int on_message(void *context, char *name, int length, MQTTAsync_message *message)
{
    printf("{\"received\": %.*s}\n", message->payloadlen, (char *)message->payload);
    MQTTAsync_freeMessage(&message);
    MQTTAsync_free(name);
    return 1;
}

static void on_delivered(void *context, MQTTAsync_token token)
{
    sem_post(&confirmed);
}

int main(int count, char **arguments)
{
    addresses[0] = strtok(arguments[1], ",");
    addresses[1] = strtok(NULL, ",");
    topic = arguments[2];
    setvbuf(stdout, NULL, _IOLBF, 0);
    sem_init(&confirmed, 0, 0);
    MQTTAsync_create(&client, addresses[0], "paho-c", MQTTCLIENT_PERSISTENCE_NONE, NULL);
    MQTTAsync_setCallbacks(client, NULL, connect_again, on_message, on_delivered);
    connect_again(NULL, NULL);

    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (int number = 1; poll(&input, 1, 0) == 0; number++) {
        char text[16];
        snprintf(text, sizeof text, "%d", number);
        printf("{\"sent\": %d}\n", number);
        while (MQTTAsync_send(client, topic, strlen(text), text, 2, 0, NULL) != MQTTASYNC_SUCCESS) {
            usleep(50000); // not connected
        }
        sem_wait(&confirmed);
        printf("{\"confirmed\": %d}\n", number);
    }
    printf("{\"done\": true}\n");
    pause();
}
