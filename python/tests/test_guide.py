"""The programs in Python of the README and the user's guide run."""

from __future__ import annotations

import pathlib
import re
from typing import Iterator, Tuple

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def programs() -> Iterator[Tuple[str, str]]:
    """Each with its chapter and line."""
    for chapter in [ROOT / "README.md", *sorted((ROOT / "docs" / "guide" / "src").glob("*.md"))]:
        text = chapter.read_text(encoding="utf-8")
        for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            yield f"{chapter.name}:{text.count(chr(10), 0, found.start()) + 1}", found[1]


def test_there_are_some() -> None:
    assert len(list(programs())) >= 3


@pytest.mark.parametrize("place, program", list(programs()))
def test_program(place: str, program: str) -> None:
    if "import gpuvm, torch" in program:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    exec(compile(program, place, "exec"), {})
