"""One dashboard a file."""

from . import cost, fallback, latency, overview, quality, runbook, scenarios, truncation, vllm


def files() -> dict[str, str]:
    """File in this room -> its text."""
    boards = {
        "overview": overview,
        "truncation": truncation,
        "scenarios": scenarios,
        "latency": latency,
        "quality": quality,
        "fallback": fallback,
        "cost": cost,
        "vllm": vllm,
        "runbook": runbook,
    }
    return {f"dashboards/specwatch-{name}.json": each.json() for name, each in boards.items()}
