"""`specwatch sweep`: which number of draft tokens is fastest, by scenario and batch size.

Exit status: 0 recommended, confirmed or not; 1 no gain anywhere; 2 cannot tell, or wrong use; 130 interrupted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...launch.config import DEFAULT_MAX_NUM_SEQS, ConfigError, load
from ...launch.speculation import FIXED_LENGTH
from .. import prompts as prompt_files
from .. import report as reports
from ..progress import Say, span
from ..run import Run, State
from ..stand import Engine, StandError, same_engine
from ..stand import engine as stand_engine
from . import engine_file, plan, table
from .ahead import CONFIRMING, Pace, too_short
from .cells import PLAIN, Block, Cell, blocks_of, cell_of
from .found import CONFIRM, EXIT, RECOMMENDED, SWEEP, UNCONFIRMED, Asked, At, analyse, verdict
from .recommend import LEAST_ROUNDS, neighbours, race
from .report import DEFINITIONS, summary
from .serve import CELLS, COLD, OPT_OUT, Server

#: The largest k that is tried, and configured where the lab starts the engine.
MOST = 10
ROUNDS, CONFIRM_ROUNDS = 8, 8
CONCURRENCIES = (1, 4, 8)
TUNED, SNIPPET = "speculative_config.tuned.yaml", "speculative_config.snippet.yaml"
#: Options that a run may be gone on with that were others before.
MAY_CHANGE = frozenset(("rounds", "minutes", "confirm", "confirm_rounds", "engine", "engine_config"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the sweep")
    ks = list(range(1, MOST + 1))
    group.add_argument(
        "--k", type=_ks, default=ks, metavar=f"1-{MOST}", help="draft tokens to try, as 1-10 or 1,2,4 (default: 1-10)"
    )
    group.add_argument(
        "--concurrencies",
        "--concurrency",
        dest="concurrency",
        type=_concurrencies,
        default=list(CONCURRENCIES),
        metavar="1,4,8",
        help="requests in flight, each swept by itself (default: 1,4,8)",
    )
    group.add_argument("--rounds", type=_rounds, default=ROUNDS, help="at most so many (default: %(default)s)")
    group.add_argument("--minutes", type=_minutes, metavar="N", help="end within about so many minutes")
    group.add_argument(
        "--batch", type=int, metavar="N", help="prompts of a batch (default: three times as many as in flight)"
    )
    group.add_argument(
        "--baseline",
        choices=(OPT_OUT, COLD),
        default=OPT_OUT,
        help="plain decoding without --plain: requests that opt out under a cap of 0, as k=0 in the engine's table "
        "serves them, or the draft model not run at all (default: %(default)s)",
    )
    group.add_argument("--no-confirm", dest="confirm", action="store_false", help="without the independent second run")
    group.add_argument("--confirm-rounds", type=_rounds, default=CONFIRM_ROUNDS, help="(default: %(default)s)")
    group.add_argument("--engine-config", metavar="FILE", help="the speculative_config.yaml of the engine at --engine")


def run(args: argparse.Namespace, run: Run, say: Say) -> int:
    """Sweep, confirm, and write it all down; the exit status. Raises StandError, PromptError, ControlError."""
    try:
        reports.ready()
        return Sweep(args, run, say).go()
    except (plan.PlanError, table.TableError, ConfigError, reports.ReportError) as error:
        raise StandError(str(error)) from error


class Sweep:
    """One run, from its options and the cells that are there already."""

    def __init__(self, args: argparse.Namespace, run: Run, say: Say) -> None:
        self._args, self._run, self._say = args, run, say
        self._began = time.monotonic()
        self._cells = [_cell(row) for row in run.rows(CELLS)]
        self._before_s = sum(cell.seconds for cell in self._cells)
        self._notes: list[str] = []
        self._source = engine_file.source(args, run)
        self._max_num_seqs: int | None = load(self._source, fetched=False).max_num_seqs if self._source else None
        if self._max_num_seqs is not None and max(args.concurrency) > self._max_num_seqs:
            raise StandError(
                f"--concurrencies: {max(args.concurrency)} in flight, but {self._source} has max_num_seqs "
                f"{self._max_num_seqs}: the others would wait in line; name fewer, or raise max_num_seqs"
            )
        found = prompt_files.limited(prompt_files.read(args.prompts, say, run=run), args.max_tokens)
        if args.greedy:
            found = prompt_files.greedy(found)
        self._shares = prompt_files.shares(found)
        pool = prompt_files.sample(found, args.number, args.seed)
        sizes = {c: plan.batch_size(c, len(self._shares), args.batch) for c in args.concurrency}
        self._deal = plan.Deal(pool, self._shares, sizes, args.seed)
        if self._deal.shared and args.confirm:
            names = ", ".join(self._deal.shared)
            self._notes.append(f"The confirmation serves the sweep's own prompts of {names}: there are too few others.")

    def go(self) -> int:
        options = engine_file.options(self._args, self._source, self._run)
        self._in_table = engine_file.ks_of(options.config or self._source)
        try:
            with stand_engine(options, self._run, self._say) as engine:
                if self._cells:
                    # Its URL may be another, itself not: cells of two would be compared as if they were of one.
                    same_engine(engine, self._run.told["fingerprint"] or {})
                self._run.save(fingerprint=engine.fingerprint)
                self._on(engine)
        except KeyboardInterrupt:
            # What is there is shown, though nothing is recommended of it.
            if hasattr(self, "_asked"):
                self._run.save(summary=summary(self._cells, self._asked, None, {}))
            raise
        return self._finish()

    # ---- at the engine

    def _on(self, engine: Engine) -> None:
        ks = self._ks(engine)
        server = Server(engine, self._run, self._say, self._args.baseline)
        self._note_limits(server, engine, ks)
        self._asked = Asked(
            ks,
            self._args.concurrency,
            self._shares,
            max(ks),
            self._args.rounds,
            server.baseline,
            self._args.confirm,
            self._notes,
        )
        with self._say.waiting("a first batch warms the engine up and is thrown away"):
            took = {c: server.warm_up(self._deal.batch(0, c), c, max(ks)) for c in self._args.concurrency}
        self._warm_up = Pace({c: plain for c, (plain, _) in took.items()}, {c: other for c, (_, other) in took.items()})

        def racing(concurrency: int, blocks: Sequence[Block]) -> Sequence[int]:
            return race(blocks, ks, self._shares).served

        self._announce(ks, racing)
        self._serve(server, SWEEP, self._args.rounds, racing)
        if not self._args.confirm:
            return
        chosen = {at.concurrency: at.choice.k for at in self._found() if at.choice is not None and at.choice.k}
        most = self._asked.most
        self._serve(
            server,
            CONFIRM,
            self._args.confirm_rounds,
            lambda c, blocks: neighbours(chosen[c], most) if c in chosen else (),
        )

    def _announce(self, ks: Sequence[int], racing: plan.Left) -> None:
        """What will be done, and how long it takes; the warm-up's batches tell, until there are others."""
        args, confirm = self._args, self._args.confirm_rounds if self._args.confirm else 0
        at = ", ".join(map(str, args.concurrency))
        told = f"at most {args.rounds} rounds at {at} in flight, of {len(ks) + 1} batches each (all ks, plain decoding)"
        if confirm:
            told += f"; then at most {confirm} of {CONFIRMING + 1} to confirm"
        pace = Pace.of(self._cells, self._warm_up)
        swept, to_confirm = blocks_of(self._cells, SWEEP), self._to_confirm()
        left = plan.rounds_left(swept, args.concurrency, args.rounds, racing)
        self._say(f"{told}: about {span(pace.rounds_s(left) + pace.rounds_s(to_confirm))} at most")
        if args.minutes is None:
            return
        least = plan.rounds_left(swept, args.concurrency, LEAST_ROUNDS, racing)
        if short := too_short(self._minutes_left_s(), least, to_confirm, pace):
            self._say(f"warning: {short}")

    def _to_confirm(self) -> dict[int, tuple[int, int]]:
        """Rounds of the confirmation that are left at most, and of how many ks, by concurrency."""
        blocks, rounds = blocks_of(self._cells, CONFIRM), self._args.confirm_rounds if self._args.confirm else 0
        return plan.rounds_left(blocks, self._args.concurrency, rounds, lambda _c, _blocks: range(CONFIRMING))

    def _serve(self, server: Server, stage: str, rounds: int, left: plan.Left) -> None:
        concurrencies, seed = self._args.concurrency, self._args.seed + (stage == CONFIRM)
        blocks = blocks_of(self._cells, stage)
        title = "sweeping" if stage == SWEEP else "confirming"
        with self._say.bar(title, rounds * len(concurrencies), len(blocks)) as bar:
            while True:
                turn = plan.next_turn(blocks, concurrencies, rounds, seed, left)
                left_s = self._left_s(stage, plan.rounds_left(blocks, concurrencies, rounds, left))
                bar.advance(len(blocks) - bar.done, left_s=left_s)
                if turn is None:
                    return
                if stop := self._out_of_time(stage, turn):
                    self._notes.append(stop)
                    return
                if self._run.told["state"] == State.DONE:
                    self._run.reopen()
                bar.advance(0, _words(turn))
                batch = self._deal.batch(turn.round, turn.concurrency, held_out=stage == CONFIRM)
                self._cells += server.block(stage, turn, batch)
                blocks = blocks_of(self._cells, stage)

    def _left_s(self, stage: str, left: Mapping[int, tuple[int, int]]) -> float:
        """At most, the confirmation after a sweep too."""
        pace = Pace.of(self._cells, self._warm_up)
        found = pace.rounds_s(left)
        if stage == SWEEP:
            found += pace.rounds_s(self._to_confirm())
        return found if self._args.minutes is None else min(found, max(self._minutes_left_s(), 0.0))

    def _minutes_left_s(self) -> float:
        return float(self._args.minutes) * 60 - self._before_s - (time.monotonic() - self._began)

    def _out_of_time(self, stage: str, turn: plan.Turn) -> str:
        """A sentence where --minutes leave no time for the block, nor for the confirmation after it."""
        if self._args.minutes is None:
            return ""
        pace = Pace.of(self._cells)
        needed = pace.round_s(turn.concurrency, len(turn.order) - 1)
        if stage == SWEEP and turn.round >= LEAST_ROUNDS:
            # Not before there is something to confirm.
            needed += pace.rounds_s(self._to_confirm())
        if needed <= self._minutes_left_s():
            return ""
        what = "sweep" if stage == SWEEP else "confirmation"
        return f"The {what} ended in round {turn.round + 1} as --minutes {self._args.minutes:g} were up."

    def _ks(self, engine: Engine) -> list[int]:
        ks: list[int] = self._args.k
        most = engine.k
        if most == 0:
            raise StandError("the engine does not speculate: start it with a draft model")
        if most is None:
            # Nothing can be told of its k, nor can it be steered, which the server says.
            return ks
        possible = [k for k in ks if k <= most]
        remedy = f"start the engine with num_speculative_tokens: {max(ks)}, or have the sweep start it, by -c FILE"
        if not possible:
            raise StandError(
                f"--k: the engine is configured for {most} draft tokens, fewer than all of these: {remedy}"
            )
        if len(possible) < len(ks):
            self._notes.append(f"k above {most} was not tried, as the engine is configured for {most}: {remedy}.")
        return possible

    def _note_limits(self, server: Server, engine: Engine, ks: Sequence[int]) -> None:
        if server.soft:
            self._notes.append(
                f"The engine can only drop drafts ({server.soft}): each k took the drafting time of {engine.k} tokens, "
                "so that small ks look slower here than they would be if they were configured. Compare those by "
                "engines of their own, each with its num_speculative_tokens."
            )
            return
        lacking = [k for k in (PLAIN, *ks) if k not in (self._in_table or {engine.k})]
        if lacking and not str(engine.fingerprint.get("device") or "cpu").startswith("cpu"):
            remedy = f"raise max_num_seqs to {max(self._args.concurrency) + len(ks) + 1} at least, or try fewer ks"
            if self._args.engine is not None:
                remedy = "have the sweep start the engine, by -c FILE, which gives it a table with all of them"
            self._notes.append(
                f"vLLM may run k={', '.join(map(str, lacking))} without full CUDA graphs, so that they look slower "
                "than they are: it captures them for the ks of the table in the engine's configuration, or without a "
                f"table for its num_speculative_tokens alone. So {remedy}."
            )

    # ---- the end

    def _found(self) -> list[At]:
        return analyse(self._cells, self._asked)

    def _finish(self) -> int:
        asked = self._asked
        found = self._found()
        result = verdict(found)
        files = {"cells": f"{CELLS}.jsonl"}
        rows = self._table(found) if result in (RECOMMENDED, UNCONFIRMED) else None
        if rows is not None:
            files |= self._write_table(rows, found, result)
        least = min((len(at.blocks) for at in found), default=0)
        if least < LEAST_ROUNDS and len(asked.ks) > 1:
            self._notes.append(f"There are only {least} rounds of some: give --rounds or --minutes more.")
        drawn = summary(self._cells, asked, rows, files)
        files |= reports.write(self._run.folder, drawn, facts=self._facts(), definitions=DEFINITIONS)
        drawn = summary(self._cells, asked, rows, files)
        self._run.save(state=State.DONE, verdict=result, summary=drawn)
        self._say(" ".join([f"{drawn.title}: {result}.", *drawn.reasons[:1]]))
        for sentence in drawn.reasons[1:]:
            self._say(sentence)
        self._say("\n".join(f"{name}: {self._run.folder / file}" for name, file in files.items()))
        return EXIT[result]

    def _table(self, found: Sequence[At]) -> table.Table | None:
        """None where the engine takes no table."""
        method = (self._run.told["fingerprint"] or {}).get("method")
        if method in FIXED_LENGTH:
            self._notes.append(f"{method} takes no table by batch size: set num_speculative_tokens to the k above.")
            return None
        if self._max_num_seqs is None:
            self._max_num_seqs = max(DEFAULT_MAX_NUM_SEQS, *self._args.concurrency)
            self._notes.append(
                f"The table ends at {self._max_num_seqs}, vLLM keeps its last k beyond: name the engine's file by "
                "--engine-config to have the table written into it."
            )
        chosen = {at.concurrency: at.choice.k for at in found if at.choice is not None}
        return table.ranges(chosen, self._max_num_seqs)

    def _write_table(self, rows: table.Table, found: Sequence[At], result: str) -> dict[str, str]:
        told = [f"{at.choice.r.value:.2f} at {at.concurrency}" for at in found if at.choice is not None]
        evidence = f"{result} by run {self._run.id}, R {', '.join(told)} in flight"
        if self._source is None:
            self._run.write(SNIPPET, table.snippet(rows, evidence))
            return {"the table, for the engine's file": SNIPPET}
        try:
            path = self._run.write(TUNED, table.tuned(self._source, rows, evidence))
            load(path, fetched=False)
        except table.TableError as error:
            self._notes.append(f"{error}.")
            self._run.write(SNIPPET, table.snippet(rows, evidence))
            return {"the table, for the engine's file": SNIPPET}
        return {"the engine's file with the table": TUNED}

    def _facts(self) -> dict[str, Any]:
        told = {name: value for name, value in (self._run.told["fingerprint"] or {}).items() if value is not None}
        return told | {"plain decoding": self._asked.baseline, "prompts": self._args.prompts, "seed": self._args.seed}


def _words(turn: plan.Turn) -> str:
    ks = [str(k) for k in sorted(turn.order) if k != PLAIN]
    return f"plain decoding and k={', '.join(ks)} at {turn.concurrency} in flight"


# ---- options


def _cell(row: dict[str, Any]) -> Cell:
    try:
        return cell_of(row)
    except ValueError as error:
        raise StandError(str(error)) from error


def _listed(option: str):  # type: ignore[no-untyped-def]
    def read(text: str) -> list[int]:
        try:
            return list(plan.numbers(text, option))
        except plan.PlanError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix(f"{option}: ")) from None

    return read


_ks, _concurrencies = _listed("--k"), _listed("--concurrencies")


def _rounds(text: str) -> int:
    if not text.isdecimal() or not LEAST_ROUNDS <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"must be from {LEAST_ROUNDS} to 1000, not {text!r}: fewer decide nothing")
    return int(text)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < 1e6:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return minutes
