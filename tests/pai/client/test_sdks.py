"""The job files also go through the command lines of OpenPAI's own SDKs, unchanged.

The JavaScript SDK is the npm package @microsoft/openpai-js-sdk 0.1.5 in the ``node_modules`` of the
repository's root, or of the folder that the variable GGS_JS_SDK names.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from ggs.pai.client import clusters
from ggs.pai.job import document
from tests.pai.fake_server import TOKEN, FakePAI

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "pai_jobs").glob("*.yaml"))


@pytest.fixture(scope="session")
def sdk() -> list[str]:
    """The command of the JavaScript SDK, which is also called ``pai``."""
    node = shutil.which("node")
    folder = Path(os.environ.get("GGS_JS_SDK", ROOT)) / "node_modules"
    program = folder / "@microsoft" / "openpai-js-sdk" / "lib" / "src" / "cli.js"
    if node is None:
        pytest.skip("node is not installed")
    if not program.exists():
        pytest.skip(f"npm install @microsoft/openpai-js-sdk@0.1.5 was not done: no {program}")
    return [node, str(program)]


def run(sdk: list[str], home: Path, *arguments: str) -> str:
    """Run the SDK's command; its exit code is 0 even when the server refuses."""
    done = subprocess.run(
        [*sdk, *arguments],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr


def test_there_are_job_files() -> None:
    assert len(FILES) >= 6


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_the_javascript_sdk_submits_our_files(
    sdk: list[str], home: Path, openpai: FakePAI, file: Path
) -> None:
    expected = document.parse(file.read_text()).value
    assert isinstance(expected, dict)
    openpai.storages |= {item["name"] for item in expected.get("extras", {}).get("storages", [])}
    run(sdk, home, "addc", "-a", "lab", openpai.url, "alice", TOKEN)
    said = run(sdk, home, "subj", "lab", str(file))
    assert "successfully" in said
    (request,) = openpai.sent("POST")
    assert request.headers["content-type"] == "text/yaml"
    assert document.parse(request.body.decode()).value == expected
    assert ("alice", expected["name"]) in openpai.jobs


def test_aliases_of_the_javascript_sdk_are_known_here(
    sdk: list[str], home: Path, openpai: FakePAI
) -> None:
    run(sdk, home, "addc", "-a", "lab", openpai.url, "alice", TOKEN)
    found, warnings = clusters.load()
    assert [(item.alias, item.uri, item.user, item.token) for item in found] == [
        ("lab", openpai.url, "alice", TOKEN)
    ]
    assert "chmod 600" in warnings[0]  # the SDK leaves it readable by everyone
    before = (home / ".openpai/clusters.json").read_text()
    clusters.add(clusters.Cluster("mine", openpai.url, "alice", TOKEN))
    assert (home / ".openpai/clusters.json").read_text() == before
    assert "lab" in run(sdk, home, "listc")


def test_the_javascript_sdk_hides_a_refusal(
    sdk: list[str], home: Path, openpai: FakePAI, tmp_path: Path
) -> None:
    """Why the documentation says to use this package's command: that one exits with 0."""
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps({"name": "one"}))
    run(sdk, home, "addc", "-a", "lab", openpai.url, "alice", TOKEN)
    said = run(sdk, home, "subj", "lab", str(file))
    assert "successfully" not in said
    assert not openpai.jobs


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_the_python_sdk_would_send_our_files_unchanged(file: Path) -> None:
    """``opai job submit`` loads a file with PyYAML and dumps it again."""
    text = file.read_text()
    sent = yaml.dump(yaml.load(text, yaml.FullLoader))
    assert document.parse(sent).value == document.parse(text).value
