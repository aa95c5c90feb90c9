"""The environment becomes settings; what is not the platform's own goes to the engine."""

from pathlib import Path

import pytest

from loraplex_platform.config import BadSetting, load_settings


def test_defaults_are_a_home_beside_the_user_and_the_users_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    settings = load_settings({})
    assert (settings.home, settings.host, settings.port) == (Path("var"), "127.0.0.1", 8000)
    assert settings.cache == Path("/home/u/.cache/loraplex")
    assert settings.database.startswith("sqlite:////")


def test_platform_names_are_read_and_the_others_are_the_engines() -> None:
    settings = load_settings(
        {"LORAPLEX_PORT": "9", "LORAPLEX_HOME": "/x", "LORAPLEX_DTYPE": "float32", "OTHER": "1"}
    )
    assert (settings.port, settings.home) == (9, Path("/x"))
    assert settings.engine == {"DTYPE": "float32"}


def test_empty_value_is_an_absent_one() -> None:
    assert load_settings({"LORAPLEX_REDIS_URL": ""}).redis_url is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "x"), ("PORT", "70000"), ("ENGINE_WAIT_S", "soon"), ("LOG_LEVEL", "loud")],
)
def test_bad_value_is_named(name: str, value: str) -> None:
    with pytest.raises(BadSetting) as caught:
        load_settings({f"LORAPLEX_{name}": value})
    assert caught.value.name == name
