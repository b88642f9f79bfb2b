"""What can be planted into the model, and which configuration sees it under which memory.

None: nothing sees it there, because the order is stronger than that memory needs; `why` says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Weakening:
    name: str
    what: str
    tso: str | None
    views: str | None
    why: str = ""
    unseen_in: str = "latest"
    """Where `make verify` looks at it all the same, under a memory that sees nothing."""


TSO_LOADS = "x86 keeps loads in order, so a seq_cst load is a plain one there"
TSO_STORES = "x86 keeps stores in order, and a release store is a plain one there"
TSO_LOCKED = "every read-modify-write of x86 is a full barrier, whatever its order"
LATER = "what comes later carries it: whoever looks at the frame has acquired head"

WEAKENINGS = (
    Weakening("PIN_STORE", "pin: a release store instead of an exchange", "pin", "pin"),
    Weakening("RECHECK_SKIPPED", "pin: the state is not looked at again", "pin", "pin"),
    Weakening(
        "RECHECK_ACQUIRE",
        "pin: the second look is acquire",
        None,
        "pin",
        TSO_LOADS,
        unseen_in="pin_two",
    ),
    Weakening(
        "RECHECK_RELAXED",
        "pin: the second look is relaxed",
        None,
        "pin",
        TSO_LOADS,
        unseen_in="pin_two",
    ),
    Weakening("RECHECK_EARLY", "pin: the second look comes before the pin", "pin", "pin"),
    Weakening("RECLAIM_STORE", "reclaim: a release store instead of an exchange", "pin", "pin"),
    Weakening("SCAN_SKIPPED", "reclaim: no look at pins and claims", "pin", "pin"),
    Weakening("SCAN_EARLY", "reclaim: pins are looked at before the exchange", "pin", "pin"),
    Weakening(
        "SCAN_ACQUIRE",
        "reclaim: pins are loaded acquire",
        None,
        "pin",
        TSO_LOADS,
        unseen_in="pin_two",
    ),
    Weakening(
        "PUT_BACK_SKIPPED",
        "reclaim: a state that is kept is not put back",
        "group_returned",
        "group_returned",
    ),
    Weakening(
        "ONE_WALK",
        "acquire: what one walk over the slots does not free counts as not free",
        "admitted_two",
        None,
        "it takes two readers and five slots, which are too many states there",
    ),
    Weakening("META_LATE", "publish: bytes and metadata after head", "pin", "pin"),
    Weakening("PUBLISH_RELAXED", "publish: state, queue and head relaxed", "latest", "pin"),
    Weakening("STATE_RELAXED", "publish: the state relaxed", None, None, LATER, unseen_in="fifo"),
    Weakening(
        "QUEUE_RELAXED", "publish: the queue entry relaxed", None, None, LATER, unseen_in="fifo"
    ),
    Weakening(
        "QUEUE_LOAD_RELAXED",
        "pin: the queue entry is loaded relaxed",
        None,
        None,
        "the entry came before head, which is acquired, and the state is acquired after it",
        unseen_in="fifo",
    ),
    Weakening("HEAD_EARLY", "publish: head before state and queue", "latest", "latest"),
    Weakening("HEAD_RELEASE", "publish: head release instead of seq_cst", "latest", "latest"),
    Weakening("HEAD_LOAD_ACQUIRE", "next: head is loaded acquire", None, "latest", TSO_LOADS),
    Weakening("EPOCH_STORE", "sleep: a reader's epoch by release store", "latest", "latest"),
    Weakening("EPOCH_LOAD_ACQUIRE", "wake: the epoch is loaded acquire", None, "latest", TSO_LOADS),
    Weakening("SIGNAL_EARLY", "publish: epochs are read before head is stored", "latest", "latest"),
    Weakening("SIGNAL_SKIPPED", "publish: nobody is signalled", "latest", "latest"),
    Weakening("LOOK_SKIPPED", "sleep: no second look", "latest", "latest"),
    Weakening("DRAIN_LATE", "sleep: the eventfd is drained after the look", "latest", "latest"),
    Weakening(
        "EPOCH_BEFORE_DRAIN",
        "sleep: the epoch moves on before the drain",
        None,
        None,
        "the look that follows comes after both, and who finds something passes it on",
        "threads",
    ),
    Weakening(
        "EPOCH_KEPT",
        "sleep: for others that sleep on the handle the epoch is not renewed",
        "threads",
        "threads",
    ),
    Weakening(
        "PASS_ON_SKIPPED",
        "sleep: who found something does not wake the others of its handle",
        "threads",
        "threads",
    ),
    Weakening("UNPIN_RELAXED", "unpin: relaxed", None, "pin", TSO_STORES, unseen_in="pin_two"),
    Weakening("UNPIN_EARLY", "unpin: before the last read", "pin", "pin"),
    Weakening("CURSOR_EARLY", "pin: the cursor before the pin", "lossless", "lossless"),
    Weakening(
        "CURSOR_RELEASE",
        "pin: the cursor release instead of seq_cst",
        None,
        "lossless",
        "the unpin's exchange empties the buffer before the writer's epoch is read",
        unseen_in="lossless_batch",
    ),
    Weakening(
        "CURSOR_LOAD_RELAXED",
        "retention: cursors are loaded relaxed",
        None,
        "lossless",
        TSO_LOADS,
        unseen_in="lossless_batch",
    ),
    Weakening(
        "LOSSLESS_UNPIN_RELEASE",
        "unpin of a lossless reader: release",
        "lossless_batch",
        "lossless_batch",
    ),
    Weakening(
        "WRITER_WAKE_SKIPPED", "unpin of a lossless reader: no signal", "lossless", "lossless"
    ),
    Weakening("WRITER_LOOK_SKIPPED", "the writer's sleep: no second look", "lossless", "lossless"),
    Weakening(
        "WRITER_EPOCH_STORE",
        "the writer's sleep: its epoch by release store",
        "lossless",
        "lossless",
    ),
    Weakening("ENDED_LATE", "next: ended after head", "end", "end"),
    Weakening("END_STORE_RELEASE", "end: a release store", "end", "end"),
    Weakening("END_WAKE_SKIPPED", "end: nobody is signalled", "end", "end"),
    Weakening(
        "ENDED_LOAD_ACQUIRE",
        "next: ended is loaded acquire",
        None,
        "end",
        TSO_LOADS,
        unseen_in="end",
    ),
    Weakening(
        "FILTER_EARLY",
        "wake: what a reader wants is read before its epoch",
        None,
        None,
        "what it wants only grows: an older word wakes it for nothing",
        unseen_in="every_n",
    ),
    Weakening(
        "FILTER_SIGNALLED", "wake: who is left asleep counts as signalled", "every_n", "every_n"
    ),
    Weakening(
        "FILTER_RELAXED",
        "wake: the cursor is loaded relaxed",
        None,
        None,
        "as above, and the epoch that was read acquires it",
        unseen_in="every_n",
    ),
    Weakening("CLAIM_EXCHANGE", "claim: exchanged without a compare", "group_claim", "group_claim"),
    Weakening(
        "CLAIM_ACQ_REL",
        "claim: acquire and release instead of seq_cst",
        None,
        "group_claim",
        TSO_LOCKED,
        unseen_in="group_claim",
    ),
    Weakening(
        "CLAIM_RECHECK_SKIPPED", "claim: the state is not looked at", "group_claim", "group_claim"
    ),
    Weakening(
        "CLAIM_RECHECK_ACQUIRE",
        "claim: the state is loaded acquire",
        None,
        "group_claim",
        TSO_LOADS,
        unseen_in="group_claim",
    ),
    Weakening("CLAIM_SCAN_SKIPPED", "reclaim: no look at claims", "group_claim", "group_claim"),
    Weakening(
        "CLAIM_WITHDRAWS",
        "claim: withdrawn although the writer may put the slot back",
        "group_busy",
        "group_busy",
    ),
    Weakening("WITHDRAW_STORE", "claim: withdrawn by a store", "group_claim", "group_claim"),
    Weakening(
        "WITHDRAW_SKIPPED",
        "claim: not withdrawn",
        None,
        None,
        "a claim of a frame that has left its slot names nothing",
        unseen_in="group_waits",
    ),
    Weakening(
        "GROUP_CURSOR_EARLY", "claim: the group's cursor before the claim", "group_one", "group_one"
    ),
    Weakening(
        "GROUP_CURSOR_STORE", "claim: the group's cursor by a store", "group_cursor", "group_cursor"
    ),
    Weakening(
        "FINISH_RELAXED", "finish: relaxed", None, "group_one", TSO_LOCKED, unseen_in="group_one"
    ),
    Weakening("FINISH_WAKE_SKIPPED", "finish: no signal", "group_one", "group_one"),
    Weakening(
        "RETURNED_EARLY", "give back: `returned` before the claim", "group_idle", "group_idle"
    ),
    Weakening(
        "RETURNED_LOAD_ACQUIRE",
        "take over: `returned` is loaded acquire",
        None,
        "group_dies",
        TSO_LOADS + "; and system calls order memory, which the model does not count on",
        unseen_in="group_dies",
    ),
    Weakening(
        "UNSETTLED_SLEEPS",
        "take over: a member sleeps while the writer looks at the claim",
        "group_busy",
        "group_busy",
    ),
    Weakening(
        "STANDS_ENDED_LATE", "take over: ended after the state", "group_returned", "group_returned"
    ),
    Weakening(
        "TAKE_OVER_EXCHANGE",
        "take over: exchanged without a compare",
        "group_rivals",
        "group_rivals",
    ),
    Weakening(
        "TAKE_OVER_RECHECKS",
        "take over: what is not published then counts as lost",
        "group_returned",
        "group_returned",
    ),
    Weakening("SWEEP_SKIPPED", "sweep: none", "group_dies", "group_dies"),
    Weakening("SWEEP_NO_COUNT", "sweep: `returned` is not raised", "group_dies", "group_dies"),
    Weakening(
        "SWEEP_SETS",
        "sweep: `returned` is set to the number of returned claims",
        "group_leaves",
        "group_leaves",
    ),
    Weakening("SWEEP_WAKE_SKIPPED", "sweep: nobody is signalled", "group_dies", "group_dies"),
)
