"""The commands that say what there is to choose from: envs, algorithms."""

from importlib.util import find_spec
from typing import Annotated, Any

import typer

from farfield.cli.options import Json, complete_algorithm
from farfield.cli.screen import console, emit, pairs, table, write

NEEDS = {  # folder of Gymnasium's environments -> the package without which they cannot be made, and its cure
    "box2d": ("Box2D", "gymnasium[box2d]"),
    "mujoco": ("mujoco", "gymnasium[mujoco]"),
    "phys2d": ("jax", "gymnasium[jax]"),
    "tabular": ("jax", "gymnasium[jax]"),
}


def envs(
    search: Annotated[str, typer.Option("--search", "-s", help="Only ids that hold this text, in any case.")] = "",
    json: Json = False,
) -> None:
    """List the environments that can be trained on, what would step them, and which settings are known to solve them.

    Example: farfield envs --search lunar
    """
    import tomllib
    from importlib.resources import files

    from farfield.errors import ConfigError, nearest
    from farfield.experience.catalog import names

    presets = tomllib.loads(files("farfield").joinpath("presets.toml").read_text())
    every = names()
    found = [name for name in every if search.lower() in name.lower()]
    if not found:
        raise ConfigError(f"no environment's id holds {search!r}; {nearest(search, every)}")
    rows = [_environment(name, presets) for name in found]
    if json:
        for row in rows:
            emit(row)
        return
    lines = [(row["env"], row["backend"], ", ".join(row["defaults"]) or "–", row["needs"]) for row in rows]
    console().print(table(("environment", "stepped by", "known settings", "needs"), lines))
    write("an environment of your own is named package:Env-v0")


def algorithms(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="One algorithm.", autocompletion=complete_algorithm)
    ] = "",
    json: Json = False,
) -> None:
    """List the algorithms; of one, every hyper-parameter with its default, its bounds and when a change takes effect.

    Example: farfield algorithms ppo
    """
    from farfield.config import kinds

    chosen = [name] if name else kinds("learning.algorithms")
    found = [_algorithm(kind) for kind in chosen]
    if json:
        for one in found:
            emit(one)
        return
    screen = console()
    for one in found:
        screen.print(f"[bold]{one['algorithm']}[/] ({one['feed']} feed): {one['about']}")
        rows = [
            (
                parameter["name"],
                f"{parameter['default']}",
                parameter["bounds"],
                parameter["change"],
                parameter["description"],
            )
            for parameter in one["parameters"]
        ]
        screen.print(table(("hyper-parameter", "default", "bounds", "change", "meaning"), rows, right=("default",)))
    screen.print(
        pairs(
            {
                "live": "the next update uses a change",
                "recompile": "a change applies once compiled; the old update runs meanwhile",
                "fixed": "stays for the life of a run; fork the run to try another",
            }
        )
    )


def _environment(name: str, presets: dict[str, Any]) -> dict[str, Any]:
    """Say what is known of an environment without making it."""
    from farfield.experience import catalog, pool

    entry = catalog.find(name)
    own = entry.vector_entry_point is not None and not entry.additional_wrappers and "phys2d" not in name
    backend = "own vector class" if own else "sync"
    if not own and name in pool.EQUAL and find_spec("envpool"):
        backend = "envpool"
    kinds = [
        section["algorithm"]["kind"]
        for key, section in presets.items()
        if key.partition("@")[0] == name and "algorithm" in section
    ]
    where = str(entry.entry_point or entry.vector_entry_point)
    needs = next(
        (cure for part, (package, cure) in NEEDS.items() if f".{part}." in where and not find_spec(package)), ""
    )
    return {"env": name, "backend": backend, "defaults": kinds, "needs": needs and f"pip install '{needs}'"}


def _algorithm(kind: str) -> dict[str, Any]:
    """Read an algorithm's hyper-parameters from the schema of its Config."""
    import msgspec

    from farfield.config import plugin

    module = plugin("learning.algorithms", kind)
    schemas, definitions = msgspec.json.schema_components([module.Config], ref_template="{name}")
    schema = definitions[schemas[0]["$ref"]]
    return {
        "algorithm": kind,
        "about": (module.__doc__ or "").strip().splitlines()[0] if module.__doc__ else "",
        "feed": module.FEED,
        "parameters": [_parameter(name, field) for name, field in schema["properties"].items()],
    }


def _parameter(name: str, field: dict[str, Any]) -> dict[str, Any]:
    """Read one hyper-parameter from its JSON schema."""
    described = [field, *field.get("anyOf", [])]

    def first(key: str) -> Any:
        return next((part[key] for part in described if key in part), None)

    low, high = first("minimum"), first("maximum")
    above, below = first("exclusiveMinimum"), first("exclusiveMaximum")
    choices = first("enum")
    bounds = [
        f"≥ {low:g}" if low is not None else f"> {above:g}" if above is not None else "",
        f"≤ {high:g}" if high is not None else f"< {below:g}" if below is not None else "",
        " | ".join(map(str, choices)) if choices else "",
    ]
    return {
        "name": name,
        "default": field.get("default"),
        "minimum": low,
        "maximum": high,
        "bounds": ", ".join(bound for bound in bounds if bound) or "–",
        "change": first("change") or "fixed",
        "description": first("description") or "",
    }
