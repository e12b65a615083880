"""Draws dashboards as Grafana would: their JSON and a Prometheus in, pages and pictures out.

python -m pictures.render --prometheus 127.0.0.1:9090 --minutes 30 --out build/dashboards
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from integration.chromium import opened
from pictures.asking import Ask, Window, choices, lines, marks, prometheus
from pictures.drawing import DARK, LIGHT
from pictures.page import WIDTH, Answers, height, html

ROOT: Final = Path(__file__).resolve().parents[2]
BOARDS: Final = ROOT / "deploy" / "helm" / "tailrace" / "files" / "dashboards"
THEMES: Final = (LIGHT, DARK)

Json = dict[str, Any]


def boards() -> dict[str, Json]:
    """The dashboards that the chart ships, by name."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(BOARDS.glob("*.json"))
    }


def answered(ask: Ask, board: Json, window: Window) -> Answers:
    return Answers(
        lines={each["id"]: lines(ask, board, each, window) for each in board["panels"]},
        marks=marks(ask, board, window),
        choices=choices(ask, board, window),
    )


def empty(board: Json, answers: Answers) -> list[str]:
    """Titles of panels without data."""
    return [
        each["title"]
        for each in board["panels"]
        if each["type"] != "row" and not answers.lines[each["id"]]
    ]


def chromium() -> str:
    found = os.environ.get("TAILRACE_CHROMIUM") or shutil.which("chromium")
    assert found, "there is no chromium: install it, or name it by TAILRACE_CHROMIUM"
    return found


async def pictured(
    ask: Ask, window: Window, folder: Path, names: Sequence[str] = ()
) -> dict[str, Answers]:
    """Writes a page and a picture of each dashboard, light and dark; gives what was answered."""
    found: dict[str, Answers] = {}
    with tempfile.TemporaryDirectory(prefix="tailrace-pictures-") as profile:
        async with opened(chromium(), Path(profile), "about:blank", width=WIDTH) as browser:
            for name, board in boards().items():
                if names and name not in names:
                    continue
                found[name] = answers = await asyncio.to_thread(answered, ask, board, window)
                await browser.resize(WIDTH, height(board))
                for theme in THEMES:
                    path = folder / f"{name}-{theme.name}.html"
                    path.write_text(html(board, answers, window, theme), encoding="utf-8")
                    await browser.call("Page.navigate", url=path.resolve().as_uri())
                    is_here = f"location.href.endsWith('{path.name}')"
                    await browser.until(f"document.readyState === 'complete' && {is_here}")
                    await browser.picture(path.with_suffix(".png"))
            assert browser.problems == []
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", default="127.0.0.1:9090", help="its address")
    parser.add_argument("--minutes", type=float, default=60.0, help="how far to look back")
    parser.add_argument("--scrape-s", type=float, default=15.0, help="how often it scrapes")
    parser.add_argument("--out", type=Path, default=Path("build/dashboards"))
    parser.add_argument("names", nargs="*", help="of dashboards; all when none is given")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    now_s = time.time()
    window = Window(now_s - given.minutes * 60, now_s, given.scrape_s)
    found = asyncio.run(pictured(prometheus(given.prometheus), window, given.out, given.names))
    for name, answers in found.items():
        nothing = ", ".join(empty(boards()[name], answers)) or "none"
        print(f"{name}: panels without data: {nothing}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
