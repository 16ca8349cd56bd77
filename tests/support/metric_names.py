"""Which metrics there are, with which labels and bounds: the sidecar's as it renders them, vLLM's by its source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from sidecar.metrics import AlertCounts, FeedCounts, Live, Metrics
from sidecar.record import Acceptance, AcceptanceQuality, AcceptanceSource, Arm, Outcome, Record

_CLASSES = ("_counter_cls", "_gauge_cls", "_histogram_cls")

#: What Prometheus adds to each.
SCRAPE = frozenset(("job", "instance"))

_FULL = Live(
    outcomes={Outcome.OK: 1},
    refused=1,
    in_flight=1,
    tap_failures=1,
    dropped={"queue": 1},
    queue_length=1,
    database_up=True,
    acceptance_rate=0.5,
    mean_acceptance_length=2.0,
    window_requests=1,
    states={"speculative": True, "autoregressive": False, "probing": False, "ineffective": False},
    feed=FeedCounts(connected=1),
    aligned=True,
    same_text_other_id=1,
    upstreams={"speculative": True},
    similarity_dropped={"busy": 1},
    output_flags={"garble": 1},
    coverage={"speculative": 1.0},
    counter_resets={"speculative": 1},
    counter_disagreements={"speculative": 1},
    certificate_valid=True,
    latency_ratio=0.5,
    alerts=AlertCounts({("X", "critical"): 1}, {"X": True}, {("chat", "sent"): 1}),
)
_RECORD = Record(
    request_id="r",
    started_at=0.0,
    instance="i",
    upstream="speculative",
    arm=Arm.SPECULATIVE,
    endpoint="chat_completions",
    scenario="default",
    outcome=Outcome.OK,
    acceptance=Acceptance(
        source=AcceptanceSource.ENGINE,
        quality=AcceptanceQuality.OK,
        verify_steps=2,
        draft_tokens=2,
        accepted_tokens=1,
        histogram=(1, 1),
        rejected_at=(1,),
        reached=(2,),
    ),
    latency_ms=1.0,
    ttft_ms=1.0,
    tpot_ms=1.0,
)


@dataclass
class Known:
    labels: set[str]
    #: label -> the values it is seen with; of bounds, all.
    values: dict[str, set[str]] = field(default_factory=dict)


@cache
def sidecar() -> dict[str, Known]:
    """Sample name -> what is known of it."""
    metrics = Metrics(CollectorRegistry(), lambda: _FULL, upstreams=("speculative",), scenarios=("billing",))
    metrics.observe(_RECORD)
    metrics.transition("speculative", "autoregressive", "acceptance")
    known: dict[str, Known] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            entry = known.setdefault(sample.name, Known(set()))
            entry.labels |= set(sample.labels)
            for label, value in sample.labels.items():
                entry.values.setdefault(label, set()).add(value)
    return known


@cache
def vllm() -> dict[str, Known]:
    """The same of the vLLM that is installed, by its source: importing it takes seconds, its metrics an engine."""
    known: dict[str, Known] = {}
    for kind, name, labels, buckets in _made_by_vllm():
        if kind == "_counter_cls":
            known[f"{name}_total"] = Known(labels)
        elif kind == "_gauge_cls":
            known[name] = Known(labels)
        else:
            known |= {f"{name}_count": Known(labels), f"{name}_sum": Known(labels)}
            known[f"{name}_bucket"] = Known(labels | {"le"}, {"le": _bounds(buckets)})
    return known


def _folder() -> Path:
    found = find_spec("vllm")
    assert found is not None, "vLLM is not installed"
    assert found.origin is not None
    return Path(found.origin).parent / "v1"


def _made_by_vllm() -> Iterator[tuple[str, str, set[str], str]]:
    """(class, name, labels, variable of the buckets) of each metric whose name stands in the source."""
    labels = {"labelnames": {"model_name", "engine"}, "pos_labelnames": {"model_name", "engine", "position"}}
    for file in ("metrics/loggers.py", "spec_decode/metrics.py"):
        for node in ast.walk(ast.parse((_folder() / file).read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _CLASSES:
                given: dict[str, Any] = {str(each.arg): each.value for each in node.keywords}
                of = labels.get(ast.unparse(given["labelnames"]))
                if of and isinstance(given["name"], ast.Constant):
                    buckets = ast.unparse(given["buckets"]) if "buckets" in given else ""
                    yield node.func.attr, given["name"].value, of, buckets
            # Those of speculative decoding are (name, help) in a list.
            if isinstance(node, ast.Tuple) and ast.unparse(node.elts[0]).startswith("'vllm:spec_decode"):
                yield "_counter_cls", ast.literal_eval(node.elts[0]), labels["labelnames"], ""


def _bounds(variable: str) -> set[str]:
    """As prometheus_client writes them; of buckets that depend on the model, none."""
    spec = spec_from_file_location("vllm_buckets", _folder() / "metrics" / "buckets.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    family = module._STATIC_FAMILY_DEFAULTS.get(variable.removesuffix("_buckets"), ())
    return {floatToGoString(bound) for bound in family} | {"+Inf"}
