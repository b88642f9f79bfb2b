"""Results of a frame that had one before are told, in memory that does not grow."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.shm import InvalidRequest, Repeats
from mcpd.shm.frame import FLAG_PARTIAL


@dataclass
class Made:
    """A result, as far as Repeats looks."""

    source_seq: int
    source_stream: int = 1
    flags: int = 0
    closed: bool = False

    def close(self) -> None:
        self.closed = True


def test_second_result_of_a_frame_is_dropped_and_closed() -> None:
    repeats = Repeats()
    made = [Made(1), Made(2), Made(1), Made(3), Made(2)]
    assert [one.source_seq for one in repeats.drop(made)] == [1, 2, 3]
    assert [one.closed for one in made] == [False, False, True, False, True]
    assert repeats.count == 2


def test_streams_are_told_apart_and_partial_results_belong_together() -> None:
    repeats = Repeats()
    assert not repeats.seen(Made(1, source_stream=1))
    assert not repeats.seen(Made(1, source_stream=2))
    for _ in range(3):
        assert not repeats.seen(Made(5, flags=FLAG_PARTIAL))
    assert not repeats.seen(Made(5))
    assert repeats.seen(Made(5))


@given(st.lists(st.integers(1, 40), max_size=200), st.integers(1, 30))
def test_memory_is_bounded_and_what_is_within_it_never_comes_twice(
    numbers: list[int], window: int
) -> None:
    repeats = Repeats(window)
    kept: list[int] = []
    for number in numbers:
        if not repeats.seen(Made(number)):
            assert number not in kept[-window:]
            kept.append(number)
        else:
            assert number in kept[-window:]
        assert len(repeats._known) == len(repeats._order) <= window
    assert len(kept) + repeats.count == len(numbers)


def test_threads_share_one() -> None:
    repeats = Repeats()
    kept: list[int] = []

    def take() -> None:
        kept.extend(n for n in range(1000) if not repeats.seen(Made(n)))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kept) == list(range(1000))


def test_window_below_one_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="window is 0"):
        Repeats(0)
