import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggs.errors import ConfigurationError
from ggs.pai.client import tokens
from tests.pai.fake_server import TOKEN


@pytest.mark.parametrize("token", ["", " ", "a b", "a\nb", "ä", "t" * 20_000, "a\x00"])
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        tokens.check_token(token)
    assert "the token is empty or has characters" in str(error.value)


def test_a_token_says_whose_it_is() -> None:
    assert tokens.claims(TOKEN) == {"username": "alice"}
    assert tokens.owner(TOKEN) == "alice"
    for payload in (b"[1]", b'{"username": ""}', b'{"username": 7}', b"{}"):
        token = f"x.{base64.urlsafe_b64encode(payload).decode().rstrip('=')}.y"
        assert tokens.owner(token) is None
    assert tokens.claims("opaque") == {}
    assert tokens.owner("opaque") is None


@pytest.mark.fuzz
@given(st.text() | st.binary().map(lambda data: f"h.{base64.urlsafe_b64encode(data).decode()}.s"))
def test_any_token_has_claims_or_none(token: str) -> None:
    assert isinstance(tokens.claims(token), dict)
    assert tokens.owner(token) != ""
