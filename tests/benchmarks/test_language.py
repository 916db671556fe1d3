"""The language study: its text, its runs, and what it does when it is run again."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ggs.errors import ConfigurationError
from ggs.optim.digest import agreement_bytes
from ggs.wire import message_size

Import = Callable[[str], ModuleType]
SHORT = {"steps": 4, "batch_size": 2, "workers": 2}


@pytest.fixture
def short_grid(benchmark: Import, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A grid of two short runs, called "short"."""
    grids = benchmark("language_grids")
    runs = [dataclasses.replace(run, **SHORT) for run in (grids.DENSE, grids.GGS)]
    monkeypatch.setitem(grids.GRIDS, "short", lambda: runs)
    return runs


def test_the_text_is_the_shipped_one(benchmark: Import) -> None:
    """Results of different machines can be compared."""
    text = benchmark("language_text").load()
    assert text.sha256 == "c9c2d1f4450049dd17eb045941ee3e45de84db2cb6c2d796fffd474248e9db06"
    assert len(text.training) == 2_120_149
    assert len(text.validation) == 182_830
    assert int(text.training.max()) == benchmark("language_text").VOCABULARY - 1


def test_windows_are_inside_the_text_and_validation_is_never_random(benchmark: Import) -> None:
    language_text = benchmark("language_text")
    text = torch.arange(66, dtype=torch.uint8)
    starts = {int(language_text.batch(text, 1, 64, torch.Generator().manual_seed(seed))[0, 0])
              for seed in range(20)}  # fmt: skip
    assert starts == {0, 1}
    held_out = language_text.held_out(64)
    assert held_out.shape == (256, 65)
    assert torch.equal(held_out[-1], language_text.load().validation[-65:].long())


def test_the_model_sees_the_past_only(benchmark: Import) -> None:
    model = benchmark("language_model").CharacterTransformer(97, 64)
    assert sum(p.numel() for p in model.parameters()) == 116_608
    text = torch.randint(97, (1, 64))
    changed = text.clone()
    changed[0, 40] = (text[0, 40] + 1) % 97
    before, after = model(text)[0], model(changed)[0]
    assert torch.equal(before[:40], after[:40])
    assert not torch.equal(before[40], after[40])


def test_the_learning_rate_rises_and_falls_to_a_tenth(benchmark: Import) -> None:
    factor = benchmark("language_run").lr_factor
    assert factor(0, 500) == pytest.approx(1 / 50)
    assert factor(49, 500) == factor(50, 500) == 1.0
    assert factor(499, 500) == pytest.approx(0.1, abs=1e-3)
    assert [factor(step, 500) for step in range(50, 500)] == sorted(
        (factor(step, 500) for step in range(50, 500)), reverse=True
    )


def test_no_two_runs_of_the_grids_are_the_same(benchmark: Import) -> None:
    grids, settings = benchmark("language_grids"), benchmark("language_settings")
    runs = grids.runs(grids.GRIDS, (0, 1), 64)
    names = {settings.identity(dataclasses.asdict(run)) for run in runs}
    assert len(names) == len(runs)
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    with pytest.raises(ValueError, match="every is 3: 500 steps would end between two exchanges"):
        settings.Setting(method="averaging", lr=0.1, every=3)


def test_every_method_of_the_grids_runs(benchmark: Import) -> None:
    """One step of each, or one exchange."""
    grids, execute = benchmark("language_grids"), benchmark("language_run").execute
    runs = {(run.method, run.every > 1): run for run in grids.runs(grids.GRIDS, (0,), 64)}
    assert len(runs) == 9
    for run in runs.values():
        short = {**SHORT, "steps": 2, "every": min(run.every, 2), "warmup_steps": 1}
        row = execute(dataclasses.replace(run, **short))
        assert 4.0 < row["loss"] < 5.0
        assert row["bytes_per_step"] > 0
    impossible = dataclasses.replace(grids.DENSE, every=2, **SHORT)
    with pytest.raises(ConfigurationError, match="dense exchanges in every step, set it to 1"):
        execute(impossible)


def test_a_run_counts_what_the_optimizer_sends(benchmark: Import) -> None:
    settings = benchmark("language_settings")
    run = settings.Setting(
        method="ggs", lr=1e-3, momentum=0.5, density=0.01, values="sign", warmup_steps=2, **SHORT
    )
    row = benchmark("language_run").execute(run)
    message = message_size(116_608, 1166, "sign")
    per_step = message + agreement_bytes(29)
    assert row["bytes_per_step"] == per_step
    assert row["bytes_total"] > 4 * per_step
    assert row["dense_bytes_per_step"] == 4 * 116_608
    assert [step for step, _, _ in row["curve"]] == [1, 2, 3, 4]
    assert row["curve"][-1][1:] == [row["loss"], row["bytes_total"]]
    again = benchmark("language_run").execute(run)
    assert {**again, "seconds": 0} == {**row, "seconds": 0}


def test_what_is_there_is_not_run_again(
    benchmark: Import, short_grid: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    language, settings = benchmark("language"), benchmark("language_settings")
    out = tmp_path / "results" / "rows.jsonl"
    arguments = ["--grid", "short", "--seeds", "0", "--out", str(out)]
    assert language.main(arguments) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [settings.identity(row) for row in rows] == [
        settings.identity(dataclasses.asdict(run)) for run in short_grid
    ]
    first = out.read_bytes()
    whole = first.index(b"\n") + 1
    out.write_bytes(first[: whole + 40])  # killed while it wrote the second
    capsys.readouterr()
    assert language.main([*arguments, "--list"]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith(f"2 runs, 1 of them in {out}\nggs lr=0.006 momentum=0.5 density=0.01")
    assert len(out.read_bytes()) == whole + 40  # to list writes nothing
    benchmark("results_file").cut_off_half_line(out)
    assert out.read_bytes() == first[:whole]
    out.write_bytes(first)
    assert language.main(arguments) == 0
    assert out.read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "none"], "--grid none: choose of momentum"),
        (["--grid", "lr", "--seeds", "a"], "--seeds a: give whole numbers, as in 0,1,2"),
        (["--grid", "lr", "--jobs", "0"], "--jobs 0: give 1 or more"),
    ],
)
def test_a_wrong_option_is_named(
    benchmark: Import, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        benchmark("language").parse(arguments)
    assert message in capsys.readouterr().err


def test_a_file_of_something_else_is_left_alone(
    benchmark: Import, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "notes.txt"
    out.write_text("Dear diary,\nnothing happened.\n")
    assert benchmark("language").main(["--grid", "lr", "--out", str(out)]) == 1
    assert f"language.py: line 1 of {out} is no JSON" in capsys.readouterr().err
    assert out.read_text() == "Dear diary,\nnothing happened.\n"


@pytest.mark.parametrize("name", ["adamw", "nadam", "sgd", "rmsprop", "lion", "muon"])
def test_every_optimizer_trains_with_ggs(benchmark: Import, name: str) -> None:
    """At density 1 and with one worker, as the optimizer alone; float64, as some divide noise by noise."""
    language_optimizers, language_model = (
        benchmark("language_optimizers"),
        benchmark("language_model"),
    )
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    language_methods, settings = benchmark("language_methods"), benchmark("language_settings")
    from ggs.dist import lockstep

    def trained(wrapped: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = language_model.CharacterTransformer(97, 64).double()
        optimizer = language_optimizers.create(name, model, 0.01, 0.7)
        if wrapped:
            setting = settings.Setting(method="ggs", lr=0.01, density=1.0, values="fp64")
            optimizer = language_methods.create(setting, optimizer, model, lockstep.alone())
        for step in range(3):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (step + 1)
            optimizer.zero_grad()
            model.loss(
                torch.randint(97, (2, 65), generator=torch.Generator().manual_seed(step))
            ).backward()
            optimizer.step()
        return torch.cat([p.detach().view(-1) for p in model.parameters()])

    torch.testing.assert_close(trained(True), trained(False), rtol=0, atol=1e-9)


def test_lion_is_what_its_paper_says(benchmark: Import) -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    lion = benchmark("language_optimizers").Lion([weight], 0.1, (0.9, 0.99))
    momentum, expected = torch.zeros(2), weight.detach().clone()
    for step in range(4):
        gradient = torch.tensor([1.0 - step, 0.5])
        weight.grad = gradient.clone()
        lion.step()
        expected = expected - 0.1 * (0.9 * momentum + 0.1 * gradient).sign()
        momentum = 0.99 * momentum + 0.01 * gradient
        torch.testing.assert_close(weight.detach(), expected)
