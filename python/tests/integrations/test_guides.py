"""The configurations that guides give to paste."""

import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import lmcache_double
import pytest
import sglang_double
import slackwater.integrations.lmcache
import vllm_double
from slackwater.integrations.opening import OPTIONS, open_store

GUIDES = Path(__file__).parents[3] / "docs" / "guide"
STORE: dict[str, Any] = {"store": {"memory": "8MiB", "log": "off"}}


def pasted(engine: str) -> Any:
    """The configuration in JSON of a guide."""
    (text,) = re.findall(r"'(\{\n.*?\})'", (GUIDES / f"{engine}.md").read_text(), re.DOTALL)
    return json.loads(text)


def test_sglang() -> None:
    extra = pasted("sglang")
    assert set(extra["slackwater"]) <= set(OPTIONS) and extra["module_path"] == "slackwater.integrations.sglang"
    with mock.patch.dict("sys.modules"):
        module = sglang_double.loaded()
        backend = getattr(module, extra["class_name"])(sglang_double.Config(extra_config={**extra, "slackwater": STORE}), {})
        assert backend._zero_copy
        backend.close()


def test_lmcache() -> None:
    given = pasted("lmcache")
    module = slackwater.integrations.lmcache
    assert given["type"] == "native_plugin" and given["module_path"] == module.__name__
    assert set(given["adapter_params"]) <= {*OPTIONS, "tag", "threads"}
    getattr(module, given["class_name"])(**STORE).close()
    text = (GUIDES / "lmcache.md").read_text()
    extra = dict(re.findall(r"^  (remote_storage_plugin\.\S+): (\S+)$", text, re.MULTILINE))
    assert extra.pop("remote_storage_plugin.slackwater.module_path") == module.__name__
    adapter = extra.pop("remote_storage_plugin.slackwater.class_name")
    assert {name.rsplit(".", 1)[1] for name in extra} <= set(OPTIONS)
    with mock.patch.dict("sys.modules"):
        assert getattr(lmcache_double.loaded(), adapter)().can_parse("plugin://slackwater")


def test_vllm() -> None:
    (given,) = pasted("vllm")["kv_connector_extra_config"]["secondary_tiers"]
    assert given.pop("module_path") == "slackwater.integrations.vllm"
    with mock.patch.dict("sys.modules"):
        module = vllm_double.loaded()
        kind, memory = given.pop("type"), vllm_double.Memory()
        tier = getattr(module, kind)(vllm_double.spec(), memory.view, kind, None, **{**given, **STORE})
        tier.shutdown()


@pytest.mark.parametrize("engine", ["sglang", "lmcache", "vllm"])
def test_every_option_is_in_the_guide(engine: str) -> None:
    text = (GUIDES / f"{engine}.md").read_text()
    wanted = [*OPTIONS, *([] if engine == "sglang" else ["tag", "threads"])]
    assert [name for name in wanted if not re.search(rf"`(slackwater\.)?{name}`", text)] == []


def test_the_store_that_guides_give_opens(tmp_path: Path) -> None:
    arguments = pasted("lmcache")["adapter_params"]["store"]
    assert set(arguments) == {"path", "memory", "ssd"} == set(pasted_tier())
    with open_store({"store": {**arguments, "path": tmp_path / "kv", "memory": "8MiB", "ssd": "64MiB"}}) as store:
        assert store.put("k", b"v")


def pasted_tier() -> dict[str, str]:
    (given,) = pasted("vllm")["kv_connector_extra_config"]["secondary_tiers"]
    return given["store"]
