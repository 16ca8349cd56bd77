"""From evidence to judgement and picture."""

from typing import Any

import pytest
from msgspec import convert
from specwatch_engine.lab import report
from specwatch_engine.lab.limits import Limits
from specwatch_engine.lab.qualify.findings import Evidence, judged
from specwatch_engine.lab.qualify.gates import Steps, Trial, Verdict
from specwatch_engine.lab.qualify.measure import Asked
from specwatch_engine.lab.qualify.outputs import Outputs
from specwatch_engine.lab.qualify.pairs import Pair, Timed
from specwatch_engine.lab.qualify.picture import DEFINITIONS, summary
from specwatch_engine.lab.summary import Kind, read
from support.tokenizer_report import report as tokenizers

from sidecar.probes.tokenizer_check.report import Report, Severity
from sidecar.probes.tokenizer_check.report import Verdict as Aligned

ALIGNED = convert(tokenizers(verdict=Aligned.ALIGNED, severity=Severity.NONE, findings=[]), Report)
MISALIGNED = convert(tokenizers(), Report)
#: p of each scenario.
GOOD = {"billing": 0.85, "code": 0.75, "faults": 0.7}
WEAK = GOOD | {"faults": 0.3}


def asked(name: str, p: float, number: int = 60, k: int = 4) -> list[Asked]:
    rows = []
    for i in range(number):
        accepted = round(100 * (p + 0.1 * (i / number - 0.5)))
        cut = min(100 - accepted, 25)
        counts = (25, 100, accepted, k, [cut, 0, 0, 0], [25, 25 - cut, 25 - cut, 25 - cut])
        rows.append(Asked(f"{name}{i}", name, "ok", counts, None, 500.0, 50.0, 60))
    return rows


def failed(name: str, number: int) -> list[Asked]:
    return [Asked(f"{name} failed {i}", name, "timeout", None, None, None, None, None) for i in range(number)]


def trials(draft: float = 1.0) -> list[Trial]:
    return [
        Trial(f"t{i}", {1: Steps(100 + 10 * draft + i, 10), 4: Steps(100 + 40 * draft + i, 10)}, Steps(100.0 + i, 10))
        for i in range(20)
    ]


def pairs(ours: float, theirs: float = 200.0, number: int = 60, scenario: str = "code") -> list[Pair]:
    return [
        Pair(f"{scenario}{i}", scenario, 4, "spec_disabled", Timed(ours + i / 10, 9.0, 20), Timed(theirs + i, 9.0, 20))
        for i in range(number)
    ]


def replies(similar: float, *, json: bool = False) -> list[Outputs]:
    """The faults' are as similar to the plain ones as told, or break JSON, which those of billing mend."""
    rows = [Outputs(f"{name}{i}", name, True) for name in ("billing", "code") for i in range(60)]
    rows += [Outputs(f"faults{i}", "faults", False, 3, similar) for i in range(20)]
    if json:
        rows += [Outputs(f"broken{i}", "faults", False, 3, similar, json=(False, True)) for i in range(5)]
        rows += [Outputs(f"mended{i}", "billing", False, 3, similar, json=(True, False)) for i in range(5)]
    return rows


def evidence(p: dict[str, float] = GOOD, **changes: Any) -> Evidence:
    facts = {
        "url": "http://127.0.0.1:8200",
        "model": "demo",
        "target": "/models/target",
        "draft": "/models/draft_a",
        "k": 4,
        "fingerprint": {},
        "baseline": "spec_disabled",
        "plain_kind": "spec_disabled",
        "no_steps": None,
        "shares": {"billing": 0.6, "code": 0.3, "faults": 0.1},
        "sampled": 180,
    }
    plain: dict[str, Any] = {
        "facts": facts | changes.pop("facts", {}),
        "limits": Limits(),
        "asked": [row for name, each in p.items() for row in asked(name, each)],
        "trials": trials(),
        "pairs": pairs(100.0),
        "outputs": [Outputs(f"p{i}", "code", True) for i in range(30)],
        "tokenizers": ALIGNED,
    }
    return Evidence(**plain | changes)


@pytest.mark.parametrize(
    ("name", "found", "verdict", "reason"),
    [
        ("all good", evidence(), Verdict.QUALIFIED, "Certified: billing, code, faults."),
        ("weak", evidence(WEAK), Verdict.IN_PART, "faults is rejected: p is 0.299"),
        ("misaligned", evidence(tokenizers=MISALIGNED), Verdict.REJECTED, "known to the draft by another id"),
        ("too dear", evidence(trials=trials(5.0)), Verdict.REJECTED, "A draft step takes 5.00 ms, 0.4"),
        ("poor", evidence(dict.fromkeys(GOOD, 0.4)), Verdict.REJECTED, "p is 0.399"),
        ("other replies", evidence(outputs=[Outputs(f"p{i}", "code", False, 3, 0.4) for i in range(30)]),
         Verdict.REJECTED, "30 lie below 0.75"),
        ("other replies of one scenario", evidence(outputs=replies(0.3)), Verdict.IN_PART,
         ", not below 0.65. Its replies are not as good as the plain ones: 0 of 20 replies are the same"),
        ("broken JSON of one scenario", evidence(outputs=replies(0.9, json=True)), Verdict.IN_PART,
         "For 5 prompts only the plain reply is valid, for 0 only the other."),
        ("other replies of an uncertain one", evidence(outputs=replies(0.3), asked=[
            *asked("billing", 0.9), *asked("code", 0.9), *asked("faults", 0.9, 10)]), Verdict.IN_PART,
         "faults is rejected: 10 of 30 requests tell p"),
        ("no draft model", evidence(tokenizers=None), Verdict.QUALIFIED, "Certified: billing, code, faults."),
        ("other CUDA graphs", evidence(facts={"unlike": True}), Verdict.CANNOT_TELL,
         "Plain decoding may be faster than it was here"),
        ("no tokenizers", evidence(tokenizers="/m: no such folder"), Verdict.CANNOT_TELL, "They were not compared: /m"),
        ("no steps", evidence(trials=[], facts={"no_steps": "no plugin"}), Verdict.CANNOT_TELL, "No plugin."),
        ("slow", evidence(pairs=pairs(400.0)), Verdict.IN_PART, "code is rejected: p is 0.749"),
        ("no figures", evidence(asked=[Asked("a", "code", "ok", None, "no block", 1.0, 1.0, 5)]),
         Verdict.CANNOT_TELL, "1 replies tell no acceptance figures, 1 of them because: no block."),
        ("failures", evidence(asked=[*asked("billing", 0.9), Asked("a", "code", "timeout", None, None, 1, 1, 0)]),
         Verdict.IN_PART, "1 of 61 requests failed (1 timeout), and count for nothing."),
        ("nothing", evidence(asked=[], trials=[], pairs=[], outputs=[], no_pairs="no plugin"),
         Verdict.CANNOT_TELL, "were not compared with plain decoding: no plugin."),
        ("few pairs", evidence(pairs=pairs(100.0, number=10)), Verdict.QUALIFIED,
         "There is no latency ratio at concurrency 4: too few to compare"),
        ("slow, of few pairs each", evidence(pairs=[each for name in GOOD for each in pairs(400.0, 200.0, 20, name)]),
         Verdict.REJECTED, "traffic of all scenarios with few pairs, this one among them, is slower"),
        ("many failures", evidence(asked=[row for name in GOOD for row in (*asked(name, 0.9), *failed(name, 8))]),
         Verdict.CANNOT_TELL, "24 of 204 requests failed, so that p may be that of the easy ones"),
        ("replies that nothing compares", evidence(outputs=[Outputs(f"p{i}", "code", i < 9, reason="no model")
                                                            for i in range(30)]),
         Verdict.CANNOT_TELL, "could not be compared by meaning: no model."),
        ("a few replies that nothing compares", evidence(outputs=[Outputs(f"p{i}", "code", i > 9, reason="no model")
                                                                  for i in range(30)]),
         Verdict.QUALIFIED, "could not be compared by meaning: no model."),
    ],
)  # fmt: skip
def test_each_verdict_for_its_own_reason(name: str, found: Evidence, verdict: Verdict, reason: str) -> None:
    made = judged(found)
    assert made.verdict is verdict
    assert any(reason in each for each in made.reasons), made.reasons
    drawn = summary(found, made)
    assert read(drawn.json()) == drawn
    for table in drawn.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    for plot in drawn.plots:
        assert all(len(series.y) == len(plot.x) for series in plot.series)


def test_what_fails_is_said_first() -> None:
    made = judged(evidence(WEAK, tokenizers=MISALIGNED))
    assert "another id" in made.reasons[0]
    assert made.reasons[1].startswith("faults is rejected")
    words = "Not certified, although good enough by their own p: billing, code."
    assert any(reason.startswith(words) for reason in made.reasons)


def test_the_global_p_is_of_the_files_mix_and_not_of_the_sample() -> None:
    made = judged(evidence(WEAK))
    assert made.overall.p == pytest.approx(0.6 * 0.85 + 0.3 * 0.75 + 0.1 * 0.3, abs=2e-3)


def test_tables_and_plots_show_the_worst_first() -> None:
    found = evidence(WEAK)
    drawn = summary(found, judged(found), {"certificate": "certificate.json"})
    assert drawn.title == "Draft draft_a beside target"
    assert [row[0] for row in drawn.tables[0].rows] == ["faults", "code", "billing", "all, by the file's shares"]
    by_kind = {plot.kind: plot for plot in drawn.plots}
    assert by_kind[Kind.HEAT].series[0].name == "faults"
    # Of 25 steps of a request some 17 are cut at position 1; position 2 cuts none of the others.
    first, second, *_ = by_kind[Kind.HEAT].series[0].y
    assert first is not None
    assert first > 0.9
    assert second in (0.0, None)
    assert drawn.plots[0].mark == 0.65
    assert [plot.title for plot in drawn.plots if plot.mark == 1.0] != []


def test_pages_define_the_words_they_use() -> None:
    found = evidence(WEAK)
    drawn = summary(found, judged(found))
    columns = {column for table in drawn.tables for column in table.columns}
    assert {"p", "p per token"} <= columns & DEFINITIONS.keys()
    assert any(column.startswith("mean acceptance length") for column in columns)
    assert report.tone(judged(found).verdict) == "middling"
