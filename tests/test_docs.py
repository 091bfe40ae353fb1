"""The documents are true: their code runs, their settings are settings, and every setting is on a page."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from farfield import config as configs
from farfield.experience import lanes
from farfield.learning import feeds, networks, replay
from farfield.transports import disk, grpc, memory
from farfield.weights import checkpoints, registry
from gateways import gateway

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/algorithms").glob("*.md"))]
SERVED = "localhost:50051"  # where the pages think that a gateway is
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTIONS = {
    "": configs.RunConfig, "lanes": lanes.Config, "network": networks.Config, "registry": registry.Config,
    "checkpoint": checkpoints.Config, "metrics": configs.MetricsConfig, "feed": feeds.Config,
    "feed (replay)": replay.Config, "transport (memory)": memory.Config, "transport (grpc)": grpc.Config,
    "transport (disk)": disk.Config,
}  # fmt: skip


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def name(page: Path) -> str:
    return page.stem


@pytest.fixture
def address(page: Path, tmp_path: Path) -> Iterator[str]:
    """A gateway, where the page talks to one."""
    if SERVED not in page.read_text():
        yield ""
        return
    with gateway(tmp_path / "served", "--http", "", doors=1) as served:
        yield served.grpc


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_the_code_on_a_page_runs(page: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FARFIELD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FARFIELD_SPOOL", str(tmp_path / "spool"))
    names: dict[str, object] = {"__name__": page.stem}
    for text in (text.replace(SERVED, address) for text in blocks(page, "python")):
        if file := re.match(r"# (\w+\.py)\n", text):  # the page says to write it there
            (tmp_path / file[1]).write_text(text)
        exec(compile(text, str(page), "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=name)
def test_the_settings_on_a_page_are_settings(page: Path) -> None:
    for text in blocks(page, "toml"):
        section = tomllib.loads(text)
        config = configs.decode({"run": "x", "env": "CartPole-v1"} | section)
        if "algorithm" in section:
            module = configs.plugin("learning.algorithms", config.algorithm["kind"])
            configs.section_of(config.algorithm, module, "algorithm")
        if "feed" in section:
            module = replay if config.feed.get("kind") == "replay" else feeds
            configs.section_of(config.feed, module, "feed")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_has_a_row_on_a_page(section: str) -> None:
    rows = [line for page in PAGES for line in page.read_text().splitlines() if line.startswith("| `")]
    prefix = f"{section.partition(' ')[0]}." if section else ""
    for key in SECTIONS[section].__struct_fields__:
        found = [row for row in rows if row.startswith((f"| `{key}` |", f"| `{prefix}{key}` |"))]
        assert found, f"{prefix}{key} is on no page"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
