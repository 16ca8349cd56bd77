"""Live alignment: tokens that have another id in the draft than in the target. Pure: no clock, no I/O.

A draft whose tokenizer moved an id is right in its own words and wrong in every one of them that the target reads: it
proposes d where the target emits e, both meaning the same text. Such a pair of ids is seen in two ways:

- *same_text*: the tokenizers say so. The pieces of d and e are equal and their ids are not, which chance cannot bring
  about: with equal tokenizers there is no such pair at all. So three sightings name the token, if they are most of
  the times that the draft was wrong or right about it (a single one may be a draft that copied its prompt).
- *neighbour*: the tokenizers are equal, or not known, but the draft's weights were trained on ids moved by one, so
  d = e ± 1. Neighbours of a BPE vocabulary are often alike, and a weak draft confuses them: of two real drafts beside
  the demo's target one said "Chester" for 89 % of the "Preston". So a pair is named after twenty sightings, at half of
  the positions where the target emitted e, and if the draft was right about e in less than 5 % of these and next to
  never with d: a draft that confuses two words still knows one of them. That last condition is the one that counts.
  With it none was named in 20,000 replies of each of the two drafts (p 0.66 and 0.73), nor in 12 times 100,000 requests
  of random guesses (Zipf, 2,048 and 150,000 tokens, p 0.4 to 0.9); the demo's moved end of turn was, at the 23rd reply.

Everything is counted from a pair's first sighting on, so that a draft that was exchanged unseen is judged as it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from .drafts import UNSEEN, Step
from .vocabulary import MOST_IDS

SAME_TEXT_COUNT, SAME_TEXT_SHARE = 3, 0.5
NEIGHBOUR_COUNT, NEIGHBOUR_SHARE, NEIGHBOUR_RIGHT = 20, 0.5, 0.05
#: Draft positions before their silence means something: a moved token that is one in a hundred then had ten chances.
ENOUGH_POSITIONS = 1000
#: A named token that the draft has right so often, and not once wrong in the old way, is not moved any more.
RIGHT_AGAIN = 20
MOST_PAIRS = 4096
#: Enough to see that the whole vocabulary is moved.
MOST_NAMED = 100


class Kind(StrEnum):
    SAME_TEXT = "same_text"
    NEIGHBOUR = "neighbour"


class State(StrEnum):
    ALIGNED = "aligned"
    MISALIGNED = "misaligned"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Moved:
    """A token that the draft knows by another id. Times are those given to `add`."""

    kind: Kind
    target_id: int
    draft_id: int
    count: int
    #: Of the positions where the target emitted the token and the draft had proposed one.
    share: float
    first_seen: float
    last_seen: float


@dataclass(slots=True)
class _Pair:
    kind: Kind
    target_id: int
    draft_id: int
    first_seen: float
    #: How often the draft was right about the target's id, wrong about it, and right with its own, before the first.
    right_before: int
    wrong_before: int
    own_right_before: int
    count: int = 0
    last_seen: float = 0.0
    right_at_last: int = 0
    named: bool = False


class Alignment:
    """Counts the verify steps of one draft beside one target."""

    def __init__(self) -> None:
        #: Rejections whose draft token is the emitted one by another id, since the start; `reset` leaves it alone.
        self.same_text_other_id = 0
        self.reset()

    def reset(self, draft_ids: Sequence[int] = (), unknown: str | None = "no engine has told its models yet") -> None:
        """Forget: another draft, or the same one beside another target.

        `draft_ids` as of `Vocabularies.draft_ids`; empty where the tokenizers are not known, and `unknown` says why.
        """
        self._draft_ids = draft_ids
        self._unknown = unknown
        self.requests = 0
        self.positions = 0
        self.rejections = 0
        #: Rejections whose draft id the engine could not see.
        self.unseen = 0
        #: Rejections where the target put a token that the tokenizers give another id in the draft.
        self.at_moved = 0
        # By target id: how often the draft was right about it, and wrong.
        self._right = array("Q")
        self._wrong = array("Q")
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._named: list[_Pair] = []

    def add(self, steps: Sequence[Step], output_tokens: int, now: float, *, goes_on: bool = False) -> list[Moved]:
        """Look at the verify steps of a reply of `output_tokens` tokens; the tokens that this named first.

        `goes_on`: the steps before these were given already, and `output_tokens` are those left. Takes 2 us a step.
        """
        self.requests += not goes_on
        right, left, named = self._right, output_tokens, []
        for drafted, emitted in steps:
            accepted = len(emitted) - 1
            if drafted and left > 0:
                for token in emitted[: min(accepted, left)]:
                    try:
                        right[token] += 1
                    except IndexError:
                        if token < MOST_IDS:
                            self._make_room(token)
                            right[token] += 1
                self.positions += min(accepted, left)
                if accepted < left and accepted < len(drafted):
                    pair = self._rejected(drafted[accepted], emitted[accepted], now)
                    if pair is not None and self._is_news(pair):
                        named.append(self._told(pair))
            left -= accepted + 1
        return named

    def _rejected(self, drafted: int, emitted: int, now: float) -> _Pair | None:
        """Count a rejection; the pair of ids that it adds to, if it may be one token."""
        if drafted < 0:
            self.unseen += 1
            return None
        if drafted == emitted or not 0 <= emitted < MOST_IDS or drafted >= MOST_IDS:
            return None
        self.positions += 1
        self.rejections += 1
        if max(drafted, emitted) >= len(self._wrong):
            self._make_room(max(drafted, emitted))
        self._wrong[emitted] += 1
        there = self._draft_ids[emitted] if emitted < len(self._draft_ids) else emitted
        self.at_moved += there not in (emitted, -1)
        if drafted == there:
            kind = Kind.SAME_TEXT
            self.same_text_other_id += 1
        elif there == emitted and -1 <= drafted - emitted <= 1:
            kind = Kind.NEIGHBOUR
        else:
            return None
        pair = self._pairs.get((drafted, emitted))
        if pair is None:
            pair = self._new_pair(kind, drafted, emitted, now)
        elif pair.named and kind is Kind.NEIGHBOUR:
            self.same_text_other_id += 1
        pair.count += 1
        pair.last_seen = now
        pair.right_at_last = self._right[emitted]
        return pair

    def _new_pair(self, kind: Kind, drafted: int, emitted: int, now: float) -> _Pair:
        if len(self._pairs) >= MOST_PAIRS:
            self._forget_rare()
        right, wrong = self._right, self._wrong
        pair = _Pair(kind, emitted, drafted, now, right[emitted], wrong[emitted] - 1, right[drafted])
        self._pairs[drafted, emitted] = pair
        return pair

    def _forget_rare(self) -> None:
        """Make room for half as many pairs; the named ones stay."""
        ranked = sorted(self._pairs.items(), key=lambda item: (item[1].named, item[1].count))
        self._pairs = dict(ranked[MOST_PAIRS // 2 :])

    def _make_room(self, token: int) -> None:
        more = token + 1 - len(self._right)
        for counts in (self._right, self._wrong):
            counts.frombytes(bytes(more * counts.itemsize))

    def _emitted(self, pair: _Pair) -> int:
        """Positions since the pair was first seen where the target emitted its token and one was proposed."""
        wrong = self._wrong[pair.target_id] - pair.wrong_before
        return self._right[pair.target_id] - pair.right_before + wrong

    def _is_news(self, pair: _Pair) -> bool:
        """Whether the pair is to be named now; it is then."""
        if pair.named or len(self._named) >= MOST_NAMED:
            return False
        emitted = self._emitted(pair)
        if pair.kind is Kind.SAME_TEXT:
            pair.named = pair.count >= SAME_TEXT_COUNT and pair.count > SAME_TEXT_SHARE * emitted
        else:
            pair.named = (
                pair.count >= NEIGHBOUR_COUNT
                and pair.count >= NEIGHBOUR_SHARE * emitted
                and self._right[pair.target_id] - pair.right_before < NEIGHBOUR_RIGHT * emitted
                and self._right[pair.draft_id] - pair.own_right_before <= NEIGHBOUR_RIGHT * pair.count
            )
            self.same_text_other_id += pair.count if pair.named else 0
        if pair.named:
            self._named.append(pair)
        return pair.named

    def _told(self, pair: _Pair) -> Moved:
        share = min(1.0, pair.count / self._emitted(pair))
        return Moved(pair.kind, pair.target_id, pair.draft_id, pair.count, share, pair.first_seen, pair.last_seen)

    def moved(self) -> list[Moved]:
        """The tokens named, most frequent first, but for those that the draft has right again."""
        right = self._right
        held = [pair for pair in self._named if right[pair.target_id] - pair.right_at_last < RIGHT_AGAIN]
        return [self._told(pair) for pair in sorted(held, key=lambda pair: -pair.count)]

    def state(self) -> tuple[State, str]:
        """What is known by now, and why."""
        if count := len(self.moved()):
            tokens = "1 token has" if count == 1 else f"{count} tokens have"
            return State.MISALIGNED, f"{tokens} another id in the draft than in the target"
        if self._unknown is not None:
            return State.UNKNOWN, self._unknown
        if self.positions < ENOUGH_POSITIONS:
            if self.unseen:
                return State.UNKNOWN, UNSEEN
            return State.UNKNOWN, f"{self.positions} draft positions were looked at, {ENOUGH_POSITIONS} are needed"
        return State.ALIGNED, f"none of {self.rejections} rejected draft tokens was the target's own by another id"
