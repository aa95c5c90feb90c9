"""The base model as the API sees it: templates in a sandbox, tokens and their bytes."""

import json
from pathlib import Path

import pytest
from tests.adapters.folders import BASE, HIDDEN, float32_file, lora_tensors, write_adapter
from tests.added_tokens import NOTE, TOOL, add_tokens
from tests.platform_stand import tiny_model, token_of

from loraplex_adapters.layout import EMBEDDING, HEAD, BaseModel, ModuleShape
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine.errors import UnknownAdapter
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.openai.served_model import ServedModel, ServedModels

TURNS = [{"role": "user", "content": "hé"}]


def with_template(folder: Path, template: object) -> ServedModel:
    tiny_model(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return ServedModel.load(folder)


def test_id_is_the_folders_name_unless_one_is_given(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "tiny")
    assert ServedModel.load(folder).id == "tiny"
    assert ServedModel.load(folder, "org/x").id == "org/x"


def test_rendered_chat_encodes_special_tokens_and_bytes(tmp_path: Path) -> None:
    model = ServedModel.load(tiny_model(tmp_path / "tiny"))
    ids = model.encode(model.render(TURNS), add_special_tokens=False)
    assert ids[0] == 1
    assert b"".join(model.token_bytes(i) for i in ids[6:9]) == "hé".encode()
    assert model.token_text(token_of("h")) == "h"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('roles must alternate') }}",
        "{% for i in range(10**9) %}x{% endfor %}",
    ],
)
def test_template_cannot_leave_its_sandbox(tmp_path: Path, template: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        with_template(tmp_path / "tiny", template).render(TURNS)
    assert caught.value.param == "messages"


def test_template_file_and_named_templates_are_found(tmp_path: Path) -> None:
    named = [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    assert with_template(tmp_path / "a", named).render(TURNS) == "d"
    (tmp_path / "a" / "chat_template.jinja").write_text("j")
    assert ServedModel.load(tmp_path / "a").render(TURNS) == "j"


def test_model_without_a_template_refuses_chat(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        with_template(tmp_path / "tiny", None).render(TURNS)


def test_tokens_that_no_longer_fit_the_base_model_end_their_own_requests(tmp_path: Path) -> None:
    model, store = tiny_model(tmp_path / "tiny"), AdapterStore(tmp_path / "store")
    spare = {EMBEDDING: ModuleShape(264, HIDDEN, "embedding"), HEAD: ModuleShape(HIDDEN, 264)}
    base = BaseModel("tiny", {**BASE.modules, **spare}, tokenizer=model / "tokenizer.json")
    folder = write_adapter(tmp_path / "a", float32_file(lora_tensors()))
    add_tokens(model, folder, TOOL)
    version = store.put(folder, base=base, limits=Limits(8)).version
    models = ServedModels(ServedModel.load(model), store)
    assert models.of(version).encode("<tool>", add_special_tokens=False) == (259,)

    add_tokens(model, model, NOTE)  # takes the adapter's id
    models = ServedModels(ServedModel.load(model), store)
    with pytest.raises(UnknownAdapter):
        models.of(version)
    assert models.of(None) is models.base
