/* A reader's own state: its objects, what it wants next, what it has pinned. */
#ifndef SECOND_READER_H
#define SECOND_READER_H

#include "common.h"

/*
 * Not errnos. LOST: the slot has another frame now, look again. UNCONFIRMED: a pin or claim was made
 * and its step 4 found the slot not published. AGAIN: another member has the frame.
 */
enum { LOST = -10001, UNCONFIRMED = -10002, AGAIN = -10003 };

struct pinned_frame {
    bool used;
    uint64_t seq;
    uint32_t slot;
    int64_t since_ns;
    struct meta meta;
    struct description description;
};

struct second_reader {
    struct geometry g;
    struct terms terms;
    struct thinning thinning;
    struct mapping writer, payload, control, group;
    const struct writer_control *shared;
    struct reader_control *own;
    struct group_control *claims; /* of a member, else NULL */
    int wake, writer_wake;
    uint32_t writer_signalled;
    uint32_t returned_seen; /* the group's `returned` when it last looked in vain */
    uint64_t wanted;   /* the lowest number it wants; a member's is in the group's cursor */
    uint64_t untold;   /* frames that every_n leaves out, passed once a later one is pinned */
    bool unsettled;    /* a returned claim whose frame is not to be seen yet */
    int64_t due_ns;    /* publish time from which max_fps wants a frame; 0: any */
    struct pinned_frame *frames; /* max_pins of them */
};

/* The frame to look at next among those up to head for who wants none below *wanted, 0: none. */
uint64_t next_frame(uint32_t policy, uint32_t depth, uint64_t wanted, uint64_t head);
/* Index of an unused pin or -EBUSY. */
int unused_pin(const struct second_reader *r);
/* Steps 1 and 2 of pin and claim: the slot of frame t, LOST or -EBADMSG. */
int find_slot(const struct second_reader *r, uint64_t t);
const struct slot_header *header_of(const struct second_reader *r, uint32_t slot);
/* Step 5: copies the metadata into the frame and checks the copy; 0 or -EBADMSG. */
int copy_checked(struct second_reader *r, struct pinned_frame *frame);
/* Copies the description into the frame; says whether the copy makes sense. */
bool copy_description(struct second_reader *r, struct pinned_frame *frame);
/* Counts a frame that the caller gets. */
void count_received(struct second_reader *r, struct pinned_frame *frame);
/* Unpin, and wakes the writer if that is room. */
void empty_pin(struct second_reader *r, uint32_t pin);
void wake_writer(struct second_reader *r);

/* A frame for a member: the index of its pin, -EAGAIN, -EPIPE, -EBADMSG, or pin if that is an error
 * and there is a frame. */
int member_try(struct second_reader *r, int pin);
bool member_has_returned(const struct second_reader *r);
int member_finish(struct second_reader *r, const struct pinned_frame *frame);
int member_give_back(struct second_reader *r, const struct pinned_frame *frame);

#endif
