"""The C++ program of docs/connect.md: built against the installed client as a stranger would, and run."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from farfield.telemetry import metrics
from gateways import eventually, gateway

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(?:cpp|cmake)\n(?://|#) (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEEDED = all(shutil.which(tool) for tool in ("cmake", "g++", "protoc", "grpc_cpp_plugin"))


def run(*words: str | Path, folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the C++ client is installed: as FARFIELD_CPP says, or built here."""
    if found := os.environ.get("FARFIELD_CPP"):
        return Path(found)
    build, place = tmp_path_factory.mktemp("build"), tmp_path_factory.mktemp("place")
    run("cmake", "-S", ROOT / "clients" / "cpp", "-B", build, "-DFARFIELD_TOOLS=OFF", folder=build)
    run("cmake", "--build", build, folder=build)
    run("cmake", "--install", build, "--prefix", place, folder=build)
    return place


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not NEEDED, reason="no C++ compiler, CMake or gRPC of the system")
def test_the_cpp_program_on_the_page_runs(client: Path, tmp_path: Path) -> None:
    files = dict(BLOCK.findall((ROOT / "docs" / "connect.md").read_text()))
    assert set(files) == {"thermostat.cpp", "CMakeLists.txt"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={client}", folder=tmp_path)
    run("cmake", "--build", tmp_path / "build", folder=tmp_path)
    with gateway(tmp_path / "home", "--http", "", doors=1) as served:
        assert "0 payloads remain" in run(tmp_path / "build" / "thermostat", served.grpc, folder=tmp_path)
        learned = tmp_path / "home" / "runs" / "thermostat-cpp"
        eventually(lambda: metrics.newest(learned), "an update")
