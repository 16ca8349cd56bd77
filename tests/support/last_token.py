"""For tests: a proposer of vLLM's method custom_class, which drafts the last token k times."""

from typing import Any


class LastToken:
    def __init__(self, vllm_config: Any) -> None:
        self._k = vllm_config.speculative_config.num_speculative_tokens

    def load_model(self, *_: Any, **__: Any) -> None:
        pass

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        return [[sampled[-1]] * self._k if sampled else [] for sampled in sampled_token_ids]
