"""Faults planted in the C core, one at a time: the C tests find each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.native import c_programs
from tests.native.c_programs import ASAN, CLAIM_STEPS, CLOCK, Flavour


@dataclass(frozen=True)
class Fault:
    """`right` of native/src/`file`.c becomes `wrong`; `test` of `program` must then fail."""

    name: str
    file: str
    right: str
    wrong: str
    program: str
    test: str


FAULTS = (
    Fault(
        "claims are not looked at before a slot is reclaimed",
        "retention",
        "mcpd_writer_claimed(writer, slot->seq, index)",
        "0",
        "groups",
        "a_claim_keeps_its_frame_until_it_is_finished",
    ),
    Fault(
        "a returned claim pins nothing",
        "groups",
        "(state != MCPD_CLAIM_TAKEN && state != MCPD_CLAIM_RETURNED)",
        "state != MCPD_CLAIM_TAKEN",
        "claim_steps",
        "a_frame_returned_before_the_scan_is_put_back",
    ),
    Fault(
        "a claimed slot is not looked at again",
        "claims",
        "int result = mcpd_reader_confirm(reader, (uint32_t)slot, seq, meta), standing = 0;",
        "int result = 0, standing = 0; *meta = reader->headers[slot].meta; meta->seq = seq;",
        "claim_steps",
        "a_member_that_claims_in_mid_reclaim_leaves_the_frame_for_later",
    ),
    Fault(
        "a claim is withdrawn by a store",
        "claims",
        "return mcpd_compare_exchange_seq_cst(&reader->claims[slot], &mine, done) ? 0 : -ESTALE;",
        "(void)mine; mcpd_store_seq_cst(&reader->claims[slot], done); return 0;",
        "claim_steps",
        "a_claim_that_is_withdrawn_leaves_another_members_as_it_is",
    ),
    Fault(
        "a frame claimed while the writer looks counts as lost",
        "claims",
        "    if (standing < 0)\n        mcpd_member_let_go(",
        "    if (0)\n        mcpd_member_let_go(",
        "claim_steps",
        "a_member_that_claims_in_mid_reclaim_leaves_the_frame_for_later",
    ),
    Fault(
        "the cursor is advanced before the claim",
        "claims",
        "        int slot = claim(reader, seq, head, meta);",
        "        advance(reader, seq + 1, 1);\n        int slot = claim(reader, seq, head, meta);",
        "claim_steps",
        "a_frame_that_is_about_to_be_claimed_is_still_owed",
    ),
    Fault(
        "a frame that another has is claimed",
        "claims",
        "MCPD_TAG_SEQ(seen) >= seq ||",
        "",
        "claim_steps",
        "of_two_members_that_see_the_same_frame_one_has_it",
    ),
    Fault(
        "a returned frame that the writer looks at counts as lost",
        "claims",
        "        sched_yield();\n    }\n    return -EAGAIN;",
        "        sched_yield();\n    }\n    return 0;",
        "claim_steps",
        "a_returned_frame_that_the_writer_looks_at_is_taken_over_later",
    ),
    Fault(
        "nobody is told of what was given back",
        "claims",
        "(void)mcpd_add_seq_cst(&gctl->returned, 1);",
        "",
        "groups",
        "what_a_member_gives_back_goes_to_the_next_that_looks",
    ),
    Fault(
        "a sweep takes what is another's",
        "control",
        "&& MCPD_CLAIM_MEMBER(claim) == member",
        "",
        "groups",
        "a_sweep_returns_a_dead_members_claims_and_no_others",
    ),
    Fault(
        "a writer that waits is not told of a finished frame",
        "claims",
        "        mcpd_add_relaxed(&gctl->finished, 1);\n        mcpd_reader_made_room(reader);",
        "        mcpd_add_relaxed(&gctl->finished, 1);",
        "groups",
        "a_lossless_group_holds_the_writer_back_and_its_finishes_wake_it",
    ),
    Fault(
        "a writer that waits is not told of a cursor moved on",
        "claims",
        "    advance(reader, seq + 1, had);\n    mcpd_reader_made_room(reader);",
        "    advance(reader, seq + 1, had);",
        "groups",
        "a_cursor_that_a_dead_member_left_behind_is_moved_on",
    ),
    Fault(
        "claims hold more slots than were reckoned for them",
        "groups",
        "group->lies = 1;",
        "(void)group;",
        "group_distrust",
        "claims_that_name_anything_hold_no_more_slots_than_were_admitted",
    ),
    Fault(
        "claims are counted that stood one after the other",
        "acquire",
        "    mcpd_writer_reclaim(writer);\n    if",
        "    for (uint32_t i = 0; i < writer->ngroups; i++)\n"
        "        writer->groups[i].lies = 1;\n"
        "    mcpd_writer_reclaim(writer);\n    if",
        "claim_steps",
        "a_claim_made_while_another_is_finished_is_honoured",
    ),
    Fault(
        "a fifo reader's depth is not retained",
        "retention",
        "return owed->cursor > depth ? owed->cursor : depth;",
        "return next;",
        "policies",
        "no_more_than_its_depth_is_retained_for_a_fifo_reader_and_nothing_that_it_had",
    ),
    Fault(
        "depths are not reckoned with",
        "admission",
        "    if (kept > *retained)\n        *retained = kept;",
        "    (void)kept;\n    (void)retained;",
        "policies",
        "a_fifo_reader_is_admitted_with_its_depth",
    ),
    Fault(
        "a reader is woken for frames before its cursor",
        "admission",
        "mcpd_load_seq_cst(&reader->rctl->cursor) > seq ||",
        "",
        "thinning",
        "a_reader_of_every_tenth_frame_is_woken_for_every_tenth_frame",
    ),
    Fault(
        "a reader is not woken for the frame at its cursor",
        "admission",
        "mcpd_load_seq_cst(&reader->rctl->cursor) > seq ||",
        "mcpd_load_seq_cst(&reader->rctl->cursor) >= seq ||",
        "thinning",
        "a_reader_of_every_tenth_frame_is_woken_for_every_tenth_frame",
    ),
    Fault(
        "the end wakes only those that want the next frame",
        "writer",
        "mcpd_writer_wake_readers(writer, UINT64_MAX, INT64_MAX);",
        "mcpd_writer_wake_readers(writer, writer->head, 0);",
        "thinning",
        "a_reader_of_every_tenth_frame_is_woken_for_every_tenth_frame",
    ),
    Fault(
        "a lossless reader sleeps through frames that it has to pass over",
        "thinning",
        " && reader->policy != MCPD_LOSSLESS)",
        ")",
        "clock",
        "a_lossless_reader_with_max_fps_makes_room_by_what_it_passes_over",
    ),
    Fault(
        "a writer that waits is not told of a frame passed over",
        "take",
        "    mcpd_reader_store_wants(reader);\n    mcpd_reader_made_room(reader);\n}",
        "    mcpd_reader_store_wants(reader);\n}",
        "clock",
        "a_lossless_reader_with_max_fps_makes_room_by_what_it_passes_over",
    ),
    Fault(
        "a writer that waits is not told of frames given up",
        "take",
        "    if (gave_up || mcpd_reader_bounds(reader))\n        mcpd_reader_made_room(reader);",
        "    (void)gave_up;",
        "thinning",
        "every_n_of_a_lossless_reader_frees_the_frames_between",
    ),
    Fault(
        "max_fps counts from the frame and not from its turn",
        "thinning",
        "if (reader->due_ns == 0 || due_ns <= publish_ns)",
        "",
        "clock",
        "max_fps_is_kept_on_average_though_frames_come_unevenly",
    ),
    Fault(
        "a pin of a frame passed over is left behind",
        "take",
        "    mcpd_store_release(&reader->words[mcpd_reader_top_pin(reader)], 0);\n",
        "",
        "clock",
        "frames_past_their_deadline_are_passed_over_where_asked",
    ),
)

BY_PROGRAM = {"claim_steps": CLAIM_STEPS, "clock": CLOCK}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("c_faults")


def planted(fault: Fault) -> Flavour:
    base = BY_PROGRAM.get(fault.program, ASAN)
    name = f"fault-{FAULTS.index(fault)}"
    patch = (fault.file, fault.right, fault.wrong)
    return replace(base, name=name, patch=patch, objects="asan")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_c_tests_find_that(fault: Fault, folder: Path) -> None:
    if not c_programs.can_build(ASAN, folder):
        pytest.skip("the compiler cannot build for asan here")
    binary = c_programs.build(planted(fault), fault.program, folder)
    done = c_programs.run(binary, fault.test)
    assert done.returncode != 0, f"it was not found:\n{done.stdout}"
    assert "FAILED" in done.stdout
