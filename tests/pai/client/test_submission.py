import re
from typing import Any

import pytest
import yaml
from hypothesis import given, reject
from hypothesis import strategies as st

from ggs.errors import ConfigurationError
from ggs.pai.client.submission import prepare
from ggs.pai.job.document import parse
from tests.pai.conftest import JOB

TEXT = JOB.format(name="one")
SECRET = "hunter2hunter2"


def stored_by_openpai(text: str) -> Any:
    """What the server's regular expression leaves to be seen, read by YAML."""
    rest = re.compile(r"(^secrets:)([\s\S]*?)(^\w)", re.MULTILINE | re.ASCII)
    masked = rest.sub(r'\1 "******"' + "\n" + r"\3", text + "\nZ", count=1)
    return yaml.safe_load(masked[:-2])


def test_a_file_without_secrets_is_sent_as_it_stands() -> None:
    job = prepare(parse(TEXT))
    assert (job.name, job.document.text, job.shown, job.secrets) == ("one", TEXT, TEXT, frozenset())


# How secrets can stand in a file, and whether OpenPAI's masking copes with that.
WRITTEN = {
    "at the end": (TEXT + f"secrets:\n  password: {SECRET}\n", True),
    "in the middle": (f"secrets:\n  password: {SECRET}\n" + TEXT, True),
    "on one line": (TEXT + f"secrets: {{password: {SECRET}}}\n", True),
    "quoted key": (TEXT + f'"secrets":\n  password: {SECRET}\n', False),
    "a space before the colon": (TEXT + f"secrets :\n  password: {SECRET}\n", False),
    "lines at the margin": (TEXT + f'secrets: {{password:\n"a",\nlast: {SECRET}}}\n', False),
    "all in braces": (
        '{"protocolVersion": 2, "name": "one", "type": "job", "taskRoles": {}, "secrets": '
        f'{{"password": {SECRET}}}}}\n',
        False,
    ),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_openpai_can_mask_what_is_sent(case: str) -> None:
    text, copes = WRITTEN[case]
    if not copes:
        with pytest.raises(ConfigurationError, match="cannot mask this file's secrets") as error:
            prepare(parse(text))
        assert SECRET not in str(error.value)
        return
    job = prepare(parse(text))
    assert job.document.text == text
    assert job.secrets == {SECRET}
    assert SECRET not in job.shown + repr(job)
    assert SECRET not in str(stored_by_openpai(text))
    assert stored_by_openpai(text)["secrets"] == "******"
    assert parse(job.shown).value == stored_by_openpai(text)


def test_a_registrys_password_is_not_shown() -> None:
    login = f"auth: {{username: me, password: {SECRET}}}"
    text = TEXT.replace("uri: reg", f"{login}, uri: reg")
    job = prepare(parse(text))
    assert job.document.text == text
    assert SECRET not in job.shown
    assert "username: me" in job.shown
    by_reference = text.replace(SECRET, '"<% $secrets.password %>"')
    assert prepare(parse(by_reference)).shown == by_reference


@pytest.mark.parametrize("text", ["", "[]", "type: job", "name: 3"])
def test_what_is_no_job(text: str) -> None:
    with pytest.raises(ConfigurationError, match="has no name"):
        prepare(parse(text))


secret_values = st.recursive(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)
    | st.text("ab\n:{}'\"#- ", min_size=1),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.text("abc", min_size=1), inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.fuzz
@given(
    st.dictionaries(st.text("abc", min_size=1), secret_values, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([None, True, False]),
)
def test_no_secrets_are_stored_unmasked(
    secrets: dict[str, Any], last: bool, flow: bool | None
) -> None:
    job = {"secrets": secrets, "name": "one", "type": "job"}
    if last:
        job = dict(sorted(job.items()))
    text = yaml.safe_dump(job, sort_keys=False, default_flow_style=flow, allow_unicode=True)
    try:
        sent = prepare(parse(text))
    except ConfigurationError:
        reject()
    assert sent.document.text == text
    assert parse(sent.shown).value == {**job, "secrets": "******"}
