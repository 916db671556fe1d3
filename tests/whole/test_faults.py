"""What a cluster does to a training: each ends in recovery or in a non-zero exit with one clear line."""

import gc
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import dataloader

from ggs.errors import CheckpointError, ConfigurationError, DataError
from ggs.train import image_folder as image_folder
from ggs.train.arguments import build
from ggs.train.check import check
from ggs.train.checkpoint import checkpointer, files
from ggs.train.config import TrainConfig
from ggs.train.error_translation import cluster_errors
from ggs.train.loop import Trainer
from ggs.train.worker import train
from tests.full import in_full
from tests.train.checkpoint.waiting import wait_for_checkpoint
from tests.worker_pool import WorkerPool

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
STEPS = 9
pytestmark = pytest.mark.timeout(600)  # a machine that does other things takes long to import torch


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "run_dir": str(folder / "run"),
        "checkpoint_dir": str(folder / "checkpoints"),
        "checkpoint_every": "2 steps",
        "steps": STEPS,
        "batch_size": 8,
        "evaluate_every": 0,
        "eval_batch_size": 1000,
        "density_warmup": "6 steps",
        "device": "cpu",
        "threads": 1,
        "workers": 2,
        **changes,
    }


def run(rank: int, size: int, values: dict[str, Any]) -> None:
    train(build(TrainConfig, values), CPU, None)


def weights(folder: Path) -> bytes:
    return (folder / "run" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(workers: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed")
    workers.run(2, run, settings(folder))
    return weights(folder)


# The real trainer, in which rank 1, or 0 where only that one acts, comes to harm at the given place.
SABOTAGE = """
import os, signal, sys
from datetime import timedelta
import torch, torch.distributed as dist
from ggs.train import config, loop, worker
from ggs.train.checkpoint import files
from ggs.dist.collectives import Collectives

place, rank = sys.argv.pop(1), int(os.environ["RANK"])
state = {"step": 0}

def strike(number=signal.SIGKILL):
    os.kill(os.getpid(), number)

def hurry():  # healthy steps had the whole time-out; the one that nobody answers has not
    backends = [group._get_backend(torch.device("cpu")) for group in dist.distributed_c10d._world.pg_map]
    exchanging = [each for each in backends if each.options._timeout == timedelta(seconds=61)]
    assert exchanging
    for each in exchanging:
        each._set_default_timeout(timedelta(seconds=2))

class Sabotaged(loop.Trainer):
    def _step(self, batches):
        state["step"] = self.state.step + 1
        if state["step"] == 6 and place == "pause":
            hurry()
        if state["step"] == 6 and rank == 1:
            if place == "pause":
                strike(signal.SIGSTOP)
            if place == "memory":
                torch.empty(1 << 55)
            if place == "python memory":
                bytearray(1 << 62)
            if place == "numpy memory":
                import numpy
                numpy.empty(1 << 59, numpy.uint8)
            if place == "bug":
                {}["lost"]
            if place == "forward":
                self.model.register_forward_hook(lambda *_: strike())
        super()._step(batches)

worker.Trainer = Sabotaged

def before(owner, name, act):
    original = getattr(owner, name)
    def acting(*args, **options):
        act(*args, **options)
        return original(*args, **options)
    setattr(owner, name, acting)

if place == "end":
    before(worker.process_group, "leave", lambda *_: strike(signal.SIGSTOP) if rank == 1 else None)
if place == "exchange":
    before(Collectives, "count", lambda *_: strike() if state["step"] >= 6 and rank == 1 else None)
if place == "file":  # half of it is there
    def half(path, *_):
        if state["step"] >= 6 and rank == 1:
            path.with_name(f"{path.name}.{os.getpid()}.partial").write_bytes(b"half")
            strike()
    before(files, "write_state", half)
if place == "manifest":
    before(files, "write_manifest", lambda *_: strike() if state["step"] >= 6 else None)
if place == "commit":
    before(files, "commit", lambda *_: strike() if state["step"] >= 6 else None)
if place == "rename":  # the old one is gone, the new one not yet there
    before(os, "rename", lambda *_: strike() if state["step"] >= 6 else None)
worker.main(config.parse(sys.argv[1:]))
"""


@pytest.fixture
def harm(tmp_path: Path, _compiled: None) -> Iterator[Callable[..., list[str]]]:
    """Train through the real entrypoint with harm at a place; the log's lines. Nothing may be left."""
    script, marker = tmp_path / "sabotage.py", f"faults-{os.getpid()}-{time.monotonic_ns()}"
    script.write_text(SABOTAGE)
    processes = []

    def start(place: str, seconds: float, **changes: Any) -> list[str]:
        values = settings(tmp_path, collective_timeout=61, **changes)
        values.pop("workers")
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "entrypoint.py"), "--workers=2", "--finish-timeout=5",
             f"--script={script}", place, *flags],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MARKER": marker},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        processes.append(process)
        log, _ = process.communicate(timeout=seconds)
        assert process.returncode == 1
        assert not alive(marker)
        return log.splitlines()

    yield start
    for process in processes:
        process.kill()


def alive(marker: str) -> list[str]:
    """Processes that have the marker in their environment; zombies have none."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "place", [*in_full("forward", "exchange", "file", "manifest", "commit"), "rename"]
)
def test_a_kill_anywhere_costs_steps_and_nothing_else(
    harm: Callable[[str, float], list[str]],
    workers: WorkerPool,
    tmp_path: Path,
    undisturbed: bytes,
    place: str,
) -> None:
    log = harm(place, 150)
    rank = 0 if place in ("manifest", "commit", "rename") else 1
    assert log[-1].startswith(f"ggs: rank {rank} on task local-0: killed by SIGKILL")
    found = files.checkpoints(tmp_path / "checkpoints")
    assert {int(path.name[-2:]) for path in found} >= {
        2
    }  # the one of step 4 may still be under way
    for path in found:
        manifest = files.read_manifest(path)
        for name in manifest.files:
            files.verified(path, manifest, name)
    workers.run(2, run, settings(tmp_path))
    assert weights(tmp_path) == undisturbed
    assert not list((tmp_path / "checkpoints").glob("*.partial"))


@pytest.mark.full
def test_a_kill_between_two_exchanges_costs_steps_and_nothing_else(
    harm: Callable[..., list[str]], workers: WorkerPool, tmp_path: Path
) -> None:
    """Exchanges after steps 3, 6 and 9: every checkpoint of the killed run is of local steps."""
    local = {"every": 3, "density": 0.01, "optimizer": "adamw"}
    workers.run(2, run, settings(tmp_path / "undisturbed", **local))
    log = harm("forward", 150, every=3, density=0.01, optimizer="adamw")
    assert log[-1].startswith("ggs: rank 1 on task local-0: killed by SIGKILL")
    steps = {int(path.name[-2:]) for path in files.checkpoints(tmp_path / "checkpoints")}
    assert steps in ({2}, {2, 4})
    workers.run(2, run, settings(tmp_path, **local))
    assert weights(tmp_path) == weights(tmp_path / "undisturbed")


def test_a_paused_worker_ends_the_job(harm: Callable[[str, float], list[str]]) -> None:
    [*_, last] = harm("pause", 200)
    assert last.startswith(
        "ggs: rank 0 on task local-0: the other workers did not answer within 61 s (collective_timeout)"
    )


@pytest.mark.full
def test_a_worker_that_hangs_after_its_last_exchange_ends_the_job(
    harm: Callable[[str, float], list[str]],
) -> None:
    [*_, last] = harm("end", 200)
    assert last == "ggs: rank 1 on task local-0: still runs 5 s after others have ended: it hangs"


@pytest.mark.parametrize("place", ["memory", *in_full("python memory", "numpy memory")])
def test_no_memory_is_one_line(harm: Callable[[str, float], list[str]], place: str) -> None:
    log = harm(place, 150)
    assert log[-1].startswith("ggs: rank 1 on task local-0: out of memory (")
    assert log[-1].endswith("same number of images per step")
    assert not any("Traceback" in line for line in log)


def test_a_bug_in_a_worker_ends_with_what_and_where(
    harm: Callable[[str, float], list[str]],
) -> None:
    log = harm("bug", 150)
    assert log[-1] == "ggs: rank 1 on task local-0: KeyError: 'lost'"
    assert sum("Traceback" in line for line in log) == 1


def alone(folder: Path, **changes: Any) -> TrainConfig:
    values = {**settings(folder), "checkpoint_every": "1 step", "workers": None, **changes}
    return build(TrainConfig, {name: value for name, value in values.items() if value is not None})


def at_step(monkeypatch: pytest.MonkeyPatch, actions: dict[int, Callable[[], object]]) -> None:
    """Do something after a step, when the checkpoint before it is written."""
    original = Trainer._step

    def step(trainer: Trainer, batches: Any) -> None:
        original(trainer, batches)
        if trainer.state.step in actions:
            wait_for_checkpoint(trainer)
            actions[trainer.state.step]()

    monkeypatch.setattr(Trainer, "_step", step)


def test_a_storage_that_is_gone_for_a_while_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    train(alone(tmp_path / "plain", checkpoint_dir=None, checkpoint_every=None), CPU, None)
    there, gone = tmp_path / "checkpoints", tmp_path / "gone"
    at_step(monkeypatch, {3: lambda: there.rename(gone), 5: lambda: gone.rename(there)})
    train(alone(tmp_path), CPU, None)
    said = capfd.readouterr().out
    assert said.count("ggs: warning: rank 0 cannot write to") == 2
    assert weights(tmp_path) == weights(tmp_path / "plain")
    assert [path.name[-1] for path in files.checkpoints(there)] == ["9", "8", "7"]


def test_a_storage_that_stays_away_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "checkpoints"
    at_step(monkeypatch, {3: lambda: there.rename(tmp_path / "gone")})
    with pytest.raises(
        CheckpointError,
        match=r"3 checkpoints in a row could not be written: rank 0 cannot .*No such",
    ):
        train(alone(tmp_path, steps=50), CPU, None)
    assert not there.exists()  # nothing was written into the place where the storage had been


def test_a_storage_that_hangs_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers, back = [], threading.Event()
    original = files.write_bytes

    def hanging(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            writers.append(threading.current_thread())
            back.wait()
        return original(*arguments)

    monkeypatch.setattr(files, "write_bytes", hanging)
    try:
        with pytest.raises(
            CheckpointError, match=r"still not written after 0\.5 s \(checkpoint_timeout\)"
        ):
            train(alone(tmp_path, steps=50, checkpoint_timeout=0.5), CPU, None)
    finally:
        back.set()
        for thread in writers:
            thread.join()  # its warning would be in what another test prints


@pytest.fixture
def small_storage(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB of its own."""
    place = tmp_path / "storage"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    yield place
    if place.is_mount():
        subprocess.run(["umount", str(place)], check=True)


def with_little_room(storage: Path, folder: Path, steps: int) -> TrainConfig:
    """A checkpoint of LeNet-5 with Adam takes about 1 MB, of SGD half of that: one fits, two do not."""
    place = str(storage / "c")
    return alone(folder, checkpoint_dir=place, optimizer="sgd", keep_checkpoints=1, steps=steps)


@pytest.mark.root
def test_a_full_disk_stops_the_run_and_leaves_good_checkpoints(
    small_storage: Path, tmp_path: Path
) -> None:
    config = with_little_room(small_storage, tmp_path, steps=50)
    with pytest.raises(CheckpointError, match=r"could not be written: .*No space left"):
        train(config, CPU, None)
    [good] = files.checkpoints(small_storage / "c")
    manifest = files.read_manifest(good)
    for name in manifest.files:
        files.verified(good, manifest, name)


@pytest.mark.root
def test_a_last_checkpoint_that_finds_no_room_is_told_after_the_results(
    small_storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_little_room(small_storage, tmp_path, steps=2)
    with pytest.raises(CheckpointError) as error:
        train(config, CPU, None)
    message = str(error.value)
    assert message.startswith(
        f"the training has ended and its results are in {tmp_path / 'run'}, but "
    )
    assert "the checkpoint of its last step, 2, could not be written: " in message
    assert "No space left" in message
    assert "goes on" not in "".join(capsys.readouterr())
    assert (tmp_path / "run" / "summary.json").exists()
    assert weights(tmp_path)
    [good] = files.checkpoints(small_storage / "c")
    assert files.read_manifest(good).step == 1
    assert not (small_storage / "c" / "done.json").exists()
    bigger = tmp_path / "bigger"
    shutil.copytree(small_storage / "c", bigger)
    first = weights(tmp_path)
    train(config.model_copy(update={"checkpoint_dir": bigger}), CPU, None)  # as a retried job does
    assert weights(tmp_path) == first
    assert (bigger / "done.json").exists()


@pytest.mark.root
def test_a_read_only_storage_is_refused_at_the_start(small_storage: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_storage)], check=True)
    config = alone(tmp_path, checkpoint_dir=str(small_storage / "c"))
    with pytest.raises(ConfigurationError, match=r"checkpoint_dir: .* may not be written to"):
        check(config)
    with pytest.raises(CheckpointError, match=r"checkpoint_dir: cannot write to .*Read-only"):
        train(config, CPU, None)


def elsewhere(rank: int, size: int, values: dict[str, Any]) -> str:
    checkpointer.PROBE_SECONDS = 0.5
    config = build(TrainConfig, {**values, "checkpoint_dir": f"{values['checkpoint_dir']}-{rank}"})
    try:
        train(config, CPU, None)
    except ConfigurationError as error:
        return str(error)
    finally:
        checkpointer.PROBE_SECONDS = 30.0
    return ""


def test_a_folder_that_the_workers_do_not_share_is_refused_by_all(
    workers: WorkerPool, tmp_path: Path
) -> None:
    messages = workers.run(2, elsewhere, settings(tmp_path))
    assert messages[0].startswith("checkpoint_dir: rank 1: ")
    assert messages[1].startswith(f"checkpoint_dir: {tmp_path}")  # its rank is told by the launcher
    for message in messages:
        assert "is not the folder that rank 0 sees" in message


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for part in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(8):
                pixels = torch.full((32, 32, 3), 9 * i, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(tmp_path / part / name / f"{i}.png")
    return tmp_path


def decoding(images: Path, data_workers: int, **changes: Any) -> TrainConfig:
    values = {
        "data": "imagefolder", "data_dir": str(images), "image_size": 32, "model": "cifarnet",
        "batch_size": 2, "data_workers": data_workers, "checkpoint_dir": None, "checkpoint_every": None,
    }  # fmt: skip
    return alone(images, **{**values, **changes})


@pytest.mark.parametrize("data_workers", [0, 1])
def test_a_corrupt_image_is_named(images: Path, data_workers: int) -> None:
    bad = images / "train" / "a" / "3.png"
    bad.write_bytes(bad.read_bytes()[:60])
    with pytest.raises(DataError) as error:
        train(decoding(images, data_workers), CPU, None)
    assert str(error.value).startswith(f"data: cannot decode {bad}: ")
    assert "\n" not in str(error.value)


def harmed_decoder(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """Processes forked from this one come to harm at the first image that they open."""
    parent = os.getpid()
    original = image_folder._open

    def opening(path: str) -> Image.Image:
        if os.getpid() != parent:
            os.kill(os.getpid(), number)
        return original(path)

    monkeypatch.setattr(image_folder, "_open", opening)


@pytest.fixture
def _no_decoder_is_left() -> Iterator[None]:
    """What is left of a data loader ends here, and not when garbage happens to be collected in another
    test: it waits five seconds for its processes, and a stopped one stays, with all files open."""
    before = set(multiprocessing.active_children())
    yield
    gc.collect()
    for process in set(multiprocessing.active_children()) - before:
        process.kill()
        process.join()


@pytest.mark.usefixtures("_no_decoder_is_left")
@pytest.mark.parametrize("late", [False, True])
def test_a_decoding_process_that_dies_ends_the_run(
    images: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Also where this process gets its processor back only when that one is dead."""
    original = dataloader._MultiProcessingDataLoaderIter._reset

    def reset(loading: Any, *arguments: Any, **options: Any) -> None:
        original(loading, *arguments, **options)
        for process in loading._workers if late else []:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter, "_reset", reset)
    harmed_decoder(monkeypatch, signal.SIGKILL)
    with (
        pytest.raises(DataError, match=r"^data_workers: a process that decodes images died"),
        cluster_errors(60),
    ):
        train(decoding(images, 1), CPU, None)


@pytest.mark.usefixtures("_no_decoder_is_left")
def test_a_decoding_process_may_die_in_the_middle_of_a_step(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when memory runs short: most of the time, this process is in a step."""
    before = set(multiprocessing.active_children())

    def slow_backward(loss: torch.Tensor) -> None:
        (decoder,) = set(multiprocessing.active_children()) - before
        decoder.kill()
        time.sleep(30)  # the signal of its death ends it
        pytest.fail("nobody noticed")

    monkeypatch.setattr(torch.autograd, "backward", slow_backward)
    with (
        pytest.raises(DataError, match=r"^data_workers: a process that decodes images died"),
        cluster_errors(60),
    ):
        train(decoding(images, 1), CPU, None)


@pytest.mark.usefixtures("_no_decoder_is_left")
def test_a_decoding_process_that_hangs_ends_the_run(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmed_decoder(monkeypatch, signal.SIGSTOP)
    with (
        pytest.raises(DataError, match=r"died or hangs \(DataLoader timed out after 2"),
        cluster_errors(60),
    ):
        train(decoding(images, 1, collective_timeout=2), CPU, None)


@pytest.mark.full
@pytest.mark.root
def test_a_full_shared_memory_is_told_with_its_reason(images: Path) -> None:
    """Through which a decoding process passes its images on; 8 of them take 1.2 MB."""
    program = (
        "from ggs.cli.main import main; import sys; sys.argv[1:] = 'train --data imagefolder --data-dir . "
        "--model cifarnet --image-size 224 --batch-size 8 --steps 2 --workers 1 --device cpu --run-dir run "
        "--data-workers 1 --density-warmup 0 --evaluate-every 0'.split(); main()"
    )
    mount = 'mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 99; exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", program],
        cwd=images, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "ggs: rank 0 on task local-0: data_workers: a process that decodes images "
    )
    assert "No space left on device" in last
    assert last.endswith("give fewer --data-workers, or raise extraContainerOptions.shmMB")
    assert "Traceback" not in done.stderr
    assert len(last) < 350


def test_a_run_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is on a disk that fills up: the record cannot grow."""
    config = alone(tmp_path, checkpoint_dir=None, checkpoint_every=None, log_every=1)
    original = Trainer._step

    def step(trainer: Trainer, batches: Any) -> None:
        original(trainer, batches)
        if trainer.state.step == 3:
            assert trainer.folder is not None
            trainer.folder._metrics.close()
            trainer.folder._metrics = open("/dev/full", "wb")  # noqa: SIM115

    monkeypatch.setattr(Trainer, "_step", step)
    with pytest.raises(CheckpointError, match=r"cannot write to the run's folder .*No space left"):
        train(config, CPU, None)


@pytest.mark.root
def test_a_disk_too_small_for_the_results_is_one_line(small_storage: Path, tmp_path: Path) -> None:
    config = alone(
        tmp_path, run_dir=str(small_storage / "r"), checkpoint_dir=None, checkpoint_every=None
    )
    (small_storage / "ballast").write_bytes(bytes(900_000))  # LeNet-5's weights take 247 kB
    with pytest.raises(CheckpointError, match=r"cannot write to the run's folder .*No space left"):
        train(config, CPU, None)


@pytest.mark.root
def test_a_read_only_run_folder_is_refused_at_the_start(
    small_storage: Path, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_storage)], check=True)
    config = alone(
        tmp_path, run_dir=str(small_storage / "r"), checkpoint_dir=None, checkpoint_every=None
    )
    with pytest.raises(ConfigurationError, match=r"run_dir: .* may not be written to"):
        check(config)
    with pytest.raises(ConfigurationError, match=r"run_dir: cannot write to .*Read-only"):
        train(config, CPU, None)


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_run_folder_that_vanishes_comes_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    folder = tmp_path / "run"
    act = shutil.rmtree if how == "deleted" else lambda path: path.rename(tmp_path / "elsewhere")
    at_step(monkeypatch, {3: lambda: act(folder)})
    train(alone(tmp_path, log_every=1, tensorboard=False), CPU, None)
    assert {path.name for path in folder.iterdir()} >= {
        "config.yaml", "metrics.jsonl", "summary.json", "model.safetensors"
    }  # fmt: skip
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, STEPS + 1))
    assert len(files.checkpoints(tmp_path / "checkpoints")) == 3


@pytest.mark.root
def test_a_run_folder_whose_storage_goes_away_is_one_line(
    small_storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be written below the mount point would be lost with the container."""
    unmount = ["umount", "--lazy", str(small_storage)]
    at_step(monkeypatch, {3: lambda: subprocess.run(unmount, check=True)})
    with pytest.raises(CheckpointError, match=r"run's folder .*no longer on the storage"):
        train(
            alone(tmp_path, run_dir=str(small_storage / "r"), log_every=1, tensorboard=False),
            CPU,
            None,
        )
    assert not list(small_storage.iterdir())


@pytest.mark.parametrize("every", [1, 3])
def test_the_figures_of_a_resumed_run_are_whole(
    tmp_path: Path, workers: WorkerPool, every: int
) -> None:
    """What the summary counts goes on where it was; nothing is counted twice."""
    workers.run(2, run, settings(tmp_path / "a", every=every))
    workers.run(2, run, settings(tmp_path / "b", steps=4, every=every))
    workers.run(2, run, settings(tmp_path / "b", every=every))
    found = [json.loads((tmp_path / n / "run" / "summary.json").read_text()) for n in "ab"]
    for name in ("steps", "epochs", "bytes_sent_total", "density", "settled_steps", "top1", "loss"):
        assert found[0][name] == found[1][name], name
