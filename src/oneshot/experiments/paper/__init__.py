"""The tables of the paper, each a list of rows that one command measures and resumes."""

from oneshot.experiments.paper.ablations import (
    BUDGET_TRAINING,
    DELETION,
    HEURISTICS,
    LAYERS,
    MESSAGES,
    NOISE,
    SPLIT,
)
from oneshot.experiments.paper.cases import CASES
from oneshot.experiments.paper.claims import TABLE as CLAIMS
from oneshot.experiments.paper.cost import COMPLEXITY, EFFICIENCY
from oneshot.experiments.paper.embeddings import NODEPIECE, PARAMETERS
from oneshot.experiments.paper.extrapolation import BUDGET_TEST, EXTRAPOLATION
from oneshot.experiments.paper.graphs import COVERAGE, COVERAGE_CURVE, DATASETS, HOPS
from oneshot.experiments.paper.main import MAIN
from oneshot.experiments.paper.ogb import OGB
from oneshot.experiments.paper.rivals import CANDIDATES, RIVALS
from oneshot.experiments.paper.search import SEARCH
from oneshot.experiments.paper.theorem import THEOREM
from oneshot.experiments.tables.report import make_report
from oneshot.experiments.tables.table import Table
from oneshot.experiments.tables.workbench import Workbench

__all__ = ["TABLES", "Table", "Workbench", "make_report"]

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        MAIN,
        OGB,
        DATASETS,
        COVERAGE,
        COVERAGE_CURVE,
        HOPS,
        COMPLEXITY,
        BUDGET_TRAINING,
        BUDGET_TEST,
        LAYERS,
        HEURISTICS,
        EXTRAPOLATION,
        THEOREM,
        EFFICIENCY,
        MESSAGES,
        SPLIT,
        NOISE,
        DELETION,
        PARAMETERS,
        NODEPIECE,
        RIVALS,
        CANDIDATES,
        CASES,
        SEARCH,
        CLAIMS,
    )
}
