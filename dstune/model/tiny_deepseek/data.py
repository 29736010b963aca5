"""Builds the corpus of `tiny-deepseek` from the running CPython's library and documentation.

Documents are source files, language-reference topics, docstrings and chat turns about docstrings.
Whole files and topics are held out by a hash of their name; their docstrings stay out of training.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

BOS, EOS, USER, ASSISTANT = 256, 257, 258, 259
Kind = Literal["code", "topic", "docstring", "chat"]

# Tests are repetitive, and the other names hold tables or applications rather than library code.
_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "encodings", "idlelib", "pgen2", "pydoc_data", "site-packages"}
    | {"test", "tests", "turtledemo"}
)
_SKIPPED_FILES = frozenset({"html/entities.py", "locale.py", "stringprep.py", "this.py"})
_HELD_OUT_CODE = 0.045
_HELD_OUT_TOPICS = 0.25
_MIN_DOCSTRING = 80
_MIN_SHARED_PARAGRAPH = 80


@dataclass(frozen=True)
class Document:
    """One text; `name` is the file or topic that it comes from, and decides the split."""

    name: str
    kind: Kind
    text: str
    question: str = ""

    def tokens(self) -> npt.NDArray[np.int16]:
        """Token ids, shape [length], framed by the begin and end tokens."""
        body = list(self.text.encode())
        if self.question:
            body = [USER, *self.question.encode(), ASSISTANT, *body]
        return np.array([BOS, *body, EOS], dtype=np.int16)


@dataclass(frozen=True)
class Corpus:
    """Training documents and the held-out ones, in a fixed order."""

    train: list[Document]
    held_out: list[Document]

    def held_out_text(self) -> str:
        """The held-out documents as one text, separated by blank lines."""
        return "\n\n".join(document.text.strip("\n") for document in self.held_out) + "\n"


def build_corpus() -> Corpus:
    """Read, split and clean all documents of the running interpreter."""
    code = list(_code_documents(Path(sysconfig.get_path("stdlib"))))
    topics = list(_topic_documents())
    held_out = [d for d in code if _hash_fraction(d.name) < _HELD_OUT_CODE]
    held_out += [d for d in topics if _hash_fraction(d.name) < _HELD_OUT_TOPICS]
    held_names = {d.name for d in held_out}
    train = [d for d in code + topics if d.name not in held_names]
    for document in [d for d in train if d.kind == "code"]:
        train.extend(_docstring_documents(document))
    # Sources quote each other and topics nest, so splitting by name alone would leak passages.
    seen = {key for d in held_out for key in _long_paragraphs(d.text)}
    return Corpus(_unique(_without(d, seen) for d in train), _shuffled(held_out, seed=0))


def pack_epoch(documents: list[Document], epoch: int) -> npt.NDArray[np.int16]:
    """All tokens of `documents` in the order of this epoch, shape [tokens]."""
    return np.concatenate([d.tokens() for d in _shuffled(documents, seed=epoch + 1)])


def _shuffled(documents: list[Document], seed: int) -> list[Document]:
    return random.Random(seed).sample(documents, len(documents))


def _hash_fraction(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2.0**64


def _code_documents(root: Path) -> Iterator[Document]:
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        skipped = _SKIPPED_FOLDERS.intersection(relative.parts[:-1])
        name = relative.as_posix()
        if skipped or name in _SKIPPED_FILES or name.startswith("_sysconfigdata"):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            yield Document(name, "code", text)


def _topic_documents() -> Iterator[Document]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield Document(f"topic:{name}", "topic", topics[name].strip("\n") + "\n")


def _docstring_documents(source: Document) -> Iterator[Document]:
    module = source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    try:
        tree = ast.parse(source.text)
    except SyntaxError:
        return
    for name, text in _docstrings(tree, module):
        if len(text) < _MIN_DOCSTRING:
            continue
        # A third as chat, the rest as prose: no docstring appears twice beside its source.
        if _hash_fraction(name) < 1 / 3:
            yield Document(source.name, "chat", text, question=f"What does {name} do?")
        else:
            yield Document(source.name, "docstring", f"{name}\n\n{text}\n")


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, kinds):
        text = ast.get_docstring(node)
        if text:
            yield name, text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, kinds):
            yield from _docstrings(child, f"{name}.{getattr(child, 'name', '')}")


def _long_paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        key = " ".join(paragraph.split())
        if len(key) >= _MIN_SHARED_PARAGRAPH:
            yield key


def _without(document: Document, seen: set[str]) -> Document:
    """The document less its paragraphs that occur in the held-out text."""
    if seen.isdisjoint(_long_paragraphs(document.text)):
        return document
    kept = [p for p in re.split(r"\n\s*\n", document.text) if " ".join(p.split()) not in seen]
    text = "\n\n".join(kept)
    return Document(document.name, document.kind, text, document.question)


def _unique(documents: Iterable[Document]) -> list[Document]:
    """Documents in order, less empty ones and repeated texts (inherited docstrings)."""
    texts: dict[str, Document] = {}
    for document in documents:
        if document.text.strip():
            texts.setdefault(document.text, document)
    return list(texts.values())
