"""How alike texts are that were compared: draft and final ones, and replies with and without speculation."""

from anyio import from_thread
from fastapi import APIRouter, Response

from . import models
from .deps import ApiDeps
from .figures import refusals
from .models import as_json
from .params import PairsQuery, PairsWindowQuery, SimilarityQuery


def router(deps: ApiDeps) -> APIRouter:
    made = APIRouter()
    reader = deps.reader

    @made.get("/similarity", response_model=models.SimilaritySeries)
    def similarity(query: SimilarityQuery) -> Response:
        """How alike draft and final texts are, and replies with and without speculation: a point per kind."""
        with refusals(query):
            found = reader.similarity(query.window, query.step, deps.now(), query.by, query.filters())
        return as_json(models.SimilaritySeries(**found, last_100=state(deps)))

    @made.get("/similarity/histogram", response_model=models.SimilarityHistogram)
    def histogram(query: PairsWindowQuery) -> Response:
        """How many pairs have which score, of either kind."""
        with refusals(query):
            found = reader.similarity_histogram(query.window, query.filters(), deps.now())
        return as_json(models.SimilarityHistogram(**found))

    @made.get("/similarity/pairs", response_model=models.SimilarityPairs)
    def pairs(query: PairsQuery) -> Response:
        """The pairs that are least alike. Single pairs are in rows alone: a window may have 100,000 of them."""
        with refusals(query):
            found = reader.similarity_pairs(query.window, query.kind, query.limit, query.filters(), deps.now())
        return as_json(models.SimilarityPairs(**found))

    return made


def state(deps: ApiDeps) -> models.SimilarityState:
    """Called on a worker thread."""
    return models.SimilarityState(**from_thread.run_sync(deps.similarity))
