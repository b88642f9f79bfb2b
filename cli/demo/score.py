"""How right detections are: recall and precision against true rectangles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

MATCH_IOU = 0.5
"""A detection is right if it has the label and at least this IoU with a rectangle not yet taken."""

Rectangle = Sequence[float]
"""x0, y0, x1, y1 in pixels."""


class Detected(Protocol):
    """What is needed of a detection: a box in source pixels, a label and a score."""

    @property
    def x0(self) -> float: ...
    @property
    def y0(self) -> float: ...
    @property
    def x1(self) -> float: ...
    @property
    def y1(self) -> float: ...
    @property
    def score(self) -> float: ...
    @property
    def label(self) -> str: ...


@dataclass
class Count:
    """What was to be found, what was said, and what of that was right."""

    truths: int = 0
    detections: int = 0
    right: int = 0

    @property
    def recall(self) -> float:
        """The part of the truths that was found; 1 if there was none."""
        return self.right / self.truths if self.truths else 1.0

    @property
    def precision(self) -> float:
        """The part of the detections that was right; 1 if there was none."""
        return self.right / self.detections if self.detections else 1.0


@dataclass
class Score:
    """Counts over frames. Labels that no true rectangle has are kept apart and judged by nobody.

    Attributes:
        classes: One count for each label with true rectangles.
        others: How often each other label was detected.
    """

    classes: dict[str, Count]
    others: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of_labels(cls, labels: Iterable[str]) -> Score:
        """A score with nothing counted, for clips whose true rectangles have these labels."""
        return cls({label: Count() for label in labels})

    @property
    def total(self) -> Count:
        """All classes together."""
        counts = self.classes.values()
        return Count(
            sum(c.truths for c in counts),
            sum(c.detections for c in counts),
            sum(c.right for c in counts),
        )

    def add(self, truth: Mapping[str, Rectangle], detections: Iterable[Detected]) -> None:
        """Counts one frame: the detections in falling order of score, each takes its rectangle.

        Args:
            truth: The frame's true rectangle of each label that is to be seen in it.
            detections: What was detected in the frame.
        """
        for label in truth:
            self.classes[label].truths += 1
        free = dict(truth)
        for detection in sorted(detections, key=lambda d: d.score, reverse=True):
            if detection.label not in self.classes:
                self.others[detection.label] += 1
                continue
            count = self.classes[detection.label]
            count.detections += 1
            box = (detection.x0, detection.y0, detection.x1, detection.y1)
            rectangle = free.get(detection.label)
            if rectangle is not None and intersection_over_union(box, rectangle) >= MATCH_IOU:
                count.right += 1
                del free[detection.label]


def intersection_over_union(a: Rectangle, b: Rectangle) -> float:
    """The area both cover over the area either covers; 0 for empty ones."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    either = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    return both / either
