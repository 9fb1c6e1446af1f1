"""What LMCache gives a connector of its remote storage: the classes of its interface, and memory that counts its holders.

Written after the interface of LMCache 0.5.6.
"""

import importlib
import json
import sys
import types
from dataclasses import dataclass, field
from typing import Any

TOKEN_BYTES, CHUNK_TOKENS = 24, 64
SHAPES, DTYPES, FORMAT = [(2, 3, CHUNK_TOKENS)], ["bfloat16"], "KV_2LTD"


@dataclass
class Chunk:
    """Memory of LMCache."""

    shapes: list[Any]
    dtypes: list[Any]
    form: str
    holders: int = 1
    byte_array: Any = None

    def __post_init__(self) -> None:
        if self.byte_array is None:
            self.byte_array = memoryview(bytearray(self.shapes[0][-1] * TOKEN_BYTES))

    def get_shapes(self) -> list[Any]:
        return self.shapes

    def get_dtypes(self) -> list[Any]:
        return self.dtypes

    def get_memory_format(self) -> str:
        return self.form

    def get_size(self) -> int:
        return len(self.byte_array)

    def set_used_size(self, size: int) -> None:
        self.byte_array = self.byte_array[:size]

    def ref_count_down(self) -> None:
        self.holders -= 1
        assert self.holders >= 0, "given back twice"


class LocalCPUBackend:
    """Gives memory, and remembers it."""

    def __init__(self, limit: int = 1000) -> None:
        self.given: list[Chunk] = []
        self.limit = limit

    def allocate(
        self, shapes: Any, dtypes: Any, fmt: Any = None, eviction: bool = True, busy_loop: bool = True
    ) -> Chunk | None:
        if self.held() >= self.limit:
            assert not busy_loop, "LMCache would wait for memory here, which the thread that waits gives back"
            return None
        chunk = Chunk(list(shapes), list(dtypes), fmt)
        self.given.append(chunk)
        return chunk

    def held(self) -> int:
        """Chunks that somebody holds."""
        return sum(chunk.holders > 0 for chunk in self.given)


@dataclass
class Key:
    """A key of the engine."""

    chunk_hash: int
    worker_id: int = 0

    def to_string(self) -> str:
        return f"org/model@2@{self.worker_id}@{self.chunk_hash:x}@bfloat16"


@dataclass
class Config:
    extra_config: dict[str, Any] | None = None
    use_layerwise: bool = False
    remote_serde: str | None = "naive"


@dataclass
class Metadata:
    world_size: int = 1


@dataclass
class Context:
    url: str
    local_cpu_backend: Any = field(default_factory=LocalCPUBackend)
    config: Any = field(default_factory=Config)
    metadata: Any = field(default_factory=Metadata)
    plugin_name: str | None = None


class ConnectorAdapter:
    def __init__(self, schema: str = "") -> None:
        self.schema = schema


class RemoteConnector:
    def __init__(self, config: Any, metadata: Any) -> None:
        assert metadata is not None
        self.meta_shapes, self.meta_dtypes, self.meta_fmt = SHAPES, DTYPES, FORMAT
        self.remote_metadata_bytes, self.full_chunk_size_bytes = 128, CHUNK_TOKENS * TOKEN_BYTES


@dataclass
class RemoteMetadata:
    length: int
    shapes: list[Any]
    dtypes: list[Any]
    fmt: str

    def serialize(self) -> bytes:
        return json.dumps([self.length, self.shapes, self.dtypes, self.fmt]).encode().ljust(128)

    @staticmethod
    def deserialize(value: bytes) -> "RemoteMetadata":
        return RemoteMetadata(*json.loads(value[:128]))


def loaded() -> Any:
    """The module that LMCache loads. The caller restores `sys.modules`."""
    protocol = types.ModuleType("lmcache.v1.protocol")
    protocol.RemoteMetadata = RemoteMetadata  # type: ignore[attr-defined]
    connector = types.ModuleType("lmcache.v1.storage_backend.connector")
    connector.ConnectorAdapter = ConnectorAdapter  # type: ignore[attr-defined]
    connector.extract_plugin_type = lambda name: name.split(".", 1)[0]  # type: ignore[attr-defined]
    base = types.ModuleType("lmcache.v1.storage_backend.connector.base_connector")
    base.RemoteConnector = RemoteConnector  # type: ignore[attr-defined]
    for module in (protocol, connector, base):
        sys.modules[module.__name__] = module
    for name in ("lmcache", "lmcache.v1", "lmcache.v1.storage_backend"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules.pop("slackwater.integrations.lmcache_connector", None)
    return importlib.import_module("slackwater.integrations.lmcache")
