"""What a graph of the size of Wikidata would cost, from what smaller graphs cost."""

from collections.abc import Sequence
from typing import Any

FACTS = 1_500_000_000
ENTITIES = 110_000_000
WORKSPACE_BYTES = 13  # an entity, at most: the scratch memory of the push

ASSUMPTIONS = (
    f"{FACTS:,} facts between {ENTITIES:,} entities, names of about 20 letters.",
    "Time to build and disk grow in proportion to the facts, from the largest measured graph on; "
    "places of edges take 8 bytes instead of 4, because there are more than 2^31.",
    "The time of a subgraph goes on growing with the fitted exponent, that of the predictor does "
    "not grow, because the subgraph does not; the pages that questions touch are in memory, as "
    "they are after a while; before that, each question waits for the disk.",
    f"Memory: up to {WORKSPACE_BYTES} bytes an entity of scratch memory, as far as questions touch "
    "it, beside what every process needs; pages of the graph come on top, as many as the system "
    "has place for.",
    "Wikidata has larger hubs than either graph: questions about what is next to one (a country, "
    "a profession) cost more, and the push finds a smaller part of the exact choice.",
)


def estimate(rows: Sequence[dict[str, Any]], growth: dict[str, float]) -> dict[str, Any]:
    """Estimates from the largest measured graph, and the fitted `growth` of a subgraph's time."""
    largest = max(rows, key=lambda row: int(row["facts"]))
    factor = FACTS / largest["facts"]
    # `fact` and `pair` of each edge in both directions, where 4 bytes were enough.
    wider = 16 * FACTS / 2**30
    result: dict[str, Any] = {
        "facts": FACTS,
        "entities": ENTITIES,
        "from_facts": largest["facts"],
        "build_hours": round(largest["build_seconds"] * factor / 3600, 1),
        "saved_gb": round(largest["saved_gb"] * factor + wider),
        "scratch_gb": round(WORKSPACE_BYTES * ENTITIES / 2**30, 1),
    }
    if "sample_ms" in growth:
        sample = largest["sample_ms"] * factor ** max(growth["sample_ms"], 0.0)
        rest = max(largest["predict_ms"] - largest["sample_ms"], 0.0)
        result |= {"sample_ms": round(sample, 1), "predict_ms": round(sample + rest, 1)}
    return result
