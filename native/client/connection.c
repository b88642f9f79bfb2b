/*
 * A session's life: connecting, the I/O thread, the end.
 *
 * The thread reads the socket, completes requests, admits readers to this process's writers and,
 * when the daemon is gone, fails what is pending and ends every stream, so that nobody waits for
 * ever. It blocks every signal: the program's handlers run on the program's threads.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client.h"
#include "stream.h"

#ifndef MCPD_VERSION
#define MCPD_VERSION "0"
#endif

const char *mcpd_version(void)
{
    return MCPD_VERSION;
}

/* ---- the I/O thread ------------------------------------------------------------------------ */

/* Every message that is there; 0, or the failure that ends the session. */
static int handle_all(struct mcpd_client *client, struct mcpd_error *error)
{
    for (;;) {
        const uint8_t *body;
        int fds[MCPD_MAX_FDS];
        uint32_t nfds;
        int nbytes = mcpd_socket_take(&client->socket, &body, fds, &nfds);
        if (nbytes < 0)
            return mcpd_fail(error, "protocol", "", "the daemon sent what is no message");
        if (nbytes == 0)
            return 0;
        int result = mcpd_dispatch(client, body, (uint32_t)nbytes, fds, nfds, error);
        if (result != 0)
            return result;
        mcpd_socket_drop(&client->socket, (uint32_t)nbytes);
    }
}

static int serve_once(struct mcpd_client *client, struct mcpd_error *error)
{
    pthread_mutex_lock(&client->mutex);
    int waiting = client->socket.outbound_nbytes > 0;
    pthread_mutex_unlock(&client->mutex);
    struct pollfd polled[2] = {
        {.fd = client->socket.fd, .events = (short)(POLLIN | (waiting ? POLLOUT : 0))},
        {.fd = client->wake_fd, .events = POLLIN},
    };
    if (poll(polled, 2, -1) < 0)
        return errno == EINTR ? 0
                              : mcpd_fail(error, "internal", "", "poll failed: errno %d", errno);
    if (polled[1].revents != 0) {
        uint64_t count;
        if (read(client->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)
            return mcpd_fail(error, "internal", "", "wake-up failed: errno %d", errno);
    }
    if (polled[0].revents & POLLOUT) {
        pthread_mutex_lock(&client->mutex);
        mcpd_socket_flush(&client->socket);
        pthread_mutex_unlock(&client->mutex);
    }
    if ((polled[0].revents & ~POLLOUT) == 0)
        return 0;
    int came = mcpd_socket_fill(&client->socket);
    if (came == -EPIPE)
        return mcpd_fail(error, "unavailable", "See whether it runs: mcpd status.",
                         "the daemon closed the connection");
    if (came < 0)
        return mcpd_fail(error, "protocol", "See the limit of open files (ulimit -n).",
                         "descriptors were lost on the way (MSG_CTRUNC)");
    return came == 0 ? 0 : handle_all(client, error);
}

/* What every later call is told: that the session is over, and why the daemon says it is. */
static void finish(struct mcpd_client *client, const struct mcpd_error *error)
{
    pthread_mutex_lock(&client->mutex);
    const struct mcpd_error *cause =
        client->farewell.number != 0 && error->number == -ENOTCONN ? &client->farewell : error;
    if (cause->number == -ENOTCONN)
        client->why = *cause;
    else
        mcpd_fail(&client->why, "unavailable", cause->hint, "session ended: %s", cause->message);
    client->over = 1;
    mcpd_socket_close(&client->socket);
    mcpd_fail_calls(client);
    pthread_mutex_unlock(&client->mutex);
    mcpd_end_all(client);
}

static void *run(void *argument)
{
    struct mcpd_client *client = argument;
    struct mcpd_error error;
    int result = 0;
    while (result == 0 && !atomic_load(&client->closing))
        result = serve_once(client, &error);
    if (result == 0)
        mcpd_fail(&error, "unavailable", "", "the connection was closed");
    finish(client, &error);
    return NULL;
}

static int start_thread(struct mcpd_client *client)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(&client->thread, NULL, run, client);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -result;
}

/* ---- opening and closing ------------------------------------------------------------------- */

static void discard(struct mcpd_client *client)
{
    mcpd_socket_close(&client->socket);
    if (client->wake_fd >= 0)
        close(client->wake_fd);
    mcpd_guard_close(client->guard);
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->mutex);
    pthread_mutex_destroy(&client->streams_mutex);
    free(client);
}

void mcpd_client_use(struct mcpd_client *client)
{
    atomic_fetch_add(&client->users, 1);
}

void mcpd_client_unuse(struct mcpd_client *client)
{
    if (atomic_fetch_sub(&client->users, 1) == 1)
        discard(client);
}

int mcpd_check_process(const struct mcpd_client *client, struct mcpd_error *error)
{
    if (*client->guard)
        return 0;
    mcpd_fail(error, "invalid", "After a fork connect again.",
              "a connection of another process is used in its child %d", (int)getpid());
    if (error != NULL)
        error->number = -ECHILD;
    return -ECHILD;
}

static int greet(struct mcpd_client *client, const char *name, int64_t timeout_ns,
                 struct mcpd_error *error)
{
    struct mcpd_message hello;
    struct mcpd_answer answer;
    char called[65];
    struct mcpd_value whole = {.data = (const uint8_t *)name, .count = (uint32_t)strlen(name)};
    mcpd_text_copy(&whole, called, sizeof called);
    mcpd_message(&hello, "hello", 2);
    mcpd_pack_text(&hello.pack, "versions");
    mcpd_pack_array(&hello.pack, 1);
    mcpd_pack_unsigned(&hello.pack, 1);
    mcpd_pack_text(&hello.pack, "client");
    mcpd_pack_text(&hello.pack, called);
    int result = mcpd_request(client, &hello, timeout_ns, MCPD_UNDO_NOTHING, &answer, error);
    if (result != 0)
        return result;
    if (mcpd_map_unsigned(&answer.result, "session", UINT64_MAX, &client->session) != 0 ||
        mcpd_map_unsigned(&answer.result, "daemon_pid", INT32_MAX, &client->daemon_pid) != 0 ||
        client->session == 0)
        result = mcpd_fail(error, "protocol", "", "the daemon's greeting is not readable");
    mcpd_answer_clear(&answer);
    return result;
}

static int prepare(struct mcpd_client *client, int fd, struct mcpd_error *error)
{
    int result = mcpd_socket_open(&client->socket, fd, error);
    if (result != 0)
        return result;
    result = mcpd_guard_open(&client->guard);
    client->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (result != 0 || client->wake_fd < 0)
        return mcpd_fail(error, "internal", "", "cannot make a connection: errno %d", errno);
    result = start_thread(client);
    return result == 0 ? 0
                       : mcpd_fail(error, "internal", "", "cannot start a thread: errno %d", -result);
}

int mcpd_connect_fd(int fd, const char *name, int64_t timeout_ns, mcpd_client **out,
                    struct mcpd_error *error)
{
    struct mcpd_client *client = calloc(1, sizeof *client);
    if (client == NULL) {
        close(fd);
        return mcpd_fail(error, "no_memory", "", "no memory for a connection");
    }
    client->users = 1;
    client->wake_fd = -1;
    pthread_mutex_init(&client->mutex, NULL);
    pthread_mutex_init(&client->streams_mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&client->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    int result = prepare(client, fd, error);
    if (result != 0) {
        discard(client);
        return result;
    }
    result = greet(client, name != NULL ? name : "", timeout_ns, error);
    if (result != 0) {
        mcpd_close(client);
        return result;
    }
    *out = client;
    return 0;
}

int mcpd_connect(const char *socket, const char *name, int64_t timeout_ns, mcpd_client **out,
                 struct mcpd_error *error)
{
    char path[4096];
    int fd = mcpd_socket_path(socket, path, sizeof path, error);
    if (fd == 0)
        fd = mcpd_socket_connect(path, timeout_ns, error);
    return fd < 0 ? fd : mcpd_connect_fd(fd, name, timeout_ns, out, error);
}

void mcpd_close(mcpd_client *client)
{
    if (client == NULL)
        return;
    if (*client->guard) { /* a forked child has no such thread, and locks that may be taken */
        atomic_store(&client->closing, 1);
        mcpd_wake_signal(client->wake_fd);
        pthread_join(client->thread, NULL);
    }
    mcpd_client_unuse(client);
}

int mcpd_lost(mcpd_client *client, struct mcpd_error *why)
{
    int result = mcpd_check_process(client, why);
    if (result != 0)
        return result;
    pthread_mutex_lock(&client->mutex);
    result = client->over;
    if (result && why != NULL)
        *why = client->why;
    pthread_mutex_unlock(&client->mutex);
    return result;
}

uint64_t mcpd_session(const mcpd_client *client)
{
    return client->session;
}

int mcpd_daemon_pid(const mcpd_client *client)
{
    return (int)client->daemon_pid;
}
