"""bm25s ranks tools by BM25: `... PATH` of the tools and requests. Identifiers are split and stemmed before."""

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from time import process_time

import bm25s  # pyright: ignore[reportMissingImports] - its own environment
import Stemmer  # pyright: ignore[reportMissingImports]

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")

given = json.loads(Path(sys.argv[1]).read_bytes())
stemmer = Stemmer.Stemmer("english")


def tokens(texts: list[str]) -> list[list[str]]:
    split = [_HUMP.sub(" ", text) for text in texts]
    return bm25s.tokenize(split, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False)


ids = [each["name"] for each in given["tools"]]
index = bm25s.BM25()
index.index(tokens([f"{each['name']} {each['description']}" for each in given["tools"]]), show_progress=False)


def search(text: str) -> list[str]:
    found, _ = index.retrieve(tokens([text]), k=given["depth"], show_progress=False)
    return [ids[at] for at in found[0]]


search("warm up")
began = process_time()
ranked = [search(text) for text in given["requests"]]
milliseconds = 1000 * (process_time() - began) / len(given["requests"])
print(json.dumps({"version": version("bm25s"), "ms": milliseconds, "found": ranked}))
