"""All checks, in the order in which equally grave findings are told: what everything else rests on comes first."""

from .checks import (
    connections,
    context,
    database,
    drafts,
    engine,
    gpu,
    latency,
    logs,
    machine,
    plugin,
    replies,
    serving,
    settings,
    sidecar,
    tokenizers,
    waits,
)
from .findings import Check

ALL: tuple[Check, ...] = (
    *connections.CHECKS,
    *logs.CHECKS,
    *sidecar.CHECKS,
    *database.CHECKS,
    *engine.CHECKS,
    *plugin.CHECKS,
    *tokenizers.CHECKS,
    *drafts.CHECKS,
    *serving.CHECKS,
    *latency.CHECKS,
    *waits.CHECKS,
    *context.CHECKS,
    *replies.CHECKS,
    *gpu.CHECKS,
    *settings.CHECKS,
    *machine.CHECKS,
)
