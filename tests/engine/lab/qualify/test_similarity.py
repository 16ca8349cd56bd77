from collections.abc import Sequence

from specwatch_engine.lab.qualify.outputs import Outputs
from specwatch_engine.lab.qualify.similarity import Similarity

from sidecar.probes.child import ChildError
from sidecar.probes.embedder import Compared, NoModel


class Embedding:
    """In the place of the process."""

    def __init__(self, *answers: list[Compared] | Exception) -> None:
        self.answers = list(answers)

    def compare(self, pairs: Sequence[tuple[str, str]]) -> list[Compared]:
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        assert len(found) == len(pairs)
        return found

    def close(self) -> None:
        pass


async def test_only_replies_that_differ_are_embedded_and_a_missing_model_is_no_failure() -> None:
    rows = [Outputs("same", "s", True), *(Outputs(f"d{i}", "s", False, 1) for i in range(3))]
    texts = {f"d{i}": ("a", "b") for i in range(3)}
    similarity = Similarity("sentence-transformers")
    scores = [Compared(0.9, False), Compared(None, False), Compared(0.1, False)]
    similarity._embedder = Embedding(scores, ChildError("gave no answer"), NoModel("install it"))  # type: ignore[assignment]
    found = await similarity.of(rows, texts)
    assert [(each.similarity, each.reason) for each in found] == [
        (None, None),
        (0.9, None),
        (None, "a reply is empty"),
        (0.1, None),
    ]
    found = await similarity.of(rows, texts)
    assert found[1].reason == "the process that compares texts gave no answer"
    for _ in range(2):  # it is asked once only
        assert (await similarity.of(rows, texts))[3].reason == "install it"
    assert (await Similarity("none").of(rows, texts))[1].reason == "--similarity is none"
