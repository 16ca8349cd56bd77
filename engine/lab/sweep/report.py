"""The summary of a sweep, from its cells: what run.json holds, and page and report draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..summary import Cell as TableCell
from ..summary import Gate, Kind, Plot, Series, Summary, Table
from .analysis import TRUNCATION_MARK, failures, formula, same_text, seeds_formula, words
from .cells import PLAIN, Cell
from .found import RECOMMENDED, UNCONFIRMED, Asked, At, analyse, verdict
from .recommend import EQUAL, Choice
from .table import shown

TITLE = "Sweep of k"

DEFINITIONS = {
    "k": "Draft tokens of a verify step.",
    "R": "Time per token of plain decoding over that of k, after the first token, of the same prompts in the same "
    "round; geometric mean over rounds with a 95 % t interval. A first token counts as no later than the median of its "
    "round, as events that something holds up come all at once.",
    "true_ar": "Plain decoding by an engine that never speculates.",
    "spec_disabled": "Plain decoding by the engine under test, asked not to draft; its draft model may still run.",
    "p": "Accepted / drafted tokens; it falls as k grows. Per token: accepted / judged tokens, comparable across k.",
    "truncation rate": "Verify steps whose draft was cut / all; above 35 % the overhead eats half the gain, says the "
    "team whose account this product began with.",
    "c": "What one more draft token adds to a step, in steps of plain decoding: draft step and verification.",
}


def summary(
    cells: Sequence[Cell],
    asked: Asked,
    table: Sequence[Sequence[int]] | None,
    files: Mapping[str, str],
) -> Summary:
    """`table` as `table.ranges` has it, None where there is none to write; `files` by what they are called."""
    found = analyse(cells, asked)
    result = verdict(found)
    return Summary(
        f"{TITLE} at {', '.join(map(str, asked.concurrencies))} in flight",
        result,
        [*_reasons(found, asked, result, table), *asked.notes, *_remarks(cells, found, asked)],
        list(_gates(found, asked)),
        [*_tables(found, asked, table)],
        [*_plots(found, asked)],
        dict(files),
    )


# ---- sentences


def _reasons(found: Sequence[At], asked: Asked, result: str, table: Sequence[Sequence[int]] | None) -> list[str]:
    reasons = []
    if result in (RECOMMENDED, UNCONFIRMED):
        reasons.append(in_short(found))
    if result == UNCONFIRMED:
        reasons.append(
            "No second run with other prompts has confirmed it: "
            + ("that did not come to its end; go on by --resume." if asked.confirm else "--no-confirm left it out.")
        )
    if table is not None:
        reasons.append(f"The engine's table of draft tokens by batch size: {shown(table)}.")
    for at in found:
        if at.choice is None:
            reasons.append(
                f"At {at.concurrency} in flight no round has figures to compare: look for failures in the table of ks."
            )
            continue
        reasons.append(_chosen(at, at.choice, asked.baseline))
    for at in found:
        if at.choice is not None and at.choice.k and at.neighbours:
            beside = "; ".join(each.words(at.choice.k) for each in at.neighbours)
            r = f" R was {words(at.confirmed_r)} there." if at.confirmed_r is not None else ""
            if at.choice.gain and not at.gains:
                r += " That is no sure gain."
            reasons.append(f"Confirmation at {at.concurrency} in flight, with other prompts: {beside}.{r}")
    return reasons


def in_short(found: Sequence[At]) -> str:
    """As `k=10; k=9 not told apart.`"""
    several = len(found) > 1
    said = []
    for at in found:
        k = "plain decoding" if at.choice is None or not at.choice.k else f"k={at.choice.k}"
        untold = f"; k={', '.join(map(str, at.untold))} not told apart" if at.untold else ""
        said.append(f"{at.concurrency} in flight: {k}{untold}." if several else f"{k}{untold}.")
    return " ".join(said)


def _chosen(at: At, choice: Choice, baseline: str) -> str:
    r = words(choice.r)
    where = f"At {at.concurrency} in flight"
    if choice.k == PLAIN:
        sure = "wins" if choice.gain is False else "is not beaten"
        return f"{where} plain decoding ({baseline}) {sure}: with the best k, {choice.best}, R is {r}."
    words_ = f"{where} k={choice.k} is recommended: R is {r} against plain decoding ({baseline})"
    if choice.gain is None:
        words_ += ", an interval that holds no gain at all as well"
    if choice.as_good:
        words_ += f"; these rounds do not tell k={', '.join(map(str, choice.as_good))} apart from it, which is the "
        words_ += f"smallest within {EQUAL:.0%} of the best by accepted lengths and the line of step times"
    return words_ + "."


def _remarks(cells: Sequence[Cell], found: Sequence[At], asked: Asked) -> list[str]:
    remarks = []
    for at in found:
        last = max(block.round for block in at.blocks) + 1
        told = [f"k={k} after round {number + 1}" for k, number in at.race.dropped.items()]
        over = f" It was over after round {last}: {at.race.over}." if at.race.over else ""
        if told or over:
            gone = f" dropped as surely slower: {', '.join(told)}." if told else ""
            remarks.append(f"At {at.concurrency} in flight,{gone or ' no k was dropped.'}{over}")
    served, saved = saving(found, asked)
    if saved > 0:
        remarks.append(
            f"Dropping and stopping early saved about {_minutes(saved)} of {_minutes(served + saved)}, which all ks "
            "would have taken to the last round."
        )
    marked = [
        f"k={at.choice.k} at {at.concurrency} in flight ({rate:.0%})"
        for at in found
        if at.choice is not None
        and at.choice.k
        and (rate := at.figures[at.choice.k].truncation) is not None
        and rate > TRUNCATION_MARK
    ]
    if marked:
        remarks.append(
            f"More than {TRUNCATION_MARK:.0%} of the verify steps are cut at {', '.join(marked)}; R, which has that "
            "cost in it, decides."
        )
    same, pairs = same_text([block for at in found for block in at.blocks])
    if pairs:
        remarks.append(f"{same / pairs:.1%} of {pairs} speculative replies have the very text of the plain one.")
    if lost := failures(cells):
        how = ", ".join(f"{name} {n}" for name, n in lost.most_common())
        remarks.append(f"{lost.total()} requests failed ({how}) and are left out, each prompt at every k of its block.")
    return remarks


def saving(found: Sequence[At], asked: Asked) -> tuple[float, float]:
    """Seconds that the rounds took, and those that all ks in all rounds would have taken more. Rounds that --minutes,
    or an interruption, left undone are not saved.
    """
    served = saved = 0.0
    for at in found:
        served += sum(block.seconds for block in at.blocks)
        for k in (PLAIN, *asked.ks):
            seconds = [block.cells[k].seconds for block in at.blocks if k in block.cells]
            if seconds:
                rounds = asked.rounds if at.race.over else len(at.blocks)
                saved += (rounds - len(seconds)) * sum(seconds) / len(seconds)
    return served, saved


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes"


def _gates(found: Sequence[At], asked: Asked) -> list[Gate]:
    gates = []
    for at in found:
        if at.choice is None:
            gates.append(
                Gate(f"gain at {at.concurrency} in flight", None, None, 1.0, "There are no rounds to compare.")
            )
            continue
        gain = f"R of k={at.choice.best} is {words(at.choice.r)}; speculation gains where it is surely above 1."
        gates.append(Gate(f"gain at {at.concurrency} in flight", at.choice.gain, at.choice.r.value, 1.0, gain))
        if not at.choice.k or not asked.confirm:
            continue
        name = f"k={at.choice.k} confirmed at {at.concurrency} in flight"
        if not at.neighbours:
            gates.append(Gate(name, None, None, None, "The confirmation did not run to its end."))
            continue
        worst = min(each.slower.value for each in at.neighbours)
        holds = not any(each.contradicts for each in at.neighbours)
        said = "; ".join(each.words(at.choice.k) for each in at.neighbours)
        told = (
            f"In other rounds with other prompts: {said}. It fails where one is surely faster by more than {EQUAL:.0%}."
        )
        gates.append(Gate(name, holds, worst, 1 / (1 + EQUAL), told))
    return gates


# ---- tables and plots


def _tables(found: Sequence[At], asked: Asked, table: Sequence[Sequence[int]] | None) -> list[Table]:
    tables = []
    if table is not None:
        rows: list[list[TableCell]] = [[first, last, k, "" if k else "plain decoding"] for first, last, k in table]
        columns = ["from batch size", "to batch size", "k", ""]
        tables.append(Table("The engine's table (num_speculative_tokens_per_batch_size)", columns, rows))
    tables.append(_choices(found, asked))
    if any(at.by_scenario for at in found):
        tables.append(_by_scenario(found))
    tables += [_by_k(at, asked) for at in found]
    rows = [[at.concurrency, at.steps.plain_ms, at.steps.a_ms, at.steps.b_ms, at.steps.c] for at in found if at.steps]
    columns = ["in flight", "plain step, ms", "a, ms", "b, ms a draft token", "c"]
    tables.append(Table("Time of a verify step, T(k) = a + b k", columns, rows))
    return tables


def _choices(found: Sequence[At], asked: Asked) -> Table:
    rows: list[list[TableCell]] = []
    for at in found:
        if at.choice is None:
            rows.append([at.concurrency, None, None, None, None, "", len(at.blocks), None])
            continue
        r = at.choice.r
        as_good = ", ".join(map(str, at.choice.as_good))
        of = at.figures[at.choice.best]
        rows.append([at.concurrency, at.choice.k, r.value, r.low, r.high, as_good, len(at.blocks), of.throughput])
    columns = ["in flight", "k", "R", "R, low", "R, high", "not told from it", "rounds", "tokens/s at the best k"]
    return Table(f"Recommended k by concurrency, mixed traffic (plain decoding: {asked.baseline})", columns, rows)


def _by_scenario(found: Sequence[At]) -> Table:
    rows: list[list[TableCell]] = []
    for at in found:
        for name, choice in at.by_scenario.items():
            if choice is None:
                rows.append([name, at.concurrency, *[None] * 9])
                continue
            of = at.scenario_figures[name][choice.best]
            r = choice.r
            as_good = ", ".join(map(str, choice.as_good))
            rows.append(
                [
                    name,
                    at.concurrency,
                    choice.k,
                    r.value,
                    r.low,
                    r.high,
                    as_good,
                    of.p,
                    of.p_per_token,
                    of.length,
                    of.truncation,
                ]
            )
    rows.sort(key=lambda row: (str(row[0]), int(row[1] or 0)))
    worst = {name: min((row[3] or 0.0) for row in rows if row[0] == name) for name in {row[0] for row in rows}}
    rows.sort(key=lambda row: worst[row[0]])
    columns = ["scenario", "in flight", "k", "R", "R, low", "R, high", "not told from it"]
    columns += ["p", "p per token", "mean acceptance length", "truncation rate"]
    return Table("Recommended k by scenario, weakest gain first (an engine has one k for a batch)", columns, rows)


def _by_k(at: At, asked: Asked) -> Table:
    rows: list[list[TableCell]] = []
    c = at.steps.c if at.steps else None
    for k, of in at.figures.items():
        gone = at.race.dropped.get(k)
        rows.append(
            [
                k or "plain",
                of.rounds,
                *((of.r.value, of.r.low, of.r.high) if of.r else (None, None, None)),
                seeds_formula(k, of.p) if k else None,
                formula(k, of.p_per_token, c) if k else None,
                of.p,
                of.p_per_token,
                of.length,
                of.truncation,
                None if of.truncation is None else of.truncation > TRUNCATION_MARK,
                of.step_ms,
                of.p95_ms,
                of.throughput,
                "" if gone is None else gone + 1,
            ]
        )
    columns = ["k", "rounds", "R", "R, low", "R, high", "1+(k-1)p", "by p and c", "p", "p per token"]
    columns += ["mean acceptance length", "truncation rate", f"above {TRUNCATION_MARK:.0%}", "step, ms"]
    columns += ["p95 latency, ms", "tokens/s", "dropped after round"]
    return Table(f"All ks at {at.concurrency} in flight", columns, rows)


def _plots(found: Sequence[At], asked: Asked) -> list[Plot]:
    plots = []
    ks = list(asked.ks)
    for at in found:
        c = at.steps.c if at.steps else None
        of = at.figures
        estimates = [of[k].r for k in ks]
        series = [
            Series(
                "R measured",
                [each.value if each else None for each in estimates],
                [each.low if each else None for each in estimates],
                [each.high if each else None for each in estimates],
            ),
            Series("1+(k-1)p", [seeds_formula(k, of[k].p) for k in ks]),
            Series("(1-p^(k+1))/(1-p)/(1+kc), p per token", [formula(k, of[k].p_per_token, c) for k in ks]),
        ]
        title = f"Speed-up by k at {at.concurrency} in flight"
        plots.append(Plot(title, Kind.LINES, [*ks], series, "k", "times plain decoding", 1.0))
    for at in found:
        if at.by_scenario:
            series = [
                Series(name, [each.value if (each := of[k].r) else None for k in ks])
                for name, of in at.scenario_figures.items()
            ]
            title = f"Speed-up by scenario and k at {at.concurrency} in flight"
            plots.append(Plot(title, Kind.HEAT, [*ks], series, "k", "times plain decoding"))
    rates = [Series(f"{at.concurrency} in flight", [at.figures[k].truncation for k in ks]) for at in found]
    if rates:
        title = "Truncation rate by k"
        plots.append(Plot(title, Kind.LINES, [*ks], rates, "k", "cut steps / steps", TRUNCATION_MARK))
    return plots
