r"""Characters of several tokens: joined where their bytes are one, and left as they are where they are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.frames.characters import Piece, join


def told(part):
    """As the API tells a token of these bytes: `Vocabulary.text`."""
    return part.decode(errors="backslashreplace")


@pytest.mark.parametrize(
    ("texts", "pieces"),
    [
        ([r"\xe4\xbd", r"\xa0"], [("", True), ("你", False)]),
        ([r" a\xe4", r"\xbd", r"\xa0\xe5", r"\xa5\xbd!"], [(" a", True), ("", True), ("你", True), ("好!", False)]),
        ([r"\xe4", "x"], [(r"\xe4", False), ("x", False)]),
        ([r"\xe4\xbd", r"\xe4\xbd", r"\xa0"], [(r"\xe4\xbd", False), ("", True), ("你", False)]),
        ([r"\xe4", None, r"\xbd\xa0"], [(r"\xe4", False), ("", False), (r"\xbd\xa0", False)]),
        ([r"\xe4\xbd"], [(r"\xe4\xbd", False)]),
        ([r"\xa0", "你"], [(r"\xa0", False), ("你", False)]),
        # The API would have told whole characters as such: somebody wrote these.
        ([r"\xe4\xbd\xa0", r"\xe4\xbd\xa0"], [(r"\xe4\xbd\xa0", False)] * 2),
        ([r"\xc0", r"\x80"], [(r"\xc0", False), (r"\x80", False)]),
        ([r"\x41", "a"], [(r"\x41", False), ("a", False)]),
    ],
)
def test_joined(texts, pieces):
    assert join(texts) == [Piece(*each) for each in pieces]


@given(st.lists(st.sampled_from("aé你😀 \n"), max_size=12).map("".join), st.randoms(use_true_random=False))
def test_a_text_cut_anywhere_is_the_text_again(text, random):
    data = text.encode()
    cuts = sorted(random.sample(range(len(data) + 1), min(len(data) + 1, 8)))
    parts = [data[i:j] for i, j in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    pieces = join([told(part) for part in parts if part])
    assert "".join(piece.text for piece in pieces) == text


@given(st.lists(st.none() | st.text(alphabet=st.sampled_from("\\xe4bda0f9 你")), max_size=8))
def test_any_texts_have_a_piece_each(texts):
    assert len(join(texts)) == len(texts)


@given(st.lists(st.binary(max_size=5), max_size=6))
def test_nothing_is_lost_of_any_bytes(parts):
    texts = [told(part) for part in parts]
    joined = "".join(piece.text for piece in join(texts))
    back = "".join(texts)
    # Each character that was put together counts as the bytes that it took.
    assert len(joined.encode(errors="surrogatepass")) <= len(back.encode(errors="surrogatepass"))
    if all("\\" not in text for text in texts):
        assert joined == back
