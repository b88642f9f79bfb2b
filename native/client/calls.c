/*
 * Requests that wait for their answers, and what gives back a grant that nobody wants any more.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "stream.h"

#define MAX_CALLS 256u

void mcpd_answer_clear(struct mcpd_answer *answer)
{
    mcpd_close_fds(answer->fds, answer->nfds);
    free(answer->body);
    memset(answer, 0, sizeof *answer);
}

void mcpd_message(struct mcpd_message *message, const char *type, uint32_t fields)
{
    message->pack = (struct mcpd_pack){.data = message->data + MCPD_LENGTH_NBYTES,
                                       .capacity = sizeof message->data - MCPD_LENGTH_NBYTES};
    mcpd_pack_map(&message->pack, 2 + fields);
    mcpd_pack_text(&message->pack, "type");
    mcpd_pack_text(&message->pack, type);
    mcpd_pack_text(&message->pack, "id");
    mcpd_pack_unsigned_wide(&message->pack, 0);
    message->id_offset = MCPD_LENGTH_NBYTES + message->pack.nbytes - 8;
}

static void set_id(struct mcpd_message *message, uint64_t id)
{
    for (size_t i = 8; i > 0; i--, id >>= 8)
        message->data[message->id_offset + i - 1] = (uint8_t)id;
}

/* Under the mutex. */
static int transmit(struct mcpd_client *client, struct mcpd_message *message)
{
    size_t nbytes = message->pack.nbytes;
    for (size_t i = 0; i < MCPD_LENGTH_NBYTES; i++)
        message->data[i] = (uint8_t)(nbytes >> 8 * i);
    int result = mcpd_socket_send(&client->socket, message->data, MCPD_LENGTH_NBYTES + nbytes);
    if (client->socket.outbound_nbytes > 0)
        mcpd_wake_signal(client->wake_fd); /* the thread sends it when there is room */
    return result;
}

static int over(const struct mcpd_client *client, struct mcpd_error *error)
{
    if (error != NULL)
        *error = client->why;
    return client->why.number;
}

/* Numbers a request, puts its call on the list and sends it; under the mutex. */
static int submit(struct mcpd_client *client, struct mcpd_message *message, enum mcpd_undo undo,
                  struct mcpd_call **out, struct mcpd_error *error)
{
    if (client->over)
        return over(client, error);
    if (message->pack.full)
        return mcpd_fail(error, "limit", "Use shorter names.",
                         "a request of more than %u bytes", MCPD_REQUEST_NBYTES);
    if (client->ncalls >= MAX_CALLS)
        return mcpd_fail(error, "limit", "Wait for answers first.",
                         "%u requests wait for an answer already", client->ncalls);
    struct mcpd_call *call = calloc(1, sizeof *call);
    if (call == NULL)
        return mcpd_fail(error, "no_memory", "", "no memory for a request");
    call->id = ++client->last_id;
    call->undo = undo;
    set_id(message, call->id);
    int result = transmit(client, message);
    if (result != 0) {
        free(call);
        return mcpd_fail(error, result == -ENOMEM ? "no_memory" : "limit", "",
                         "the daemon does not read: %u bytes would wait for it",
                         MCPD_OUTBOUND_NBYTES);
    }
    call->next = client->calls;
    client->calls = call;
    client->ncalls++;
    *out = call;
    return 0;
}

static void unlink_call(struct mcpd_client *client, struct mcpd_call *call)
{
    struct mcpd_call **at = &client->calls;
    while (*at != NULL && *at != call)
        at = &(*at)->next;
    if (*at == call) {
        *at = call->next;
        client->ncalls--;
    }
}

/* Waits on the condition until the call is done or the time is over; under the mutex. */
static void wait_for(struct mcpd_client *client, const struct mcpd_call *call, int64_t timeout_ns)
{
    int64_t deadline_ns = mcpd_deadline_ns(timeout_ns);
    struct timespec deadline = {.tv_sec = deadline_ns / 1000000000,
                                .tv_nsec = deadline_ns % 1000000000};
    int result = 0;
    while (!call->done && result == 0)
        result = timeout_ns < 0 ? pthread_cond_wait(&client->changed, &client->mutex)
                                : pthread_cond_timedwait(&client->changed, &client->mutex,
                                                         &deadline);
}

int mcpd_request(struct mcpd_client *client, struct mcpd_message *message, int64_t timeout_ns,
                 enum mcpd_undo undo, struct mcpd_answer *answer, struct mcpd_error *error)
{
    struct mcpd_call *call = NULL;
    int result = mcpd_check_process(client, error);
    if (result != 0)
        return result;
    pthread_mutex_lock(&client->mutex);
    result = submit(client, message, undo, &call, error);
    if (result == 0)
        wait_for(client, call, timeout_ns);
    if (result == 0 && !call->done) {
        call->abandoned = 1; /* whoever completes it gives back what it grants, and frees it */
        pthread_mutex_unlock(&client->mutex);
        return mcpd_fail(error, "timeout", "", "no answer from the daemon in %lld ms",
                         (long long)(timeout_ns / 1000000));
    }
    pthread_mutex_unlock(&client->mutex);
    if (result != 0)
        return result;
    result = call->result; /* it is done and off the list: nobody else has it */
    if (result == 0)
        *answer = call->answer;
    else if (error != NULL)
        *error = call->error;
    free(call);
    return result;
}

void mcpd_request_quietly(struct mcpd_client *client, struct mcpd_message *message)
{
    struct mcpd_call *call = NULL;
    pthread_mutex_lock(&client->mutex);
    if (submit(client, message, MCPD_UNDO_NOTHING, &call, NULL) == 0)
        call->abandoned = 1;
    pthread_mutex_unlock(&client->mutex);
}

void mcpd_detach_quietly(struct mcpd_client *client, uint64_t reader)
{
    struct mcpd_message message;
    struct mcpd_call *call = NULL;
    mcpd_message(&message, "detach_reader", 1);
    mcpd_pack_text(&message.pack, "reader");
    mcpd_pack_unsigned(&message.pack, reader);
    pthread_mutex_lock(&client->mutex);
    if (submit(client, &message, MCPD_UNDO_NOTHING, &call, NULL) == 0) {
        call->abandoned = 1;
        call->detaches = reader;
    }
    pthread_mutex_unlock(&client->mutex);
}

void mcpd_send(struct mcpd_client *client, struct mcpd_message *message)
{
    pthread_mutex_lock(&client->mutex);
    if (!client->over && !message->pack.full)
        (void)transmit(client, message);
    pthread_mutex_unlock(&client->mutex);
}

void mcpd_give_back(struct mcpd_client *client, enum mcpd_undo undo,
                    const struct mcpd_value *result)
{
    int is_reader = undo != MCPD_UNDO_STREAM;
    const char *key = is_reader ? "reader" : "stream";
    struct mcpd_value grant = *result;
    uint64_t number = 0, generation = 0;
    if (undo == MCPD_UNDO_NOTHING ||
        (undo == MCPD_UNDO_RESULTS && !mcpd_map_find(result, "grant", &grant)) ||
        mcpd_map_unsigned(&grant, key, UINT64_MAX, &number) != 0 || number == 0 ||
        mcpd_map_unsigned(&grant, "generation", UINT64_MAX, &generation) != 0)
        return;
    if (is_reader) {
        mcpd_detach_quietly(client, number);
        return;
    }
    struct mcpd_message message;
    mcpd_message(&message, "close_stream", 2);
    mcpd_pack_text(&message.pack, key);
    mcpd_pack_unsigned(&message.pack, number);
    mcpd_pack_text(&message.pack, "generation");
    mcpd_pack_unsigned(&message.pack, generation);
    mcpd_request_quietly(client, &message);
}

/* What the answer says, into the call. */
static void fill(struct mcpd_call *call, const struct mcpd_value *message, const uint8_t *body,
                 uint32_t nbytes, const int *fds, uint32_t nfds, int is_error)
{
    struct mcpd_value result;
    if (is_error) {
        call->result = mcpd_fail_as(&call->error, message);
    } else if ((call->answer.body = malloc(nbytes)) == NULL) {
        call->result = mcpd_fail(&call->error, "no_memory", "", "no memory for an answer");
    } else {
        memcpy(call->answer.body, body, nbytes);
        struct mcpd_value whole;
        /* An empty result may be left out: then the answer has none, which is an empty map. */
        if (mcpd_unpack(call->answer.body, nbytes, &whole) == 0 &&
            mcpd_map_find(&whole, "result", &result))
            call->answer.result = result;
        memcpy(call->answer.fds, fds, nfds * sizeof *fds);
        call->answer.nfds = nfds;
        return;
    }
    mcpd_close_fds(fds, nfds);
}

void mcpd_complete(struct mcpd_client *client, const struct mcpd_value *message,
                   const uint8_t *body, uint32_t nbytes, const int *fds, uint32_t nfds)
{
    struct mcpd_value type;
    uint64_t id = 0;
    int is_error = mcpd_map_find(message, "type", &type) && mcpd_text_is(&type, "error");
    (void)mcpd_map_unsigned(message, "id", UINT64_MAX, &id);
    pthread_mutex_lock(&client->mutex);
    struct mcpd_call *call = client->calls;
    while (call != NULL && call->id != id)
        call = call->next;
    if (call == NULL) {
        if (is_error && id == 0)
            mcpd_fail_as(&client->farewell, message);
        pthread_mutex_unlock(&client->mutex);
        mcpd_close_fds(fds, nfds);
        return;
    }
    fill(call, message, body, nbytes, fds, nfds, is_error);
    unlink_call(client, call);
    int abandoned = call->abandoned;
    if (!abandoned) {
        call->done = 1;
        pthread_cond_broadcast(&client->changed);
    }
    pthread_mutex_unlock(&client->mutex);
    if (abandoned) {
        if (call->result == 0)
            mcpd_give_back(client, call->undo, &call->answer.result);
        if (call->detaches != 0)
            mcpd_early_drop(client, call->detaches);
        mcpd_answer_clear(&call->answer);
        free(call);
    }
}

void mcpd_fail_calls(struct mcpd_client *client)
{
    for (struct mcpd_call *call = client->calls, *next; call != NULL; call = next) {
        next = call->next;
        if (call->abandoned) {
            free(call);
            continue;
        }
        call->result = over(client, &call->error);
        call->done = 1;
    }
    client->calls = NULL;
    client->ncalls = 0;
    pthread_cond_broadcast(&client->changed);
}
