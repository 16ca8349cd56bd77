from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.lab.self_draft.layers import LayersError, Stack, has_experts, keep, lowest, picked, rename, stack

BASE = {"model_type": "llama", "num_hidden_layers": 4}


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{layer}.mlp.weight" for layer in range(count)]


STACKS: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "llama": (BASE, ["model.embed_tokens.weight", *names("model.layers.", 4)], "model.layers."),
    "experts": (
        BASE,
        [f"model.layers.{i}.mlp.experts.{e}.w1.weight" for i in range(4) for e in range(8)],
        "model.layers.",
    ),
    "gpt-2": ({"n_layer": 4}, names("transformer.h.", 4), "transformer.h."),
    "gpt-2 without its head": ({"n_layer": 4}, names("h.", 4), "h."),
    "gpt-neox": (BASE, names("gpt_neox.layers.", 4), "gpt_neox.layers."),
    "several media": (
        {"text_config": {"num_hidden_layers": 4}, "vision_config": {"num_hidden_layers": 4}},
        [*names("model.language_model.layers.", 4), *names("model.visual.blocks.", 4)],
        "model.language_model.layers.",
    ),
    "a tower of vision": (
        {"text_config": {"num_hidden_layers": 4}},
        [*names("language_model.model.layers.", 4), *names("vision_tower.vision_model.encoder.layers.", 4)],
        "language_model.model.layers.",
    ),
    "a further head": (BASE | {"num_nextn_predict_layers": 1}, names("model.layers.", 5), "model.layers."),
}


@pytest.mark.parametrize("name", STACKS)
def test_the_one_family_of_layers_is_found(name: str) -> None:
    config, there, prefix = STACKS[name]
    assert stack(config, there) == Stack(prefix, 4)


REFUSED: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "encoder and decoder": (BASE | {"is_encoder_decoder": True}, [], "an encoder with a decoder"),
    "no number": ({"model_type": "llama"}, names("model.layers.", 4), "does not say how many layers"),
    "a number that is none": ({"num_hidden_layers": True}, names("model.layers.", 1), "does not say how many layers"),
    "another number": (
        BASE,
        names("model.layers.", 3),
        "no family of tensors has as many; there are: model.layers.N (3)",
    ),
    "a layer away": (
        BASE,
        [n for n in names("model.layers.", 4) if ".2." not in n],
        "no family of tensors has as many",
    ),
    "no layers": (BASE, ["weight"], "there are: none"),
    "two families": (
        BASE,
        [*names("a.layers.", 4), *names("b.layers.", 4)],
        "several families of tensors have 4 layers",
    ),
    "a part for each layer": (BASE | {"hidden_size_per_layer_input": 256}, names("model.layers.", 4), "Gemma 3n"),
    "taken for a head": (BASE | {"model_type": "deepseek_v3"}, names("model.layers.", 4), "method mtp"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_such_layers_is_refused(name: str) -> None:
    config, there, expected = REFUSED[name]
    with pytest.raises(LayersError) as caught:
        stack(config, there)
    assert expected in str(caught.value)


@given(st.integers(0, 99), st.integers(0, 99), st.from_regex(r"[a-z_]+(\.[a-z0-9_]+){0,3}", fullmatch=True))
def test_a_layers_tensor_is_named_anew_and_keeps_the_rest(old: int, new: int, rest: str) -> None:
    family = Stack("model.layers.", 100)
    name = f"model.layers.{old}.{rest}"
    assert family.layer(name) == old
    assert family.renamed(name, new) == f"model.layers.{new}.{rest}"
    assert family.layer(family.renamed(name, new)) == new


@pytest.mark.parametrize(
    "name", ["model.norm.weight", "lm_head.weight", "model.layers.x.w", "model.layers.3", "layers.3.w"]
)
def test_other_tensors_belong_to_no_layer(name: str) -> None:
    assert Stack("model.layers.", 4).layer(name) is None


#: What a configuration of 8 layers says, by the layers kept.
KEPT: dict[str, tuple[dict[str, Any], list[int], dict[str, Any]]] = {
    "by layer": ({"layer_types": list("abcdefgh")}, [0, 2, 5], {"layer_types": ["a", "c", "f"]}),
    "by layer, of a new name": ({"window_sizes": [*range(8)]}, [0, 1], {"window_sizes": [0, 1]}),
    "of ids": ({"eos_token_id": [2] * 8, "bad_ids": [0] * 8}, [0], {"eos_token_id": [2] * 8, "bad_ids": [0] * 8}),
    "of another length": ({"mrope": [1, 2, 3]}, [0, 1], {"mrope": [1, 2, 3]}),
    "windows from a layer on": ({"max_window_layers": 4}, [0, 2, 5], {"max_window_layers": 2}),
    "dense first": ({"first_k_dense_replace": 3}, [0, 1], {"first_k_dense_replace": 2}),
    "experts to the last": ({"moe_layer_end_index": 7}, [0, 1, 2], {"moe_layer_end_index": 2}),
    "numbers of layers": ({"mlp_only_layers": [0, 5, 7]}, [0, 2, 5], {"mlp_only_layers": [0, 2]}),
    "flags of layers": ({"no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0]}, [0, 3], {"no_rope_layers": [1, 0]}),
    "no numbers": ({"mlp_only_layers": []}, [0], {"mlp_only_layers": []}),
    "enumerated": ({"moe_layers_enum": "3,4,5"}, [0, 4, 5], {"moe_layers_enum": "1,2"}),
    "drawn": ({"hybrid_override_pattern": "M-M*M-M*"}, [0, 1, 3], {"hybrid_override_pattern": "M-*"}),
    "taking turns": ({"decoder_sparse_step": 2}, [0, 1, 4, 5], {"decoder_sparse_step": 2}),
    "no turns": ({"decoder_sparse_step": 1}, [1, 2], {"decoder_sparse_step": 1}),
    "turns spelled out": ({"sliding_window_pattern": 6, "layer_types": list("abcdefgh")}, [1], {"layer_types": ["b"]}),
    "further heads": ({"num_nextn_predict_layers": 1}, [0], {"num_nextn_predict_layers": 0}),
    "shared keys and values": ({"num_kv_shared_layers": 3}, [0, 4], {"num_kv_shared_layers": 0}),
    "text of several media": (
        {"text_config": {"num_hidden_layers": 8, "layer_types": list("abcdefgh")}},
        [0, 1],
        {"text_config": {"num_hidden_layers": 2, "layer_types": ["a", "b"]}},
    ),
    "vision stays": (
        {"vision_config": {"num_hidden_layers": 8}},
        [0],
        {"vision_config": {"num_hidden_layers": 8}},
    ),
    "not quantised": (
        {"quantization_config": {"ignore": ["lm_head", "model.layers.0.a", "model.layers.5.a", "model.layers.7.a"]}},
        [0, 5],
        {"quantization_config": {"ignore": ["lm_head", "model.layers.0.a", "model.layers.1.a"]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_is_said_of_each_layer_is_said_of_those_kept(name: str) -> None:
    told, kept, expected = KEPT[name]
    config = {"num_hidden_layers": 8, "hidden_size": 8} | told
    before = repr(config)
    edited = keep(config, 8, kept)
    assert edited.pop("num_hidden_layers") == len(kept)
    assert edited.pop("hidden_size") == 8
    assert {key: edited[key] for key in expected} == expected
    assert repr(config) == before


ORDERLESS: dict[str, tuple[dict[str, Any], list[int], str]] = {
    "turns": ({"decoder_sparse_step": 2}, [0, 2], "layer 2 would be of another kind by its new number"),
    "windows by turns": ({"sliding_window_pattern": 6}, [0, 5], "sliding_window_pattern 6"),
    "shared": ({"num_kv_shared_layers": 3}, [0, 5], "its last 3 layers have no keys and values of their own"),
    "patterns": ({"quantization_config": {"ignore": [r"re:.*layers\.[0-3]\..*"]}}, [0, 2], "keep the lowest layers"),
}


@pytest.mark.parametrize("name", ORDERLESS)
def test_rules_that_the_kept_do_not_follow_are_told(name: str) -> None:
    told, kept, expected = ORDERLESS[name]
    with pytest.raises(LayersError) as caught:
        keep({"num_hidden_layers": 8} | told, 8, kept)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lm_head", "lm_head"),
        ("model.layers.4.mlp", "model.layers.1.mlp"),
        (r"re:model\.layers\.4\.mlp", r"re:model\.layers\.1\.mlp"),
        ("model.layers.3.mlp", None),
        ("model.layers.4", "model.layers.1"),
        ("model.layers.4.mlp.experts.3.w1", "model.layers.1.mlp.experts.3.w1"),
        ("vision_tower.encoder.layers.3.mlp", "vision_tower.encoder.layers.3.mlp"),
        (r"re:.*self_attn.*", r"re:.*self_attn.*"),
    ],
)
def test_names_of_layers_follow_their_numbers(text: str, expected: str | None) -> None:
    kept = {0: 0, 4: 1}
    assert rename([text], kept) == ([] if expected is None else [expected])
    assert rename({text: 3}, kept) == ({} if expected is None else {expected: 3})


@given(st.integers(2, 200))
def test_the_default_is_the_most_below_a_third_or_one(count: int) -> None:
    kept = len(lowest(None, count))
    assert kept == 1 or 3 * kept < count
    assert 3 * (kept + 1) >= count


@given(st.text("0123456789,- x", max_size=12), st.integers(1, 12))
def test_any_pick_is_ascending_and_there_or_refused(text: str, count: int) -> None:
    try:
        found = picked(text, count)
    except ValueError:
        return
    assert found == sorted(set(found))
    assert set(found) < set(range(count))


def test_experts_are_told() -> None:
    assert has_experts(BASE | {"num_local_experts": 8})
    assert not has_experts(BASE)
    assert not has_experts(BASE | {"num_experts": 1})
