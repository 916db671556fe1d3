"""Names are looked up without the imports that take seconds."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ggs.errors import ConfigurationError, UnsupportedError
from ggs.optim.support import check_optimizer
from ggs.train import models, names, optimizers


def test_the_names_read_are_those_that_the_packages_have() -> None:
    assert names.known_optimizers() == set(optimizers.optimizer_classes())
    assert names.known_models() == set(models.names())


def test_only_optimizers_that_can_be_used_are_offered() -> None:
    refused = set()
    for name, kind in optimizers.optimizer_classes().items():
        try:
            check_optimizer(kind([torch.nn.Parameter(torch.zeros(2, 2))], lr=0.1))
        except UnsupportedError:
            refused.add(name)
    assert refused == names.REFUSED_OPTIMIZERS
    with pytest.raises(ConfigurationError, match="adamw, amsgrad") as told:
        names.require_optimizer("adamx", names.known_optimizers())
    assert not [name for name in refused if name in str(told.value)]
    names.require_optimizer("LBFGS", names.known_optimizers())  # refused later, with the reason


@pytest.mark.parametrize("wrong", [["--model", "lenet6"], ["--optimizer", "adamm"]])
def test_a_wrong_name_is_told_without_importing_torch(wrong: list[str], tmp_path: Path) -> None:
    code = f"""
import sys
from ggs.errors import ConfigurationError
from ggs.train.start import parse_and_check
try:
    parse_and_check({wrong})
except ConfigurationError as error:
    print("torch" in sys.modules, error)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ")
    assert wrong[1] in done.stdout
    assert "did you mean" in done.stdout


def test_without_sources_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "find_spec", lambda name: None)
    names.check_names("nothing", "at all")


def in_a_new_process(code: str, folder: Path) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True
    ).stdout.splitlines()[-1]


LENET = """
import sys, torch
from ggs.train.start import parse_and_check
from ggs.train.worker import train
flags = "--steps 1 --evaluate-every 0 --device cpu --run-dir run"
train(parse_and_check(flags.split()), torch.device("cpu"), None)
print("torchvision" in sys.modules)
"""


def test_a_training_without_torchvisions_models_and_data_does_not_import_it(tmp_path: Path) -> None:
    assert in_a_new_process(LENET, tmp_path) == "False"


WITHOUT = """
import sys
sys.modules["torchvision"] = None  # as if it were not installed
from pathlib import Path
from ggs.errors import ConfigurationError
from ggs.train.start import parse_and_check
for part in ("train", "test"):
    Path(part, "a").mkdir(parents=True)
parse_and_check([])
for flags in ("--model resnet18", "--data imagefolder --data-dir ."):
    try:
        parse_and_check(flags.split())
    except ConfigurationError as error:
        print(error, end="; ")
"""


def test_without_torchvision_one_line_names_the_extra(tmp_path: Path) -> None:
    said = in_a_new_process(WITHOUT, tmp_path)
    assert said.count("is not installed: pip install 'gradient-sparsification[train]'") == 2
