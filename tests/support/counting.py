"""An engine's own counters, as vLLM's /metrics tells them, under a test's control."""

from collections.abc import Sequence


class Counting:
    """What is public may be changed any time; `text` is what /metrics says then."""

    def __init__(self, engines: int = 1, positions: int = 4) -> None:
        self.engines = [_Engine(positions) for _ in range(engines)]
        self.running = 0
        self.waiting = 0
        #: When the process began; None: several processes count together.
        self.started: float | None = 1_790_000_000.25
        self.total = "_total"
        self.model = "m"
        #: Whether there are counters of speculation, and counters at all.
        self.speculates = True
        self.stats = True

    def step(self, accepted: Sequence[int], drafted: int = 4, engine: int = 0) -> None:
        """Verify steps of `drafted` tokens each, of which so many were accepted."""
        counts = self.engines[engine]
        for number in accepted:
            counts.drafts += 1
            counts.draft_tokens += drafted
            counts.accepted_tokens += number
            counts.generation_tokens += number + 1
            for place in range(number):
                counts.places[place] += 1

    def restart(self) -> None:
        """A new process: all begins at zero."""
        self.engines = [_Engine(len(each.places)) for each in self.engines]
        if self.started is not None:
            self.started += 100

    @property
    def reply(self) -> bytes:
        """Of an HTTP server."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n"
        return head % len(self.text) + self.text

    @property
    def text(self) -> bytes:
        lines = ["# HELP python_info Python platform information."]
        if self.started is not None:
            lines.append(f"process_start_time_seconds {self.started}")
        for number, counts in enumerate(self.engines if self.stats else ()):
            labels = f'engine="{number}",model_name="{self.model}"'
            samples = {"generation_tokens": counts.generation_tokens}
            if self.speculates:
                samples |= {
                    "spec_decode_num_drafts": counts.drafts,
                    "spec_decode_num_draft_tokens": counts.draft_tokens,
                    "spec_decode_num_accepted_tokens": counts.accepted_tokens,
                }
            lines += [f"vllm:{name}{self.total}{{{labels}}} {float(value)}" for name, value in samples.items()]
            lines += [f"vllm:{name}_created{{{labels}}} 1.7e+09" for name in samples]
            for place, value in enumerate(counts.places if self.speculates else ()):
                name = f"vllm:spec_decode_num_accepted_tokens_per_pos{self.total}"
                lines.append(f'{name}{{{labels},position="{place}"}} {float(value)}')
            lines += [
                f'vllm:request_success{self.total}{{{labels},finished_reason="stop"}} {float(counts.finished)}',
                f'vllm:request_success{self.total}{{{labels},finished_reason="length"}} 0.0',
                f"vllm:num_requests_running{{{labels}}} {float(self.running if number == 0 else 0)}",
                f"vllm:num_requests_waiting{{{labels}}} {float(self.waiting if number == 0 else 0)}",
                f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 7.0',
            ]
        return "\n".join([*lines, ""]).encode()


class _Engine:
    def __init__(self, positions: int) -> None:
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.generation_tokens = 0
        self.finished = 0
        self.places = [0] * positions
