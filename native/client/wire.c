/*
 * Messages and descriptors over a Unix socket (wire.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client.h"

#define INBOUND_NBYTES (MCPD_LENGTH_NBYTES + MCPD_MAX_MESSAGE)

void mcpd_close_fds(const int *fds, uint32_t nfds)
{
    for (uint32_t i = 0; i < nfds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* ---- opening ------------------------------------------------------------------------------- */

static int default_path(char *path, size_t size)
{
    const char *given = getenv("MCPD_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
    if (given != NULL && *given != 0)
        return snprintf(path, size, "%s", given);
    if (runtime != NULL && *runtime != 0)
        return snprintf(path, size, "%s/mcpd/mcpd.sock", runtime);
    if (getuid() == 0)
        return snprintf(path, size, "/run/mcpd/mcpd.sock");
    return snprintf(path, size, "/tmp/mcpd-%u/mcpd.sock", (unsigned)getuid());
}

int mcpd_socket_path(const char *given, char *path, size_t size, struct mcpd_error *error)
{
    int length = given != NULL ? snprintf(path, size, "%s", given) : default_path(path, size);
    struct sockaddr_un address;
    if (length <= 0)
        return mcpd_fail(error, "invalid", "Give a path, or set MCPD_SOCKET.",
                         "the socket's path is empty");
    if ((size_t)length >= sizeof address.sun_path || (size_t)length >= size)
        return mcpd_fail(error, "invalid", "Choose a shorter one with MCPD_SOCKET.",
                         "socket path has %d bytes, the limit is %zu: %.120s", length,
                         sizeof address.sun_path - 1, path);
    return 0;
}

static int refused(struct mcpd_error *error, const char *path, int number)
{
    if (number == EACCES || number == EPERM)
        return mcpd_fail(error, "not_permitted", "The daemon serves the user who started it.",
                         "socket %s may not be opened by uid %u", path, (unsigned)getuid());
    char text[64];
    const char *why = strerror_r(number, text, sizeof text);
    return mcpd_fail(error, "unavailable", "Start it with: mcpd start",
                     "no daemon answers on %s: %s", path, why);
}

int mcpd_socket_connect(const char *path, int64_t timeout_ns, struct mcpd_error *error)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return mcpd_fail(error, mcpd_code_of(-errno), "", "cannot make a socket: errno %d", errno);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (timeout_ns >= 0) { /* a daemon whose queue of connections is full; 0 would be for ever */
        struct timeval patience = {.tv_sec = timeout_ns / 1000000000,
                                   .tv_usec = timeout_ns % 1000000000 / 1000};
        if (patience.tv_sec == 0 && patience.tv_usec == 0)
            patience.tv_usec = 1;
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int number = errno;
    close(fd);
    return refused(error, path, number);
}

int mcpd_socket_open(struct mcpd_socket *sock, int fd, struct mcpd_error *error)
{
    memset(sock, 0, sizeof *sock);
    sock->fd = fd;
    sock->inbound = malloc(INBOUND_NBYTES);
    if (sock->inbound == NULL)
        return mcpd_fail(error, "no_memory", "", "no memory for a connection");
    int flags = fcntl(fd, F_GETFL), own = fcntl(fd, F_GETFD);
    if (flags < 0 || own < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, own | FD_CLOEXEC) != 0)
        return mcpd_fail(error, "invalid", "", "descriptor %d cannot be used: errno %d", fd, errno);
    return 0;
}

void mcpd_socket_close(struct mcpd_socket *sock)
{
    if (sock->fd >= 0)
        close(sock->fd);
    sock->fd = -1;
    mcpd_close_fds(sock->fds, sock->nfds);
    free(sock->outbound);
    free(sock->inbound);
    sock->outbound = sock->inbound = NULL;
    sock->outbound_nbytes = sock->inbound_nbytes = sock->nfds = 0;
}

/* ---- sending ------------------------------------------------------------------------------- */

int mcpd_socket_flush(struct mcpd_socket *sock)
{
    size_t done = 0;
    while (done < sock->outbound_nbytes) {
        ssize_t sent = send(sock->fd, sock->outbound + done, sock->outbound_nbytes - done,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno != EAGAIN)
            done = sock->outbound_nbytes; /* nobody reads it; what the daemon said may be there */
        if (sent <= 0)
            break;
        done += (size_t)sent;
    }
    sock->outbound_nbytes -= done;
    if (sock->outbound_nbytes > 0 && done > 0)
        memmove(sock->outbound, sock->outbound + done, sock->outbound_nbytes);
    return 0;
}

int mcpd_socket_send(struct mcpd_socket *sock, const uint8_t *data, size_t nbytes)
{
    if (nbytes > MCPD_OUTBOUND_NBYTES - sock->outbound_nbytes)
        return -ENOBUFS;
    uint8_t *grown = realloc(sock->outbound, sock->outbound_nbytes + nbytes);
    if (grown == NULL)
        return -ENOMEM;
    sock->outbound = grown;
    memcpy(sock->outbound + sock->outbound_nbytes, data, nbytes);
    sock->outbound_nbytes += nbytes;
    return mcpd_socket_flush(sock);
}

/* ---- receiving ----------------------------------------------------------------------------- */

static void keep_fds(struct mcpd_socket *sock, const struct cmsghdr *part)
{
    size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
        if (sock->nfds < sizeof sock->fds / sizeof *sock->fds)
            sock->fds[sock->nfds++] = fd;
        else
            close(fd); /* cannot be: a read brings at most 8, and as many may be left over */
    }
}

int mcpd_socket_fill(struct mcpd_socket *sock)
{
    union {
        struct cmsghdr align;
        char data[CMSG_SPACE(MCPD_MAX_FDS * sizeof(int))];
    } control;
    struct iovec into = {.iov_base = sock->inbound + sock->inbound_nbytes,
                         .iov_len = INBOUND_NBYTES - sock->inbound_nbytes};
    struct msghdr header = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control.data,
                            .msg_controllen = sizeof control.data};
    ssize_t got = recvmsg(sock->fd, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -EPIPE;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&header); part != NULL;
         part = CMSG_NXTHDR(&header, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
            keep_fds(sock, part);
    if (header.msg_flags & MSG_CTRUNC)
        return -EPROTO;
    if (got == 0)
        return -EPIPE;
    sock->inbound_nbytes += (size_t)got;
    return 1;
}

int mcpd_socket_take(struct mcpd_socket *sock, const uint8_t **body, int fds[MCPD_MAX_FDS],
                     uint32_t *nfds)
{
    *nfds = 0;
    const uint8_t *at = sock->inbound;
    uint32_t length = 0;
    if (sock->inbound_nbytes >= MCPD_LENGTH_NBYTES) {
        length = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        if (length == 0 || length > MCPD_MAX_MESSAGE)
            return -EPROTO;
    }
    if (length == 0 || sock->inbound_nbytes < MCPD_LENGTH_NBYTES + length)
        /* Descriptors come no later than their message's first byte, and a read never goes past
         * bytes that carry some: what is left over can only belong to the message begun. */
        return sock->nfds > (sock->inbound_nbytes > 0 ? MCPD_MAX_FDS : 0) ? -EPROTO : 0;
    struct mcpd_value message, type;
    uint64_t announced = 0;
    if (mcpd_unpack(at + MCPD_LENGTH_NBYTES, length, &message) != 0 ||
        mcpd_map_unsigned(&message, "fds", MCPD_MAX_FDS, &announced) != 0 ||
        !mcpd_map_find(&message, "type", &type) || type.kind != MCPD_TEXT)
        return -EPROTO;
    if (announced > sock->nfds)
        return -EPROTO;
    *nfds = (uint32_t)announced;
    sock->nfds -= *nfds;
    memcpy(fds, sock->fds, *nfds * sizeof *fds);
    memmove(sock->fds, sock->fds + *nfds, sock->nfds * sizeof *fds);
    *body = at + MCPD_LENGTH_NBYTES;
    return (int)length;
}

void mcpd_socket_drop(struct mcpd_socket *sock, uint32_t body_nbytes)
{
    size_t whole = MCPD_LENGTH_NBYTES + body_nbytes;
    sock->inbound_nbytes -= whole;
    memmove(sock->inbound, sock->inbound + whole, sock->inbound_nbytes);
}
