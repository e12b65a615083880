"""The pages of docs/: links lead somewhere, lists are whole, commands are commands."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main
import yaml

from tailrace.cli.commands import app

ROOT: Final = Path(__file__).resolve().parents[3]
DOCS: Final = ROOT / "docs"
PAGES: Final = sorted(DOCS.rglob("*.md"))
SITE: Final[dict[str, Any]] = runpy.run_path(str(DOCS / "site.py"))
COMMAND: Final = typer.main.get_command(app)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "ARCHITECTURE.md"], ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    SITE["inward"](page.read_text(encoding="utf-8"), page.parent)


def test_a_link_that_leads_nowhere_is_noticed() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        SITE["inward"]("see [that](nowhere.md)", DOCS)


def test_links_out_of_the_site_become_text_and_others_stay() -> None:
    text = "[a](../README.md) [`b`](../Makefile) [c](cli.md#topics) [d](#e) [f](runbooks/)"
    assert SITE["inward"](text, DOCS) == (
        "a (`README.md`) `b` [c](cli.md#topics) [d](#e) [f](runbooks/index.md)"
    )


def test_the_lists_have_every_page_with_its_first_words() -> None:
    for folder in (DOCS / "adr", DOCS / "runbooks"):
        made = SITE["pages"](folder)
        assert made.count("\n- ") + 1 == len(list(folder.glob("*.md"))) - 1
    assert "- [TailraceNotReady](TailraceNotReady.md): A service" in SITE["pages"](
        DOCS / "runbooks"
    )


def test_the_navigation_has_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text)["nav"]
    named = {each for entry in nav for each in _pages(entry)}
    there = {str(path.relative_to(DOCS)) for path in PAGES}
    # Of these folders there are lists of pages.
    listed = re.compile(r"(?:adr|runbooks)/(?!index\.md)")
    assert named == {each for each in there if not listed.match(each)}


def _pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for pages in entry.values():
            yield from pages


def test_the_protocol_has_every_method_with_its_comment() -> None:
    made = SITE["services"]()
    methods = re.findall(r"  rpc (\w+)\(", "".join(p.read_text() for p in _protos()))
    assert len(methods) > 30
    for method in methods:
        (row,) = re.findall(rf"^\| `{method}` \|.*\| (.*) \|$", made, re.MULTILINE)
        assert row, method
    assert "| `Produce` | stream of [ProduceRequest](#producerequest) |" in made
    assert "### ProduceRequest" in made


def _protos() -> list[Path]:
    return sorted((ROOT / "proto").rglob("*.proto"))


# Everything that stands behind a prompt or in a block of shell, in all pages.
BLOCK: Final = re.compile(r"^```(sh|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _commands(page: Path) -> Iterator[str]:
    for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        lines = block.replace("\\\n", " ").splitlines()
        if kind == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        for line in lines:
            for part in re.split(r"\|\|?|;|&&|&", line.split("  # ")[0].split("   #")[0]):
                if "tailrace " in part and (found := re.match(r"\s*(tailrace .*)", part)):
                    yield found[1]


COMMANDS: Final = [
    pytest.param(command, id=f"{page.name}: {command}")
    for page in [*PAGES, ROOT / "README.md"]
    for command in _commands(page)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_commands_and_their_options_exist(command: str) -> None:
    """Whether they do what the page says is seen by those who run them; names change more often."""
    _, *words = shlex.split(re.sub(r"[<>]\s*\S+", "", command))
    found: Any = COMMAND
    while (inner := getattr(found, "commands", None)) and not words[0].startswith("-"):
        name = words.pop(0)
        assert name in inner, f"there is no {name!r}"
        found = inner[name]
    known = {"--help", "--version", "--install-completion"}
    for each in found.params:
        known |= {*each.opts, *each.secondary_opts}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in known, f"{command}: there is no {word}"


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) > 40
