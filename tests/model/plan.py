"""What the suite explores, and what is left to `make verify` because it takes longer."""

from __future__ import annotations

from tests.model.checker import names

LARGER = frozenset(
    (name, memory)
    for name, memories in {
        "admitted_two": "tso views",
        "latest_two": "views",
        "lossless_two": "tso views",
        "reader_dies": "tso views",
        "threads": "views",
        "loop_and_thread": "tso views",
        "group": "tso views",
        "group_busy": "tso views",
        "group_claim": "tso views",
        "group_cursor": "tso views",
        "group_dies": "views",
        "group_dies_gives_back": "tso views",
        "group_end": "tso views",
        "group_fifo_dies": "tso views",
        "group_gives_back": "tso views",
        "group_leaves": "tso views",
        "group_returned": "views",
        "group_waits": "tso views",
        "group_writer_dies": "tso views",
        "ONE_WALK": "tso",
        "GROUP_CURSOR_STORE": "tso views",
        "CLAIM_ACQ_REL": "views",
        "CLAIM_WITHDRAWS": "views",
        "CLAIM_RECHECK_ACQUIRE": "views",
        "CLAIM_RECHECK_SKIPPED": "views",
        "WITHDRAW_STORE": "views",
    }.items()
    for memory in memories.split()
)
"""(configuration or weakening, memory)."""

QUICK = tuple(name for name in names("configuration") if (name, "tso") not in LARGER)
