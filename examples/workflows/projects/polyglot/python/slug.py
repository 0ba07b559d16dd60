"""Turns a title into the part of a URL that names it."""

import re
import unicodedata


def slug(text):
    plain = unicodedata.normalize("NFD", text).encode("ascii", "ignore").decode()
    plain = plain.replace("'", "").lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
