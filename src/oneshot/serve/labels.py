"""Labels: readable texts for entities and relations whose names are ids."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from oneshot.errors import InputError, UnknownNameError
from oneshot.graph.graph import INVERSE_MARK, KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.serve.entity_search import NameSearch
from oneshot.serve.limits import MAX_NEW_NAME


class Labels:
    """Labels of the entities and relations of a graph, and a search for entities by label.

    They are read once, when the service starts. Several entities can have the same label.
    """

    def __init__(self, graph: KnowledgeGraph, pairs: Iterable[tuple[str, str]]) -> None:
        """`pairs` of name and label; the first label of a name counts. Others are ignored."""
        self.entities: dict[str, str] = {}
        self.relations: dict[str, str] = {}
        self._named: dict[str, list[tuple[int, str]]] = {}  # (degree, entity) by label
        degree = graph.degree.cpu().numpy()
        for name, label in pairs:
            if name in graph.relations:
                self.relations.setdefault(name, label)
            number = graph.entities.get(name)
            if number is not None and name not in self.entities:
                self.entities[name] = label
                self._named.setdefault(label, []).append((int(degree[number]), name))
        most = [max(found)[0] for found in self._named.values()]
        labels = Vocabulary.from_names(self._named, "label")
        self._search = NameSearch(labels, np.array(most, np.int64))

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """The labels of those entities that have one."""
        return {name: self.entities[name] for name in names if name in self.entities}

    def text(self, name: str) -> str:
        """The label of an entity or a relation, or its name; an inverse keeps its mark."""
        if name in self.entities:
            return self.entities[name]
        plain = name.removesuffix(INVERSE_MARK)
        return self.relations.get(plain, plain) + name[len(plain) :]

    def search(self, text: str, limit: int) -> list[str]:
        """Entities by label: prefix matches first, then fuzzy matches."""
        found: list[str] = []
        for label in self._search.search(text, limit):
            found += [name for _, name in sorted(self._named[label], reverse=True)]
        return found[:limit]


def labels_in_file(path: Path) -> Iterator[tuple[str, str]]:
    """The pairs of a file with one name and its label per line, separated by a tab."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                name, tab, label = line.rstrip("\r\n").partition("\t")
                if not line.strip():
                    continue
                if not tab or not name or not label.strip():
                    raise InputError(f"{path}:{number}: must be a name, a tab and its label")
                yield name, label.strip()[:MAX_NEW_NAME]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: labels must be UTF-8 ({error.reason})") from error
    except OSError as error:
        raise InputError(f"{path}: labels cannot be read ({error.strerror})") from error


def labels_in_graph(graph: KnowledgeGraph, relation: str) -> Iterator[tuple[str, str]]:
    """The pairs of head and tail of all facts of a relation, such as `rdfs:label`."""
    number = graph.relations.get(relation)
    if number is None:
        raise UnknownNameError.among("relation", relation, graph.relations)
    facts = (graph.host or graph).facts
    for head, _, tail in facts[facts[:, 1] == number].tolist():
        yield graph.entities[head], graph.entities[tail]
