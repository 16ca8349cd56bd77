"""The tokenizer that the demo target and its drafts share: a byte-level BPE of 2,048 tokens.

Digits stay single, so that numbers are copied digit by digit; any Unicode text survives encode and decode,
because all 256 bytes are in the alphabet. Chat template: `<|bos|>`, then `<|role|>content<|eot|>` per
message, then `<|assistant|>` where a reply is asked for. `<|eot|>` ends a reply and is the model's eos.
"""

from __future__ import annotations

from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .dialogues import SCENARIOS, mix

VOCABULARY_SIZE: Final = 2048
BOS: Final = "<|bos|>"
EOT: Final = "<|eot|>"
PAD: Final = "<|pad|>"
ROLES: Final = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL_TOKENS: Final = (BOS, *ROLES.values(), EOT, PAD)
"""In the order of their ids, 0 to 5."""

CHAT_TEMPLATE: Final = (
    "{{ bos_token }}"
    "{%- for message in messages -%}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|eot|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)

_CORPUS_DIALOGUES: Final = 4000
_CORPUS_CHINESE_SHARE: Final = 0.4
_LONGEST_TOKEN: Final = 12
"""In characters of the byte alphabet; longer tokens would swallow whole sentences of the templates."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Trains the tokenizer (1 s of CPU); the same dialogues give the same vocabulary every time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=_LONGEST_TOKEN,
        show_progress=False,
    )
    corpus = mix("tokenizer", dict.fromkeys(SCENARIOS, 1.0), _CORPUS_DIALOGUES, _CORPUS_CHINESE_SHARE)
    tokenizer.train_from_iterator((message["content"] for item in corpus for message in item.messages), trainer)
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOT,
        pad_token=PAD,
        additional_special_tokens=list(ROLES.values()),
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped
