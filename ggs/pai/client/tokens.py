"""Tokens of OpenPAI: what one looks like, and whose it is.

OpenPAI and LTP sign the user's name into every token (rest-server, models/token.js) and act for that
name, whatever user a request speaks of. So the user belongs to the token: the two are never put
together from different sources.
"""

import base64
import binascii
import json
import re
from typing import Any

from ggs.errors import ConfigurationError


def check_token(token: str) -> str:
    """``token`` without surrounding blanks, or ConfigurationError; never shows it."""
    token = token.strip()
    if not re.fullmatch(r"[\x21-\x7e]{1,16384}", token):
        raise ConfigurationError(
            "the token is empty or has characters that no token has: copy it again from the "
            "portal's profile page"
        )
    return token


def claims(token: str) -> dict[str, Any]:
    """What an OpenPAI token (a JWT) says about itself, unverified; {} if it is none."""
    try:
        payload = token.split(".")[1]
        value = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError, RecursionError, binascii.Error):
        return {}
    return value if isinstance(value, dict) else {}


def owner(token: str) -> str | None:
    """The user that a token says it belongs to; None if it says nothing of it.

    Unverified: a server takes the token only if the signature is right, name included.
    """
    name = claims(token).get("username")
    return name if isinstance(name, str) and name else None
