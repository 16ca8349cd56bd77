"""vLLM's scheduler as far as the engine plugin uses it: scripted, with the plugin's hooks over it."""

from types import SimpleNamespace as Thing
from typing import Any

from specwatch_engine.plugin.compat.orders import order as _order
from specwatch_engine.plugin.compat.scheduler import SchedulerMixin

K = 4


class Base:
    """As much of vLLM's scheduler as the plugin uses; requests go through it as the test says."""

    def __init__(self, config: Any, table: list[int] | None = None, num_spec_tokens: int = K) -> None:
        self.vllm_config = config
        self.num_spec_tokens, self.dynamic_sd_lookup = num_spec_tokens, table
        self.max_num_running_reqs, self.use_v2_model_runner = 8, config.second_runner
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.requests: dict[str, Any] = {}
        #: What the base was called for, and the table and drafts it found then.
        self.calls: list[str] = []
        self.found: list[Any] = []
        #: What happens while a step's output is taken in: requests of the step that stop, and how many drafts count.
        self.stops: dict[str, str] = {}
        self.counts: int | None = None
        self.delays = False

    def add_request(self, request: Any) -> None:
        self.calls.append("add")
        self.requests[request.request_id] = request
        self.running.append(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        self.calls.append("schedule")
        self.found.append((self.dynamic_sd_lookup, {each.request_id: each.spec_token_ids for each in self.running}))
        return Thing(
            scheduled_spec_decode_tokens={
                each.request_id: each.spec_token_ids for each in self.running if each.spec_token_ids
            },
            num_invalid_spec_tokens=None,
        )

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self.calls.append("update")
        for name, tokens in zip(model_runner_output.req_ids, model_runner_output.sampled_token_ids, strict=False):
            request = self.requests.get(name)
            if request is None or request.reason or (request.num_stale_output_tokens and request.drop_stale_output):
                continue
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(name)
            if drafts and tokens and self.counts is None:
                self.make_spec_decoding_stats(None, num_draft_tokens=len(drafts), request_id=name)
            request.num_output_tokens += len(tokens)
            if name in self.stops:
                del tokens[1:]
                self.free(name, self.stops[name])
        return {"of": "the base"}

    def free(self, name: str, reason: str) -> None:
        request = self.requests[name]
        request.reason = reason
        self.running.remove(request)
        self._free_request(request)

    def make_spec_decoding_stats(self, stats: Any, num_draft_tokens: int, request_id: str) -> Any:
        self.calls.append("stats")

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> Any:
        if not (delay_free_blocks or self.delays):
            self._free_blocks(request)
        return "kv", "ec"

    def _free_blocks(self, request: Any) -> None:
        del self.requests[request.request_id]

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> None:
        watch = self._specwatch  # type: ignore[attr-defined]
        self.calls.append(f"reset running={reset_running_requests}, cap={watch.switch.cap}")


class Scheduler(SchedulerMixin, Base):
    pass


def config(method: str = "draft_model", **changes: Any) -> Any:
    model = Thing(model="a/model", tokenizer="a/tokenizer", is_moe=changes.pop("moe", False))
    speculative = Thing(
        method=method,
        draft_model_config=model,
        parallel_drafting=False,
        uses_draft_model=lambda: method == "draft_model",
        use_eagle=lambda: method.startswith("eagle"),
    )
    return Thing(
        speculative_config=speculative,
        parallel_config=Thing(data_parallel_index=1, data_parallel_size=changes.pop("ranks", 1)),
        model_config=model,
        second_runner=changes.pop("second_runner", False),
    )


def request(name: str, drafts: int = K, *, speculative: Any = None) -> Any:
    """One that is running; `speculative` as it came in `vllm_xargs`."""
    made = Thing(
        request_id=name,
        spec_token_ids=list(range(drafts)),
        num_prompt_tokens=7,
        num_output_tokens=0,
        num_stale_output_tokens=0,
        drop_stale_output=False,
        sampling_params=Thing(extra_args=None if speculative is None else {"speculative": speculative}),
        reason=None,
    )
    made.get_finished_reason = lambda: made.reason
    return made


def run(scheduler: Any, **sampled: list[int]) -> Any:
    """One step of the engine."""
    output = scheduler.schedule()
    emitted = Thing(req_ids=list(sampled), sampled_token_ids=list(sampled.values()))
    assert scheduler.update_from_output(output, emitted) == {"of": "the base"}
    return output


def order(scheduler: Any, **command: Any) -> Any:
    return _order(Thing(scheduler=scheduler, vllm_config=scheduler.vllm_config), command)
