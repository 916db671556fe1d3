"""The weights are views of one buffer, and each still is a tensor that can be saved and copied alone."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn

import ggs
from tests.models import backward, build

NAMES = ["plain", "batchnorm", "tied", "non_contiguous", "channels_last"]


def wrapped(model: nn.Module) -> Any:
    return ggs.GGS(torch.optim.SGD(model.parameters(), lr=0.1), model, density=1.0)


def equal(model: nn.Module, other: nn.Module) -> bool:
    mine, theirs = model.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_safetensors_saves_a_wrapped_model(tmp_path: Path, name: str, inside: bool) -> None:
    """Which refuses tensors that share their storage, unless one of them is all of it."""
    model, other = build(name), build(name, seed=2)
    optimizer = wrapped(model)
    backward(model, 0, 0)
    optimizer.step()
    if inside:
        with optimizer.consolidated():
            save_model(model, str(tmp_path / "model.safetensors"))
    else:
        save_model(model, str(tmp_path / "model.safetensors"))
    assert not equal(model, other)
    wrapped(other)
    load_model(other, str(tmp_path / "model.safetensors"))
    assert equal(model, other)


def test_a_layer_is_saved_without_the_others() -> None:
    model = build("plain")
    sizes = []
    for _ in range(2):
        file = io.BytesIO()
        torch.save(model[3], file)
        sizes.append(len(file.getvalue()))
        wrapped(model)
    assert sizes[0] == sizes[1]


def test_a_copy_of_a_wrapped_model_is_on_its_own() -> None:
    model = build("plain")
    optimizer = wrapped(model)
    kept = copy.deepcopy(model)
    assert kept[1].weight.untyped_storage().nbytes() == kept[1].weight.nbytes
    backward(model, 0, 0)
    optimizer.step()
    assert not torch.equal(model[1].weight, kept[1].weight)


def test_the_buffer_stays_as_long_as_one_weight() -> None:
    model = build("plain")
    layer, values = model[3], model[3].weight.detach().clone()
    wrapped(model)
    del model
    torch.ones(4096)  # what is free is used again
    assert torch.equal(layer.weight, values)
