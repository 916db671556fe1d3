"""The table of OpenPAI's variables, against what its own runtime prints for a job."""

import re

import pytest

from ggs.launch import pai_names
from tests.pai.local.test_task_environment import RANDOM, WORKER_A_1

SET = RANDOM | WORKER_A_1.keys() - {"NVIDIA_VISIBLE_DEVICES"}


def test_every_variable_of_a_task_is_in_the_table() -> None:
    names = [re.compile(pai_names.pattern(name)) for name in pai_names.FORMS]
    assert [name for name in SET if not any(each.fullmatch(name) for each in names)] == []


@pytest.mark.parametrize("name", pai_names.FORMS)
def test_every_name_of_the_table_is_set(name: str) -> None:
    assert any(re.fullmatch(pai_names.pattern(name), each) for each in SET)


@pytest.mark.parametrize(
    ("role", "key"), [("worker", "worker"), ("Worker_A", "workera"), ("_", "")]
)
def test_the_key_of_a_role(role: str, key: str) -> None:
    assert pai_names.role_key(role) == key
