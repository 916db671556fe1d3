"""Flags, YAML and help from one pydantic model; every mistake is one line."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ggs.errors import ConfigurationError
from ggs.train import arguments
from ggs.train import run_folder as runs
from ggs.train.arguments import Group, mark
from ggs.train.config import TrainConfig
from tests.fuzz import EDITS, Edits, bounded, cases, damaged


def read(*argv: str) -> TrainConfig:
    return arguments.parse(TrainConfig, argv, "ggs train", "Train.")


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("lr: 1e-2\nbatch_size: 8\ndensity_warmup: 200 steps\nchannels_last: true\n")
    config = read("--config", str(file), "--batch-size", "4", "--no-channels-last")
    assert (config.lr, config.batch_size, config.channels_last) == (0.01, 4, False)
    assert str(config.density_warmup) == "200 steps"
    assert config.seed == TrainConfig().seed


def test_a_written_configuration_reads_back_the_same(tmp_path: Path) -> None:
    config = read(
        "--optimizer-options", "{betas: [0.8, 0.9], amsgrad: true}", "--clip-norm", "0.5",
        "--evaluate-every", "100 steps", "--run-dir", str(tmp_path / "with space ä"), "--steps=7",
    )  # fmt: skip
    file = tmp_path / "config.yaml"
    file.write_text(runs.dump(config), encoding="utf-8")
    assert read("--config", str(file)) == config


@pytest.mark.parametrize(
    ("text", "number"),
    [("016", 16), ("010", 10), ("1_000", 1000), ("0x10", 16), ("0o10", 8), ("+7", 7)],
)
def test_a_whole_number_in_a_file_is_what_a_reader_takes_it_for(
    tmp_path: Path, text: str, number: int
) -> None:
    """Not as YAML 1.1 has it, where 016 is 14."""
    file = tmp_path / "config.yaml"
    file.write_text(f"seed: {text}\nmodel_options: {{seed: {text}}}\n")
    config = read("--config", str(file))
    assert (config.seed, config.model_options) == (number, {"seed": number})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-1", 0.1),
        ("1e-8", 1e-8),
        ("2E5", 2e5),
        ("-1e+2", -100.0),
        ("1.e3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1_0.5", 10.5),
        ("'1e-1'", "1e-1"),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("2024-01-01", "2024-01-01"),
        ("1e", "1e"),
        ("-", "-"),
        ("0o8", "0o8"),
    ],
)
def test_a_number_in_options_is_a_number_and_all_else_is_text(text: str, value: object) -> None:
    options = read("--optimizer-options", f"{{a: {text}}}").optimizer_options
    assert options == {"a": value}
    assert type(options["a"]) is type(value)


@pytest.mark.parametrize("text", ["1e-1", "016", "0o17", "1:30", "2024-01-01", "yes", "~", "1e3"])
def test_a_text_that_looks_like_something_else_stays_text_in_a_written_configuration(
    tmp_path: Path, text: str
) -> None:
    config = TrainConfig(model_options={"a": text})
    file = tmp_path / "config.yaml"
    file.write_text(runs.dump(config), encoding="utf-8")
    assert read("--config", str(file)) == config
    assert yaml.safe_load(file.read_text())["model_options"] == {"a": text}


def test_a_folder_named_like_a_date_is_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("run_dir: 2024-01-01\n")
    assert read("--config", str(file)).run_dir == Path("2024-01-01")


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.yaml").write_text(
        "data_dir: ~/data\ncheckpoint_dir: ~\nrun_dir: '~/a ~b'\nresume: ~/other\n"
    )
    config = read("--config", "~/config.yaml", "--checkpoint-dir=~/kept")
    assert config.data_dir == tmp_path / "data"
    assert config.run_dir == tmp_path / "a ~b"
    assert config.checkpoint_dir == tmp_path / "kept"
    assert config.resume == f"{tmp_path}/other"


def test_an_optional_setting_can_be_unset_by_flag(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("clip_norm: 1.0\n")
    assert read("--config", str(file), "--clip-norm", "none").clip_norm is None


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--densty", "0.1"], ["--densty", "did you mean --density?"]),
        (["--density", "0"], ["density", "0 ", "above 0", "at most 1"]),
        (["--density", "-1"], ["density", "-1"]),
        (["--density", "2"], ["density", "2 "]),
        (["--density", "abc"], ["density", "abc", "a number"]),
        (["--density", "nan"], ["density", "nan"]),
        (["--density"], ["--density", "expected one argument"]),
        (["--epochs", "1.5"], ["epochs", "1.5", "whole number"]),
        (["--batch-size", "0"], ["batch_size", "0 ", "at least 1"]),
        (["--method", "ggss"], ["method", "ggss", "ggs", "dense", "did you mean ggs?"]),
        (["--data", "mnist-5k"], ["data", "mnist-5k", "did you mean mnist5k?"]),
        (["--density-warmup", "5"], ["density_warmup", "'5'", "1 epoch"]),
        (["--density-warmup", "1.5 steps"], ["density_warmup", "whole number of steps"]),
        (["--evaluate-every", "-1 epochs"], ["evaluate_every", "-1 epochs"]),
        (["--optimizer-options", "[1"], ["optimizer_options", "[1", "nesterov"]),
        (["--optimizer-options", "3"], ["optimizer_options", "3 "]),
        (["train.py"], ["train.py"]),
        (["--config", "missing.yaml"], ["missing.yaml", "No such file"]),
        (["--workers", "0"], ["workers", "at least 1"]),
        (["--seed", "-3"], ["seed", "-3"]),
        (["--lr", "\n"], ["lr: \\n is not allowed"]),
        (["--lr", "\x1b[2J"], ["lr: \\x1b[2J is not allowed"]),
        (["--\n"], ["--\\n is no setting"]),
        (["--data", "\udcff"], ["data: \\udcff"]),
        (["--run-dir=~nobody-of-that-name/a"], ["run_dir", "~nobody-of-that-name", "no home"]),
        (["--run-dir", "./~/a"], ["run_dir", "'~'", "absolute path"]),
        (["--optimizer-options", "{eps: 1, eps: 2}"], ["optimizer_options", "eps is given twice"]),
    ],
)
def test_a_mistake_is_one_line_with_name_value_and_way_out(
    argv: list[str], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(*argv)
    message = str(caught.value)
    assert message.isprintable()
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lerning_rate: 1", ["lerning_rate"]),
        ("lr_scedule: cosine", ["lr_scedule", "did you mean lr_schedule?"]),
        ("epochs: true", ["epochs: true", "whole number"]),
        ("density: yes", ["density: true", "yes and on", "above 0 and at most 1"]),
        ("density: 0.1\ndensity: 0.2", ["density", "twice"]),
        ("# first\nlr: 1\n\nseed: 2\nlr: 3\nseed: 4", ["line 5", "lr is given twice", "line 2"]),
        ("model_options:\n  a: 1\n  a: 2\n", ["line 3", "a is given twice", "line 2"]),
        ("epochs: 1:30", ["epochs: 1:30 is not allowed", "whole number"]),
        ("steps: 2024-01-01", ["steps: 2024-01-01 is not allowed", "whole number"]),
        ("run_dir: 2024", ["run_dir: 2024 is a number", "in quotes"]),
        ("model: 1.50", ["model: 1.5 is a number", "quotes"]),
        ("run_dir: yes", ["run_dir: true", "quotes"]),
        ("a: &a [1]\nb: *a", ["aliases"]),
        ("- 1\n- 2", ["list"]),
        ("lr: {", ["config.yaml is not readable as YAML: line 1, column 6"]),
        ("lr: [1, 2]", ["lr", "[1, 2]"]),
        ("{? [1] : 2}", ["YAML"]),
        ("[" * 5000, ["YAML"]),
        ("lr: !!python/object/apply:os.getcwd []", ["YAML"]),
        ("#" * (1 << 20) + "\n", ["larger than"]),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read("--config", str(file))
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.fuzz
@cases(2)
@given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from(["--lr", "--density", "--steps"]))))
def test_any_command_line_is_a_configuration_or_a_configuration_error(argv: list[str]) -> None:
    if {"-h", "--help"} & set(argv):
        return
    message = ""
    try:
        assert isinstance(read(*argv), TrainConfig)
    except ConfigurationError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.fuzz
@cases(2)
@given(st.binary(max_size=200))
def test_any_file_is_a_mapping_or_a_configuration_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content)
    message = ""
    try:
        assert isinstance(arguments.load_yaml(file), dict)
    except ConfigurationError as error:
        message = str(error)
    assert "\n" not in message


VALID = runs.dump(TrainConfig()).encode()


def read_or_refuse(file: Path) -> None:
    """A configuration or one line; anything else fails."""
    message = ""
    try:
        assert isinstance(read("--config", str(file)), TrainConfig)
    except ConfigurationError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.fuzz
@given(EDITS)
def test_any_damaged_file_is_a_configuration_or_a_configuration_error(
    tmp_path: Path, edits: Edits
) -> None:
    file = tmp_path / "damaged.yaml"
    file.write_bytes(damaged(VALID, edits))
    read_or_refuse(file)


SETTINGS = st.sampled_from(sorted(TrainConfig.model_fields))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["1 epoch", "5 steps", "auto", 10**400, 2**63, "1e999", "0x10", "1:30"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.fuzz
@given(st.dictionaries(SETTINGS, ANYTHING, max_size=4))
def test_any_values_are_a_configuration_or_a_configuration_error(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values, allow_unicode=True))
    read_or_refuse(file)


HOSTILE = {
    "aliases": ("a: &a [x, x]\n" + "b: &b [*a, *a]\n" * 50, "aliases"),
    "merges": ("<<: {<<: {lr: 1}}", "merge"),
    "depth": ("[" * 100_000, "YAML"),
    "deep mappings": ("lr: " + "{a: " * 5000, "YAML"),
    "deep lines": ("- " * 50_000, "YAML"),
    "hexadecimal": ("lr: 0x" + "f" * 5000, "YAML"),
    "sexagesimal": ("lr: " + "1:" * 100_000 + "1", "lr: 1:1"),
    "sexagesimal fraction": ("lr: " + "1:" * 200 + "1.5", "lr: 1:1"),
    "digits": ("lr: " + "9" * 200_000, "YAML"),
    "a number as name": ("? 0x" + "f" * 5000 + "\n: 1", "YAML"),
    "number in options": ("optimizer_options: {a: 0x" + "f" * 5000 + "}", "YAML"),
    "a long text": ("data: " + "x" * 200_000, "data: xxx"),
    "a long name": ("x" * 1000 + ": 1", "is no setting"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_made_to_be_large_or_slow_is_refused_at_once(tmp_path: Path, case: str) -> None:
    text, words = HOSTILE[case]
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with bounded(), pytest.raises(ConfigurationError, match=words) as caught:
        read("--config", str(file))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 2500


def test_one_name_of_many_that_is_given_twice_is_found_in_linear_time(tmp_path: Path) -> None:
    """That takes 2 s, and looking for each name among all others 35 s: so many names leave room
    between the two for a slow machine, and for one whose processors are lent out meanwhile."""
    file = tmp_path / "config.yaml"
    file.write_text("".join(f"k{i:x}:\n" for i in range(36_000)) + "k1:\n")
    with bounded(seconds=12), pytest.raises(ConfigurationError, match="k1 is given twice"):
        read("--config", str(file))


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with file.open("wb") as handle:
        handle.truncate(2**30)
    with bounded(), pytest.raises(ConfigurationError, match="larger than"):
        read("--config", str(file))


def test_the_help_page_describes_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read("--help")
    assert end.value.code == 0
    page = capsys.readouterr().out
    for name, field in TrainConfig.model_fields.items():
        assert "--" + name.replace("_", "-") in page
        assert field.description
    titles = [begun.title for f in TrainConfig.model_fields.values() if (begun := mark(f, Group))]
    assert len(titles) == 6
    assert all(f"\n{title}:\n" in page for title in titles)
