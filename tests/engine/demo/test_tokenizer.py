"""The shared tokenizer: lossless, with the special tokens and the chat form that the models know."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.demo.dialogues import LANGUAGES, SCENARIOS, dialogue
from specwatch_engine.demo.tokenizer import SPECIAL_TOKENS, VOCABULARY_SIZE, build_tokenizer
from specwatch_engine.demo.weights import CHECKPOINTS
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def built():
    return build_tokenizer()


@pytest.fixture(scope="module")
def shipped():
    return AutoTokenizer.from_pretrained(CHECKPOINTS / "target")


def test_built_and_shipped_are_the_same(built, shipped):
    assert built.get_vocab() == shipped.get_vocab()
    assert built.chat_template == shipped.chat_template
    text = "\n".join(dialogue(1, scenario, language).reply for scenario in SCENARIOS for language in LANGUAGES)
    assert built.encode(text) == shipped.encode(text)


def test_special_tokens(shipped):
    assert len(shipped) == VOCABULARY_SIZE
    assert shipped.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3, 4, 5]
    assert (shipped.bos_token, shipped.eos_token, shipped.pad_token) == ("<|bos|>", "<|eot|>", "<|pad|>")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_survives(text):
    tokenizer = _shipped()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def _shipped(_cache=[]):  # noqa: B006  # Hypothesis forbids fixtures that outlive an example
    if not _cache:
        _cache.append(AutoTokenizer.from_pretrained(CHECKPOINTS / "target"))
    return _cache[0]


def test_chat_form(shipped):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Bye"},
    ]
    text = shipped.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|bos|><|system|>Be brief.<|eot|><|user|>Hello<|eot|><|assistant|>Hi<|eot|><|user|>Bye<|eot|><|assistant|>"
    )
    ids = shipped.encode(text, add_special_tokens=False)
    assert (ids[0], ids[1], ids[-1], ids.count(4)) == (0, 1, 3, 4)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_replies_have_a_demo_length(shipped, scenario, language):
    """30 to 120 tokens: long enough for several verify steps, short enough for a CPU."""
    lengths = [len(shipped.encode(dialogue(number, scenario, language).messages[1]["content"])) for number in range(50)]
    assert 30 <= min(lengths) <= max(lengths) <= 120


def test_numbers_are_copied_digit_by_digit(shipped):
    assert shipped.tokenize("AC-7349")[-4:] == ["7", "3", "4", "9"]
