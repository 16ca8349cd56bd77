"""What the draft proposed and what the target made of it, position by position. Pure; ids alone, no tokenizer.

A verify step is (draft ids d1..dk, emitted ids e1..e(a+1)): a draft ids were accepted, then came the target's own
token. A draft id of -1 is one that the engine could not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

Ids = Sequence[int]
Step = tuple[Ids, Ids]

UNSEEN = "the engine could not see the draft ids"


class Mark(StrEnum):
    ACCEPTED = "accepted"
    #: The first draft token of a step that the target did not take, beside what it put there.
    REJECTED = "rejected"
    #: Proposed behind a rejected token, and so never looked at.
    DISCARDED = "discarded"
    #: The target's own token behind a fully accepted draft.
    BONUS = "bonus"
    NOT_DRAFTED = "not_drafted"


class Position(NamedTuple):
    mark: Mark
    #: None: nothing proposed; -1: proposed, but the engine could not see it.
    draft: int | None
    #: None where the target put nothing.
    target: int | None


def positions(steps: Sequence[Step], output_tokens: int) -> Iterator[list[Position]]:
    """Each verify step of a reply, which has `output_tokens` tokens: what was emitted behind its end is left out."""
    left = output_tokens
    for drafted, emitted in steps:
        if left <= 0:
            return
        accepted = len(emitted) - 1
        # An accepted id is the emitted one, whether or not the engine saw it.
        step = [Position(Mark.ACCEPTED if drafted else Mark.NOT_DRAFTED, e if drafted else None, e) for e in emitted]
        if drafted and accepted < len(drafted):
            step[-1] = Position(Mark.REJECTED, drafted[accepted], emitted[accepted])
            if accepted < left:
                step += [Position(Mark.DISCARDED, d, None) for d in drafted[accepted + 1 :]]
        elif drafted:
            step[-1] = Position(Mark.BONUS, None, emitted[accepted])
        shown = min(left, len(emitted))
        yield step[:shown] + (step[len(emitted) :] if shown == len(emitted) else [])
        left -= shown


class Choices(NamedTuple):
    """The tokens of the draft text and of the final text, to be decoded by `Vocabularies.decode`."""

    #: (whether it is the draft's, id); None where an id could not be seen.
    draft: list[tuple[bool, int]] | None
    final: list[tuple[bool, int]]


def choices(steps: Sequence[Step], output_tokens: int) -> Choices:
    """The draft's own choice at every position of the reply, given the true text before it, and the target's.

    Where the draft proposed nothing the target's token stands for it.
    """
    draft: list[tuple[bool, int]] | None = []
    final: list[tuple[bool, int]] = []
    for step in positions(steps, output_tokens):
        for each in step:
            if each.target is None:
                continue
            final.append((False, each.target))
            if each.draft == -1:
                draft = None
            elif draft is not None:
                draft.append((False, each.target) if each.draft is None else (True, each.draft))
    return Choices(draft, final)
