"""The command that writes a version for other programs: export."""

from pathlib import Path
from typing import Annotated

import typer

from farfield.cli.options import Home, Json, Run, VersionNumber
from farfield.cli.screen import emit, write


def export(
    run: Run,
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="Where to write the ONNX model.")],
    version: VersionNumber = None,
    home: Home = "",
    json: Json = False,
) -> None:
    """Write a version as an ONNX model, and check through onnxruntime that it decides the same.

    Example: farfield export CartPole-v1 --onnx pole.onnx
    """
    from farfield import evaluation, wiring
    from farfield.serving import onnx as models

    folder = wiring.run_folder(home, run)
    config = wiring.read_config(folder)
    found = evaluation.version_of(config, folder, version)
    weights = wiring.registry_of(config, folder).fetch(found)
    model = models.export(found.spec, found.network, weights)
    difference = models.check(model, found.spec, found.network, weights)
    onnx.write_bytes(model)
    if json:
        facts = {"run": run, "version": found.number, "output": str(onnx), "bytes": len(model)}
        emit(facts | {"difference": float(difference)})
    else:
        write(f"wrote version {found.number} of {run} into {onnx}: {len(model):,} bytes")
        write(f"onnxruntime decides the same: the largest relative difference is {difference:.1e}")
