"""Versions: committed completely or not at all, whoever dies, races, runs out of disk or damages a file."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from farfield.errors import ConfigError, ConflictError, CorruptError, FullError, MissingError, SpecError
from farfield.types import Field, Head, Kind, Network, Node, Spec, Tensor, Version, Weights
from farfield.weights import folder as blobs
from farfield.weights import registry, tensors

SPEC = Spec(
    observations=(Field("obs", Kind.BOX, "float32", (4,), low=(-np.inf,), high=(np.inf,)),),
    actions=(Field("action", Kind.DISCRETE, "int64", (), (2,)),),
)
LAYERS = {
    "policy/0": (4, 64),
    "policy/1": (64, 64),
    "logits": (64, 2),
    "value/0": (4, 64),
    "value/1": (64, 64),
    "value": (64, 1),
}
NETWORK = Network(
    nodes=tuple(
        Node(name, "dense", (above,), {"kernel": f"{name}/kernel", "bias": f"{name}/bias"}, {"shape": (1, 2)})
        for name, above in [
            ("policy/0", "obs"), ("policy/1", "policy/0"), ("logits", "policy/1"),
            ("value/0", "obs"), ("value/1", "value/0"), ("value", "value/1"),
        ]
    ),
    tensors={f"{name}/kernel": Tensor(shape) for name, shape in LAYERS.items()}
    | {f"{name}/bias": Tensor(shape[1:]) for name, shape in LAYERS.items()},
    heads=(Head("action", "categorical", ("logits",)),),
    outputs={"value": "value"},
)  # fmt: skip


def weights_of(seed: int) -> Weights:
    draw = np.random.default_rng(seed)
    return {name: draw.normal(size=tensor.shape).astype(np.float32) for name, tensor in NETWORK.tensors.items()}


def describe(weights: Weights, number: int, *, attempt: int = 1) -> Version:
    return registry.Registry.describe(
        weights, run="r", number=number, attempt=attempt, parent=number - 1 if number else None,
        steps=128 * number, spec=SPEC, network=NETWORK,
    )  # fmt: skip


def opened(folder: Path, **options: int) -> registry.Registry:
    return registry.make(registry.Config(**options), folder)


def filled(folder: Path, *numbers: int, **options: int) -> registry.Registry:
    """Open a registry that holds these versions of attempt 1; the seed of each one's weights is its number."""
    store = opened(folder, **options)
    assert store.claim({"pid": 1, "host": "h", "time": 0.0}) == 1
    for number in numbers:
        store.publish(describe(weights_of(number), number), weights_of(number))
    return store


def equal(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name]) for name in left
    )


def run_here(verb: str, *arguments: str, before: tuple[str, ...] = ()) -> str:
    """Run one of this file's verbs in a process of its own."""
    command = [*before, sys.executable, __file__, verb, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Committing -----------------------------------------------------------------------------------------------------------


def test_a_version_comes_back_as_it_was_published(tmp_path: Path):
    filled(tmp_path, 0, 3)
    store = opened(tmp_path)  # another process knows nothing but the folder
    head = store.head()
    assert head is not None
    assert (head.number, head.parent, head.steps, head.attempt) == (3, 2, 384, 1)
    assert store.version(0).parent is None
    assert equal(store.fetch(head), weights_of(3))
    assert equal(store.fetch(store.version(0)), weights_of(0))
    assert store.numbers() == [0, 3]
    assert store.highest() == 3
    assert head.spec == SPEC  # infinite bounds included
    assert list(store.fetch(head, ["value/bias"])) == ["value/bias"]


def test_an_empty_registry_has_no_head_and_writes_nothing(tmp_path: Path):
    store = opened(tmp_path / "run")
    assert store.head() is None
    assert store.numbers() == []
    assert store.highest() == -1
    assert not (tmp_path / "run").exists()
    with pytest.raises(MissingError, match="there is none yet"):
        store.version(0)


def test_republishing_the_same_version_succeeds_and_another_content_is_refused(tmp_path: Path):
    store = filled(tmp_path, 0, 1)
    store.publish(describe(weights_of(1), 1), weights_of(1))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(ConflictError, match=r"1\.json exists with other content .*continue above version 1"):
        store.publish(describe(weights_of(2), 1), weights_of(2))
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert equal(store.fetch(store.version(1)), weights_of(1))


def test_unchanged_tensors_are_stored_once(tmp_path: Path):
    store = filled(tmp_path, 0)
    weights = weights_of(0) | {"logits/bias": np.ones(2, np.float32), "value/bias": np.full(1, 7, np.float32)}
    opened(tmp_path).publish(describe(weights, 1), weights)
    sizes = sorted(path.stat().st_size for path in (tmp_path / "payloads").iterdir())
    assert len(sizes) == 2
    assert sizes[0] < 300  # a header, and three numbers
    assert equal(store.fetch(store.version(1)), weights)
    store.publish(describe(weights, 2), weights)
    assert len(list((tmp_path / "payloads").iterdir())) == 2


def test_equal_tensors_of_one_version_are_stored_once(tmp_path: Path):
    store = filled(tmp_path)
    weights = {name: np.zeros(tensor.shape, np.float32) for name, tensor in NETWORK.tensors.items()}
    store.publish(describe(weights, 0), weights)
    assert sum(path.stat().st_size for path in (tmp_path / "payloads").iterdir()) < sum(
        w.nbytes for w in weights.values()
    )
    assert equal(store.fetch(store.version(0)), weights)


def test_missing_versions_name_their_neighbours(tmp_path: Path):
    store = filled(tmp_path, 0, 5, 9, 20)
    with pytest.raises(MissingError, match=r"version 8 is not in .*nearest: 0, 5, 9"):
        store.version(8)


def test_weights_that_do_not_fit_their_network_are_refused(tmp_path: Path):
    weights = weights_of(0)
    with pytest.raises(SpecError, match=r"missing \['logits/bias'\], unknown \['extra'\]"):
        describe({("extra" if name == "logits/bias" else name): value for name, value in weights.items()}, 0)
    with pytest.raises(SpecError, match=r"'logits/bias': expected float32 \[2\], got float64 \[3\]"):
        describe(weights | {"logits/bias": np.zeros(3)}, 0)
    store = filled(tmp_path)
    with pytest.raises(SpecError, match="'logits/bias' is not the one that it names"):
        store.publish(describe(weights, 0), weights | {"logits/bias": np.ones(2, np.float32)})
    assert store.numbers() == []


def test_arrays_of_any_layout_have_the_hash_of_their_values():
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert tensors.reference(rows) == tensors.reference(np.asfortranarray(rows))
    assert tensors.reference(np.zeros((0, 3))).shape == (0, 3)
    assert tensors.reference(np.array(1.0)).shape == ()
    assert tensors.reference(rows) != tensors.reference(rows + 1)


def test_an_unknown_place_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"\[registry\] url = 's3://bucket'.*leave registry.url empty"):
        registry.make(registry.Config(url="s3://bucket"), tmp_path)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"keep": -1}, registry.Config)


# Followers ------------------------------------------------------------------------------------------------------------


def test_followers_are_never_sent_the_critic_nor_what_they_have():
    zero, one = describe(weights_of(0), 0), describe(weights_of(0) | {"logits/bias": np.ones(2, np.float32)}, 1)
    lacking = registry.Registry.lacking(zero, {})
    assert lacking == [
        "logits/bias",
        "logits/kernel",
        "policy/0/bias",
        "policy/0/kernel",
        "policy/1/bias",
        "policy/1/kernel",
    ]
    have = {name: ref.sha256 for name, ref in zero.tensors.items()}
    assert registry.Registry.lacking(zero, have) == []
    assert registry.Registry.lacking(one, have) == ["logits/bias"]


# Attempts -------------------------------------------------------------------------------------------------------------


def test_a_newer_attempt_fences_the_older_one(tmp_path: Path):
    old = filled(tmp_path, 0)
    new = opened(tmp_path)
    assert new.claim({"pid": 4321, "host": "desk", "time": 0.0}) == 2
    for refused in (
        lambda: old.check(1),
        lambda: old.publish(describe(weights_of(1), 1), weights_of(1)),
        lambda: old.orphan(0, 1),
        lambda: old.collect(),
    ):
        with pytest.raises(ConflictError, match=r"attempt 1 was fenced by attempt 2 \(pid 4321, host desk, time 19"):
            refused()
    with pytest.raises(ConflictError, match="attempt 3 was not claimed"):
        new.check(3)
    new.publish(describe(weights_of(1), 1, attempt=2), weights_of(1))
    assert new.numbers() == [0, 1]


def test_claims_of_many_processes_are_all_different(tmp_path: Path):
    claimed = sorted(json.loads(run_here("claim", str(tmp_path))))
    assert claimed == list(range(1, 33))


def test_one_of_many_processes_wins_each_name(tmp_path: Path):
    assert json.loads(run_here("race", str(tmp_path))) == [1] * 40
    assert all(len(set(path.read_bytes())) == 1 for path in tmp_path.iterdir())  # never a mixture
    assert len(list(tmp_path.iterdir())) == 40


def test_versions_left_behind_are_orphaned_and_numbers_go_on_above(tmp_path: Path):
    old = filled(tmp_path, 0, 1, 2, 3)
    store = opened(tmp_path)
    store.claim({})
    store.orphan(1, 2)
    store.orphan(1, 2)
    head = store.head()
    assert head is not None
    assert (head.number, store.highest(), store.numbers(), store.orphans()) == (1, 3, [0, 1], [2, 3])
    assert equal(old.fetch(old.version(3)), weights_of(3))  # still there for who asks by number
    version = describe(weights_of(9), 4, attempt=2)
    store.publish(version, weights_of(9))
    assert store.numbers() == [0, 1, 4]
    store.collect({0})
    assert store.orphans() == []
    assert store.highest() == 4


def test_numbers_of_a_line_left_behind_are_never_used_again(tmp_path: Path):
    filled(tmp_path, 0, 5)
    store = opened(tmp_path)
    store.claim({})
    store.orphan(0, 2)
    with pytest.raises(ConflictError, match="left behind: continue above version 5"):
        store.publish(describe(weights_of(1), 3, attempt=2), weights_of(1))


# Garbage --------------------------------------------------------------------------------------------------------------


def test_old_versions_go_and_their_payloads_with_them(tmp_path: Path):
    store = filled(tmp_path, *range(8), keep=2)
    assert store.collect({1}) == [0, 2, 3, 4]
    assert store.numbers() == [1, 5, 6, 7]
    assert len(list((tmp_path / "payloads").iterdir())) == 4
    for number in store.numbers():
        assert equal(store.fetch(store.version(number)), weights_of(number))
    assert store.collect({1}) == []


def test_a_payload_stays_while_anybody_refers_to_it(tmp_path: Path):
    store = filled(tmp_path, 0, keep=0)
    frozen = weights_of(0)
    for number in range(1, 4):
        frozen = frozen | {"logits/bias": np.full(2, number, np.float32)}
        store.publish(describe(frozen, number), frozen)
    assert store.collect() == [0, 1, 2]
    assert len(list((tmp_path / "payloads").iterdir())) == 2
    assert equal(opened(tmp_path).fetch(store.version(3)), frozen)


def test_what_the_dead_leave_is_collected_and_what_the_living_write_is_not(tmp_path: Path):
    store = filled(tmp_path, 0)
    payloads = tmp_path / "payloads"
    (payloads / ".new-0123").write_bytes(b"half")
    (payloads / ("0" * 64 + ".safetensors")).write_bytes(b"never committed")
    temporary, handle = blobs._begin(payloads)
    store.collect()
    assert len(list(payloads.iterdir())) == 2
    assert Path(temporary).exists()
    os.close(handle)
    store.collect()
    assert len(list(payloads.iterdir())) == 1


def test_readers_meet_whole_versions_or_missing_ones_while_others_are_collected(tmp_path: Path):
    store = filled(tmp_path, 0, keep=0)
    seen: list[int] = []
    wrong: list[Exception] = []
    done = threading.Event()

    def follow() -> None:
        reader = opened(tmp_path)
        while not done.is_set():
            try:
                head = reader.head()
                assert head is not None
                assert equal(reader.fetch(head), weights_of(head.number))
                seen.append(head.number)
            except MissingError:
                continue
            except (AssertionError, CorruptError) as error:
                wrong.append(error)
                return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(1, 40):
        store.publish(describe(weights_of(number), number), weights_of(number))
        store.collect()
    done.set()
    thread.join()
    assert wrong == []
    assert seen == sorted(seen)
    assert seen


# Dying ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["publish", "collect"])
def test_a_process_killed_at_any_point_leaves_whole_versions(tmp_path: Path, verb: str):
    points = int(run_here("die", str(tmp_path), verb))
    assert points >= (12 if verb == "publish" else 8)
    heads: set[int] = set()
    for folder in sorted(tmp_path.iterdir()):
        store = opened(folder, keep=0)
        numbers = store.numbers()
        heads.add(numbers[-1])
        for number in numbers:
            assert equal(store.fetch(store.version(number)), weights_of(number)), folder
        store.publish(describe(weights_of(3), 3), weights_of(3))  # whether it was committed or not
        store.claim({})
        store.publish(describe(weights_of(4), 4, attempt=2), weights_of(4))
        store.collect()
        assert equal(store.fetch(store.version(4)), weights_of(4))
        assert [len(list((folder / part).iterdir())) for part in ("versions", "payloads")] == [1, 1]
    assert heads == ({2, 3} if verb == "publish" else {2})  # some died before the commit, some after it


# Damage and bad places ------------------------------------------------------------------------------------------------


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_changed_payload_is_named_with_its_tensor_and_the_cure(tmp_path: Path):
    store = filled(tmp_path, 0)
    (payload,) = (tmp_path / "payloads").iterdir()
    flip(payload, -1)
    with pytest.raises(CorruptError, match=rf"version 0: tensor '.+' in .*{payload.name} .*delete .*0\.json"):
        store.fetch(store.version(0))
    flip(payload, 20)
    with pytest.raises(CorruptError, match="version 0"):
        store.fetch(store.version(0))
    payload.write_bytes(b"")
    with pytest.raises(CorruptError, match=payload.name):
        store.fetch(store.version(0))
    payload.unlink()
    with pytest.raises(CorruptError, match=rf"{payload.name} cannot be read .*is not there"):
        store.fetch(store.version(0))


def test_a_changed_record_is_refused_and_deleting_it_cures(tmp_path: Path):
    store = filled(tmp_path, 0, 1)
    record = tmp_path / "versions" / "1.json"
    for place in (-5, len(record.read_bytes()) // 2, 5):
        flip(record, place)
        with pytest.raises(CorruptError, match=r"1\.json is damaged .*delete .*1\.json"):
            store.head()
        flip(record, place)
    record.write_bytes(b"")
    with pytest.raises(CorruptError, match="damaged"):
        store.head()
    record.unlink()
    head = store.head()
    assert head is not None
    assert head.number == 0


def test_every_cut_of_a_payload_is_refused():
    data = tensors.pack({"a": np.arange(5), "b": np.zeros((0, 2), np.float16)}, {"k": "v"})
    for length in range(len(data)):
        with pytest.raises(CorruptError):
            tensors.unpack(data[:length])
    with pytest.raises(SpecError, match="tensor 'z' has dtype complex64"):
        tensors.pack({"z": np.zeros(1, np.complex64)}, {})


def test_a_full_disk_says_so_and_leaves_the_versions_that_were(tmp_path: Path):
    filled(tmp_path, 0)
    assert "is full" in run_here("full", str(tmp_path))
    store = opened(tmp_path)
    assert store.numbers() == [0]
    assert equal(store.fetch(store.version(0)), weights_of(0))
    assert [path.name for path in tmp_path.rglob(".new-*")] == []


def test_a_full_file_system_says_so(tmp_path: Path):
    mount = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=128k none {tmp_path} && exec "$@"', "sh")
    if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    said = run_here("fill", str(tmp_path), before=mount)
    assert "the disk or quota is full (No space left on device)" in said


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path):
    filled(tmp_path, 0)
    assert "give this user the right to write there" in run_here("forbidden", str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="move what is in its way"):
        opened(tmp_path / "file").claim({})


@dataclass
class Fuse:
    """Counts down system calls that change the disk, and kills its process before or after one of them."""

    left: int

    def wrap(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            self.tick()
            result = call(*arguments, **options)
            self.tick()
            return result

        return counted

    def tick(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


def die_everywhere(first: Path, act: Callable[[Path], object]) -> int:
    """Kill a process that acts on copies of a folder at every system call that changes the disk, once each."""
    point = 0
    while True:
        copy = first.with_name(f"{point}")
        shutil.copytree(first, copy)
        child = os.fork()
        if child == 0:
            fuse = Fuse(point)
            for name in ("write", "fsync", "link", "unlink", "open"):
                setattr(os, name, fuse.wrap(getattr(os, name)))
            act(copy)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            shutil.rmtree(first)
            return point
        point += 1


def everybody(work: Callable[[int], list[int]]) -> list[list[int]]:
    """Do it in eight processes at once; collect what each says."""
    pipes = [os.pipe() for _ in range(8)]
    go, gone = os.pipe()
    for index, (_, end) in enumerate(pipes):
        if os.fork() == 0:
            os.close(gone)
            os.read(go, 1)  # until the parent lets everybody go
            os.write(end, json.dumps(work(index)).encode())
            os._exit(0)
    os.close(gone)
    return [json.loads(os.read(start, 65536)) for start, _ in pipes]


def main(verb: str, folder: Path, *rest: str) -> None:
    match verb:
        case "die":
            filled(folder / "first", 0, 1, 2)
            version = describe(weights_of(3), 3)
            acts: dict[str, Callable[[Path], object]] = {
                "publish": lambda copy: opened(copy).publish(version, weights_of(3)),
                "collect": lambda copy: opened(copy, keep=0).collect(),
            }
            points = die_everywhere(folder / "first", acts[rest[0]])
            sys.stdout.write(str(points))
        case "claim":
            results = everybody(lambda index: [opened(folder).claim({"pid": index}) for _ in range(4)])
            sys.stdout.write(json.dumps([number for said in results for number in said]))
        case "race":
            results = everybody(lambda i: [blobs.put_if_absent(folder / f"{n}", b"%d" % i * 1000) for n in range(40)])
            sys.stdout.write(json.dumps(np.sum(results, 0).tolist()))
        case "full":
            store = opened(folder)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            expect(FullError, lambda: store.publish(describe(weights_of(1), 1), weights_of(1)))
        case "fill":
            store = filled(folder, 0)
            expect(FullError, lambda: [store.publish(describe(weights_of(n), n), weights_of(n)) for n in range(1, 9)])
            assert 0 < len(store.numbers()) < 9
            assert all(equal(store.fetch(store.version(n)), weights_of(n)) for n in store.numbers())
        case "forbidden":
            (folder / "attempts").chmod(0o500)
            if os.getuid() == 0:
                os.setuid(65534)
            expect(ConfigError, lambda: opened(folder).claim({}))


def expect(kind: type[Exception], act: Callable[[], object]) -> None:
    with pytest.raises(kind) as caught:
        act()
    sys.stdout.write(str(caught.value))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
