"""A retriever for language models: facts, predictions and their paths as documents.

    oneshot serve demo/run                          # in another terminal
    python examples/retriever.py http://127.0.0.1:8000 "Which countries does Bolivia border?"

`GraphRetriever` has the interface of a LangChain retriever (`invoke`), and is one if langchain-core
is installed: `chain = retriever | prompt | model`. It needs only the client of a service.
"""

import argparse
import difflib
import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import oneshot

try:
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
except ImportError:

    @dataclass
    class Document:  # type: ignore[no-redef]
        """A text with its metadata, as in LangChain."""

        page_content: str
        metadata: dict[str, Any] = field(default_factory=dict)

    class BaseRetriever:  # type: ignore[no-redef]
        """The part of LangChain's retriever that this example needs."""

        def __init__(self, **fields: Any) -> None:
            vars(self).update(fields)

        def invoke(self, query: str) -> list[Document]:
            return self._get_relevant_documents(query)


class GraphRetriever(BaseRetriever):
    """Documents about the entities that a question names.

    For each entity: its facts in one document and, for each relation that the question names, the
    `top` most likely answers, with the path that supports the best one. `client`: the client of a
    service; `max_facts`: facts per entity.
    """

    client: Any
    top: int = 3
    max_facts: int = 20

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        words = [word.strip("?!.,;:\"'") for word in query.split()]
        relations = [name for name in self.client.relations() if _is_named(name, words)]
        documents = []
        for entity in self._entities(words):
            documents.append(self._facts(entity))
            for relation in relations:
                documents += self._predictions(entity, relation)
        return documents

    def _entities(self, words: list[str]) -> list[str]:
        """The entities that the words name, longest names first."""
        found: dict[str, None] = {}
        left = list(words)
        for length in range(min(len(words), 6), 0, -1):
            for start in range(len(words) - length + 1):
                text = " ".join(left[start : start + length])
                if not text.strip() or "\0" in text:
                    continue
                best = self.client.search(text, limit=1)
                if best and best[0].replace("_", " ").casefold() == text.casefold():
                    found[best[0]] = None
                    left[start : start + length] = ["\0"] * length  # each word names one entity
        return list(found)

    def _facts(self, entity: str) -> Document:
        facts = self.client.facts(entity, limit=self.max_facts)
        lines = [f"{head} —{relation}→ {tail}" for head, relation, tail in facts]
        return Document(
            page_content="\n".join([f"Facts about {entity}:", *lines]),
            metadata={"entity": entity, "source": "graph"},
        )

    def _predictions(self, entity: str, relation: str) -> list[Document]:
        answers = self.client.predict(entity, relation, top=self.top, exclude_known=True)
        documents = []
        for answer in answers:
            text = f"Likely, but not in the graph: {entity} —{relation}→ {answer.entity}"
            if answer.probability is not None:
                text += f" (probability {answer.probability:.2f})"
            if answer is answers[0]:
                paths = self.client.explain(entity, relation, answer.entity, paths=1)["paths"]
                text += "".join(f"\nbecause {_path(path)}" for path in paths)
            metadata = {"entity": entity, "relation": relation, "answer": answer.entity}
            metadata |= {"probability": answer.probability, "source": "prediction"}
            documents.append(Document(page_content=text, metadata=metadata))
        return documents


def _path(path: dict[str, Any]) -> str:
    steps = path["steps"]
    assert all(one["target"] == other["source"] for one, other in pairwise(steps))
    way = "".join(f" —{step['relation']}→ {step['target']}" for step in steps)
    return f"{steps[0]['source']}{way}"


def _is_named(relation: str, words: list[str]) -> bool:
    """Whether each longer word of a relation's name is similar to a word of the question."""
    asked = [word.casefold() for word in words]
    parts = [part for part in relation.casefold().split("_") if len(part) > 3]
    return bool(parts) and all(difflib.get_close_matches(p, asked, 1, 0.8) for p in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="address of a service, such as http://127.0.0.1:8000")
    parser.add_argument("question")
    parser.add_argument("--top", type=int, default=3, help="predictions per relation")
    options = parser.parse_args()
    client = oneshot.Client(options.url, token=os.environ.get("ONESHOT_TOKEN"))
    retriever = GraphRetriever(client=client, top=options.top)
    for document in retriever.invoke(options.question):
        print(document.page_content, end="\n\n")


if __name__ == "__main__":
    main()
