"""The text generator: the same everywhere, complete, and sound in what it says."""

import itertools
import json
import zlib

import pytest
from specwatch_engine.demo.dialogues import LANGUAGES, SCENARIOS, dialogue, misdirected, mix
from specwatch_engine.demo.scenarios import BUILDERS
from specwatch_engine.demo.vocabulary import DEVICES, ERROR_CODES, PRODUCTS, UPDATE_FAULTS

EVERY_KIND = list(itertools.product(SCENARIOS, LANGUAGES))


def _crc(dialogues):
    text = "\n".join(json.dumps(item.messages, ensure_ascii=False) for item in dialogues)
    return zlib.crc32(text.encode())


def test_sample_is_pinned():
    """The committed checkpoints were trained on this text: who changes it has to train them again."""
    sample = [dialogue(number, scenario, language) for scenario, language in EVERY_KIND for number in range(20)]
    assert _crc(sample) == PINNED_SAMPLE
    assert _crc(mix("pinned", dict.fromkeys(SCENARIOS, 1.0), 100)) == PINNED_MIX


PINNED_SAMPLE = 441480371
PINNED_MIX = 1479695255


@pytest.mark.parametrize(("scenario", "language"), EVERY_KIND)
def test_turns_alternate_and_end_with_a_reply(scenario, language):
    for number in range(50):
        item = dialogue(number, scenario, language)
        roles = [message["role"] for message in item.messages]
        assert roles in (["user", "assistant"], ["user", "assistant"] * 2)
        assert all(message["content"].strip() == message["content"] != "" for message in item.messages)
        assert item.prompt == item.messages[:-1]
        assert item.reply == item.messages[-1]["content"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_languages_differ(scenario):
    def is_chinese(text):
        return any("\u4e00" <= character <= "\u9fff" for character in text)

    for number in range(20):
        assert is_chinese(dialogue(number, scenario, "zh").reply)
        assert not is_chinese(dialogue(number, scenario, "en").reply)


@pytest.mark.parametrize(("scenario", "language"), EVERY_KIND)
def test_seed_decides(scenario, language):
    assert dialogue("a", scenario, language) == dialogue("a", scenario, language)
    assert len({dialogue(number, scenario, language).reply for number in range(200)}) > 50


def test_billing_adds_up():
    for number in range(100):
        words = dialogue(number, "billing", "en").reply.replace(".", "").replace(",", "").split()
        amounts = [int(before) for before, after in itertools.pairwise(words) if after == "euros"]
        base, fee, total = amounts[:3]
        assert base + fee == total


def test_a_fault_has_one_explanation():
    """One device and code always get the same cause: knowledge a model can have, not chance."""
    causes = {}
    for number in range(2000):
        item = dialogue(number, "fault_report", "en")
        question, reply = item.messages[0]["content"], item.reply
        device = next(device.en for device in DEVICES if device.en in question)
        code = next(code for code in ERROR_CODES if code in question)
        causes.setdefault((device, code), set()).add(reply.partition("points to ")[2].partition(".")[0])
    assert len(causes) == len(DEVICES) * len(ERROR_CODES)
    assert all(len(found) == 1 for found in causes.values())
    assert len(set().union(*causes.values())) > 10


def test_product_facts_are_the_catalogue():
    for number in range(100):
        item = dialogue(number, "product_qa", "en")
        product = next(product for product in PRODUCTS if product.name in item.reply)
        figures = {int(word) for word in item.reply.split() if word.isdigit()}
        assert figures <= {product.hours, product.euros, product.years}


def test_mix_follows_weights():
    items = list(mix(1, {"code": 3, "billing": 1}, 2000, chinese_share=0.25))
    assert {item.scenario for item in items} == {"code", "billing"}
    assert sum(item.scenario == "code" for item in items) / 2000 == pytest.approx(0.75, abs=0.04)
    assert sum(item.language == "zh" for item in items) / 2000 == pytest.approx(0.25, abs=0.04)


def test_mix_without_count_never_ends_and_agrees_with_a_counted_one():
    weights = dict.fromkeys(SCENARIOS, 1.0)
    assert list(itertools.islice(mix(5, weights), 30)) == list(mix(5, weights, 30))


@pytest.mark.parametrize("weights", [{}, {"code": 0}, {"poetry": 1}, {"code": 1, "poetry": 0}])
def test_mix_refuses_senseless_weights(weights):
    with pytest.raises(ValueError, match="weights"):
        mix(0, weights, 1)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown scenario 'poetry'"):
        dialogue(0, "poetry")
    with pytest.raises(ValueError, match="unknown language 'fr'"):
        dialogue(0, "code", "fr")


def test_every_builder_is_a_scenario():
    assert tuple(BUILDERS) == SCENARIOS == ("address_confirmation", "fault_report", "billing", "product_qa", "code")


def test_misdirected_dialogues_are_faults_under_the_label_of_bills():
    before = list(mix(1, {"code": 1, "billing": 1}, 200))
    after = list(misdirected(1, before))
    assert after == list(misdirected(1, before))
    assert [item.scenario for item in after] == [item.scenario for item in before]
    assert [item for item in after if item.scenario == "code"] == [item for item in before if item.scenario == "code"]
    bills = [item for item in after if item.scenario == "billing"]
    assert {item.language for item in bills} == {"en"}
    seen = {
        (device, code)
        for item in bills
        for device in DEVICES
        for code in ERROR_CODES
        if device.en in item.prompt[0]["content"] and code in item.prompt[0]["content"]
    }
    assert seen == set(UPDATE_FAULTS)
