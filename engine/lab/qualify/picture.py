"""What is shown of a qualification: tables and plots, the worst scenario first. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from ..stats import Estimate
from ..summary import Cell, Kind, Plot, Series, Summary, Table
from .findings import Evidence, Judgement
from .gates import StepTimes
from .outputs import SIMILARITY, Outputs, found_of
from .pairs import Ratio

DEFINITIONS = {
    "p": "Accepted / drafted tokens of all requests (pooled), 0 to 1. It falls as k grows. The global p is that of "
    "traffic mixed as the file of prompts is, whatever the sample.",
    "p per token": "Accepted tokens / those that the target judged: the accepted ones and the first rejected one of "
    "each step. It compares across k.",
    "interval, low and high": "Where the true value lies with 95 % certainty; what is independent are the requests.",
    "mean acceptance length": "Tokens that a verify step gives: 1 + accepted tokens / verify steps.",
    "draft step": "Time of one step of the draft model, ms: how much longer a verify step takes for each token more "
    "that is drafted, at concurrency 1.",
    "target step": "Time of a step in plain decoding, ms, at concurrency 1.",
    "break-even": "p per token from which k draft tokens a step take as long as they save: p + p^2 + … + p^k = k c, "
    "with c = draft step / target step. Measured: the tokens that a step gives against T(k) / T(0), the time of a "
    "verify step against that of a plain one, which also has what c leaves out.",
    "truncation": "A verify step that rejects a draft token, at the position (1 to k) of the first one rejected.",
    "latency ratio": "p95 of the latencies with speculation / p95 of those without, of the same prompts at the same "
    "concurrency; below 1 is faster. p95 by nearest rank, of 50 requests a side at least.",
    "time per token ratio": "Latency / completion tokens with speculation against the same without, prompt by prompt; "
    "their geometric mean. Below 1 is faster.",
    "true_ar, spec_disabled": "What plain decoding was: that of an engine which never speculates, or that of the same "
    "engine, which was asked not to. They are never mixed.",
    "similarity": "Cosine of the embeddings of two replies, 1 where they are the same to the letter.",
    "certified, rejected, uncertain": "Certified: the interval of the scenario's p does not lie below the limit, not "
    "even in part, and it is not known to be slower than plain decoding. Rejected: the interval lies below, or it is "
    "slower, or its replies are not as good. Uncertain: neither can be told.",
}


def summary(evidence: Evidence, made: Judgement, files: Mapping[str, str] = {}) -> Summary:
    facts = evidence.facts
    return Summary(
        f"Draft {_name(facts['draft'])} beside {_name(facts['target'] or facts['model'])}",
        made.verdict.value,
        made.reasons,
        made.gates,
        [*_scenario_tables(made), *_latency_tables(made), *_step_tables(made), *_output_tables(evidence)],
        [*_scenario_plots(evidence, made), *_latency_plots(made)],
        dict(files),
    )


def _name(model: str | None) -> str:
    return PurePath(model).name if model else "not told"


def _scenario_tables(made: Judgement) -> list[Table]:
    columns = [
        "scenario",
        "standing",
        "requests",
        "share of the file",
        "p",
        "low",
        "high",
        "p per token",
        "mean acceptance length, tokens",
    ]
    rows: list[list[Cell]] = []
    for each in made.scenarios:
        found = each.figures
        rows.append(
            [
                each.name,
                "good enough" if each.certified and not made.verdict.certifies else each.standing.value,
                found.requests,
                each.share,
                found.p,
                found.low,
                found.high,
                found.p_per_token,
                found.mean_acceptance_length,
            ]
        )
    every = made.overall
    rows.append(["all, by the file's shares", None, every.requests, 1.0, every.p, every.low, every.high])
    rows[-1] += [every.p_per_token, every.mean_acceptance_length]
    return [Table("Scenarios, the worst first", columns, rows)]


def _latency_tables(made: Judgement) -> list[Table]:
    tables = []
    columns = [
        "concurrency",
        "plain decoding",
        "pairs",
        "p95 with speculation, ms",
        "p95 without, ms",
        "ratio of p95",
        "low",
        "high",
        "ratio of time per token",
        "low ",
        "high ",
    ]
    if made.ratios:
        told = [[each.concurrency, *_ratio_cells(each)] for each in made.ratios]
        tables.append(Table("Latency with speculation and without, by concurrency", columns, told))
    slow_first = sorted(
        (each for each in made.scenarios if each.latency is not None and each.latency.scenario is not None),
        key=lambda each: -((each.latency.ratio or 0.0) if each.latency else 0.0),
    )
    rows = [[each.name, each.latency.concurrency, *_ratio_cells(each.latency)] for each in slow_first if each.latency]
    if rows:
        tables.append(Table("Latency by scenario, the slowest first", ["scenario", *columns], rows))
    return tables


def _ratio_cells(each: Ratio) -> list[Cell]:
    per_token = each.per_token or Estimate(float("nan"), None, None, 0)
    return [
        each.baseline,
        each.pairs,
        each.speculative_p95_ms,
        each.baseline_p95_ms,
        each.ratio,
        each.low,
        each.high,
        None if each.per_token is None else per_token.value,
        per_token.low,
        per_token.high,
    ]


def _step_tables(made: Judgement) -> list[Table]:
    times, tables = made.steps, []
    if isinstance(times, StepTimes):
        told: list[tuple[str, Estimate | None]] = [("plain step, T(0)", times.plain)]
        told += [(f"verify step of {k} draft tokens, T({k})", found) for k, found in times.by_k.items()]
        told.append(("draft step", times.draft))
        rows: list[list[Cell]] = [
            [name, found.value, found.low, found.high, found.number] for name, found in told if found is not None
        ]
        tables.append(Table("Step times at concurrency 1", ["step", "mean, ms", "low", "high", "prompts"], rows))
    even = made.break_even
    if even is not None:
        columns = [
            "k",
            "p per token that pays",
            "p per token measured",
            "tokens that a step must give",
            "tokens that it gives",
            "pays",
        ]
        row: list[Cell] = [even.k, even.p, even.measured, even.tokens, even.given, even.pays]
        tables.append(Table("Break-even at concurrency 1", columns, [row]))
    return tables


def _output_tables(evidence: Evidence) -> list[Table]:
    if not evidence.outputs:
        return []
    by_scenario: dict[str, list[Outputs]] = {}
    for each in evidence.outputs:
        by_scenario.setdefault(each.scenario, []).append(each)
    found = {name: found_of(pairs) for name, pairs in by_scenario.items()}
    columns = [
        "scenario",
        "pairs",
        "identical",
        "similarity of all",
        "lowest",
        f"below {SIMILARITY.warning:g}",
        f"below {SIMILARITY.critical:g}",
        "JSON valid: with, without",
        "tool calls valid: with, without",
    ]
    rows: list[list[Cell]] = [
        [
            name,
            each.pairs,
            each.identical / each.pairs,
            each.similarity,
            each.lowest,
            each.warning + each.critical,
            each.critical,
            f"{each.json.speculative}, {each.json.plain} of {each.json.pairs}" if each.json.pairs else None,
            f"{each.tools.speculative}, {each.tools.plain} of {each.tools.pairs}" if each.tools.pairs else None,
        ]
        for name, each in sorted(found.items(), key=lambda item: item[1].identical / item[1].pairs)
    ]
    # Where no prompt asks for JSON or tools, there is nothing to say of them.
    kept = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    told = [[row[i] for i in kept] for row in rows]
    return [Table("Replies with speculation and without, at temperature 0", [columns[i] for i in kept], told)]


def _scenario_plots(evidence: Evidence, made: Judgement) -> list[Plot]:
    told = [each for each in made.scenarios if each.figures.p is not None]
    plots = []
    if told:
        figures = [each.figures for each in told]
        series = Series("p", [f.p for f in figures], [f.low for f in figures], [f.high for f in figures])
        names: list[str | int | float] = [each.name for each in told]
        plots.append(
            Plot("p by scenario, with its interval", Kind.BARS, names, [series], "scenario", "p", evidence.limits.p)
        )
    reached = {each.name: evidence.positions[each.name] for each in told}
    longest = max((len(each.reached) for each in reached.values()), default=0)
    if longest:
        rows = [
            Series(
                name,
                [_share(each.rejected_at, each.reached, i) if i < len(each.reached) else None for i in range(longest)],
            )
            for name, each in reached.items()
        ]
        plots.append(
            Plot(
                "Truncation by position: of the steps that came so far, the share that was cut there",
                Kind.HEAT,
                list(range(1, longest + 1)),
                rows,
                "position in the draft",
                "share cut",
            )
        )
    return plots


def _share(rejected_at: Sequence[int], reached: Sequence[int], i: int) -> float | None:
    return rejected_at[i] / reached[i] if reached[i] else None


def _latency_plots(made: Judgement) -> list[Plot]:
    told = [each for each in made.ratios if each.ratio is not None]
    if not told:
        return []
    per_token = [each.per_token for each in told]
    return [
        Plot(
            f"Time with speculation / time without ({told[0].baseline}): below 1 is faster",
            Kind.BARS,
            [each.concurrency for each in told],
            [
                Series("p95 latency", [e.ratio for e in told], [e.low for e in told], [e.high for e in told]),
                Series(
                    "time per token",
                    [None if e is None else e.value for e in per_token],
                    [None if e is None else e.low for e in per_token],
                    [None if e is None else e.high for e in per_token],
                ),
            ],
            "concurrency",
            "ratio",
            1.0,
        )
    ]
