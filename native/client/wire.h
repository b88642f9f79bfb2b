/*
 * The control protocol's bytes over a Unix socket: messages with a length before them, descriptors
 * that ride on their first byte. No policy; never blocks; raises no signal.
 */
#ifndef MCPD_WIRE_H
#define MCPD_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "mcpd_client.h"
#include "msgpack.h"

#define MCPD_MAX_FDS 8
#define MCPD_MAX_MESSAGE 65536u
#define MCPD_LENGTH_NBYTES 4u
#define MCPD_OUTBOUND_NBYTES (1u << 20) /* most that may wait for a daemon that does not read */
#define MCPD_REQUEST_NBYTES 8192u       /* of a message that this side sends */

/* A message to be sent: its length, then the map. */
struct mcpd_message {
    uint8_t data[MCPD_REQUEST_NBYTES];
    struct mcpd_pack pack; /* of `data` behind the length */
    size_t id_offset;      /* in data: where the eight bytes of the id are */
};

struct mcpd_socket {
    int fd;
    uint8_t *outbound; /* what the socket did not take yet */
    size_t outbound_nbytes;
    uint8_t *inbound; /* room for one message of the greatest length, at least */
    size_t inbound_nbytes;
    int fds[2 * MCPD_MAX_FDS]; /* that came with bytes not handed out yet */
    uint32_t nfds;
};

/* Where the daemon's socket is, given or by the rules; -EINVAL: no path that a socket can have. */
int mcpd_socket_path(const char *given, char *path, size_t size, struct mcpd_error *error);
/* A socket connected to the daemon at `path`. Returns its descriptor. */
int mcpd_socket_connect(const char *path, int64_t timeout_ns, struct mcpd_error *error);
/* Takes a connected socket over, even if it fails. */
int mcpd_socket_open(struct mcpd_socket *socket, int fd, struct mcpd_error *error);
void mcpd_socket_close(struct mcpd_socket *socket); /* and every descriptor still in it */

/* Sends what the socket takes and keeps the rest. -ENOBUFS: too much waits for the daemon. */
int mcpd_socket_send(struct mcpd_socket *socket, const uint8_t *data, size_t nbytes);
int mcpd_socket_flush(struct mcpd_socket *socket);
/* One read: 1 if something came, 0 if nothing, -EPIPE at the end, -EPROTO: descriptors were lost. */
int mcpd_socket_fill(struct mcpd_socket *socket);
/*
 * The next whole message: its length, and in *body where it is until the next call of take or
 * fill; 0: none yet. Its descriptors are in fds[0..*nfds), the caller's. -EPROTO: bytes that are
 * no message, or descriptors that are missing or not announced.
 */
int mcpd_socket_take(struct mcpd_socket *socket, const uint8_t **body, int fds[MCPD_MAX_FDS],
                     uint32_t *nfds);
/* Forgets the message that take gave. */
void mcpd_socket_drop(struct mcpd_socket *socket, uint32_t body_nbytes);
void mcpd_close_fds(const int *fds, uint32_t nfds); /* passes over -1 */

#endif
