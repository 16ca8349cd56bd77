"""What a draft must keep to: the operators' guide of this project."""

import msgspec


class Limits(msgspec.Struct, frozen=True):
    p: float = 0.65
    #: Draft step / target step.
    draft_step: float = 1 / 3
