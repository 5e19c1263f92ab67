/* One SEQPACKET packet is one message with its file descriptors. The only code that touches control messages.
 * Used on client sockets and on the socketpair to a worker. Nothing here blocks on a non-blocking socket;
 * nothing allocates. Every fd received is close-on-exec. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PACKET_FDS_MAX 253 /* SCM_MAX_FD: the kernel takes no more in one packet */
#define PACKET_BYTES_MAX 8192 /* header and body; larger things travel as sealed memfds */

/* Starts every packet in both directions. 16 bytes, native byte order: peers share a machine. */
struct packet_header {
    uint32_t opcode;
    uint32_t serial; /* chosen by the asker, 1..; 0 marks an event or a one-way message */
    int32_t status;  /* replies: 0 or a negative hbm_error, then the body is struct packet_refusal; requests: 0 */
    uint16_t n_fds;  /* fds in this packet */
    uint16_t more;   /* replies: 1 if another packet of the same serial follows with further fds */
};

/* Body of every reply whose status is negative. */
struct packet_refusal {
    char detail[256]; /* NUL-terminated sentence, without the what and the remedy of errors.def */
};

struct packet {
    struct packet_header header;
    unsigned char body[PACKET_BYTES_MAX - sizeof(struct packet_header)];
    size_t body_size;
    int fds[PACKET_FDS_MAX];
    unsigned n_fds; /* owned by the packet until taken: packet_close_fds */
};

/* All return 0, or: -EAGAIN (would block), -EPIPE (the peer is gone), -EPROTO (packet shorter than a header,
 * larger than PACKET_BYTES_MAX, or header.n_fds is not what came), -EMFILE (fds were cut off: MSG_CTRUNC),
 * or another -errno. After an error the packet holds no fds; after -EMFILE all the rest of it is there. */
int packet_receive(int socket, struct packet *packet);
/* The same, but the fds of a packet that is in error stay in it: to close what a stranger sent may take for ever. */
int packet_receive_keeping_fds(int socket, struct packet *packet);
/* Fills header.n_fds by itself. The fds are borrowed: the kernel takes its own references. */
int packet_send(int socket, const struct packet_header *header, const void *body, size_t body_size, const int *fds,
                unsigned n_fds);
/* Takes fd i out of the packet; -1 if there is none. The caller owns it. */
int packet_take_fd(struct packet *packet, unsigned i);
void packet_close_fds(struct packet *packet);

#ifdef __cplusplus
}
#endif
