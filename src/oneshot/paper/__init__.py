"""The paper, table by table: each is a list of rows that one command measures and resumes."""

from oneshot.paper.cases import CASES
from oneshot.paper.claims import TABLE as CLAIMS
from oneshot.paper.cost import COMPLEXITY, EFFICIENCY
from oneshot.paper.extrapolation import EXTRAPOLATION
from oneshot.paper.main_table import MAIN
from oneshot.paper.ogb_table import OGB
from oneshot.paper.peers import NODEPIECE, PARAMETERS
from oneshot.paper.reporting import make_report
from oneshot.paper.search_table import SEARCH
from oneshot.paper.structure import COVERAGE, DATASETS, HOPS
from oneshot.paper.table import Table
from oneshot.paper.trained import BUDGET, DELETION, HEURISTICS, LAYERS, MESSAGES, NOISE, SPLIT
from oneshot.paper.workbench import Workbench

__all__ = ["TABLES", "Table", "Workbench", "make_report"]

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        MAIN,
        OGB,
        DATASETS,
        COVERAGE,
        HOPS,
        COMPLEXITY,
        BUDGET,
        LAYERS,
        HEURISTICS,
        EXTRAPOLATION,
        EFFICIENCY,
        MESSAGES,
        SPLIT,
        NOISE,
        DELETION,
        PARAMETERS,
        NODEPIECE,
        CASES,
        SEARCH,
        CLAIMS,
    )
}
