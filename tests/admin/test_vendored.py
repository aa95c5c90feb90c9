"""What others wrote is here as they published it, and no page runs anything else."""

import hashlib
import re
from pathlib import Path

import loraplex_admin

HERE = Path(loraplex_admin.__file__).parent
VENDOR = HERE / "static" / "vendor"
INLINE = re.compile(
    r"<script(?![^>]*\bsrc=)|\bstyle=|\son(?!ly=)[a-z]+=|hx-on|javascript:|\|\s*safe"
)


def test_vendored_files_are_those_of_the_manifest() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    expected = {name: digest for digest, name in (line.split() for line in lines)}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != "SHA256SUMS"
    }
    assert found == expected


def test_templates_hold_nothing_that_the_policy_would_refuse() -> None:
    templates = sorted((HERE / "templates").glob("*.html"))
    assert len(templates) > 10
    for template in templates:
        assert INLINE.findall(template.read_text()) == [], template.name


def test_every_form_that_changes_something_carries_the_token() -> None:
    for template in (HERE / "templates").glob("*.html"):
        forms = re.findall(r'<form[^>]*method="post"[^>]*>.*?</form>', template.read_text(), re.S)
        for form in forms:
            is_open = 'action="/admin/sign-in"' in form or 'action="/admin/link"' in form
            assert is_open or "token(csrf)" in form or 'name="csrf"' in form, template.name
