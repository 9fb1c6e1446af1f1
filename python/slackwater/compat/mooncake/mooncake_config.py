"""`MooncakeConfig`: what `setup` is called with, from a file or from the environment."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from slackwater.compat.mooncake.opening import PROTOCOLS, size_of, truth_of

log = logging.getLogger("slackwater.mooncake")

DEFAULT_GLOBAL_SEGMENT_SIZE = 3_355_443_200
DEFAULT_LOCAL_BUFFER_SIZE = 1_073_741_824
_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")


@dataclass
class MooncakeConfig:
    """The arguments of `setup` under the names of a file. Raises `ValueError` for what cannot be used."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        for name in _REQUIRED:
            if not getattr(self, name):
                raise ValueError(f"{name} is needed, and empty")
        self.global_segment_size = size_of("global_segment_size", self.global_segment_size)
        self.local_buffer_size = size_of("local_buffer_size", self.local_buffer_size)
        self.protocol = self.protocol.lower()
        if self.protocol not in PROTOCOLS:
            log.warning("protocol %r is not one of %s", self.protocol, ", ".join(PROTOCOLS))

    @classmethod
    def from_file(cls, file_path: str) -> Self:
        """From a JSON file, which names at least the host, the metadata server and the master."""
        with open(file_path, encoding="utf-8") as file:
            values = json.load(file)
        if not isinstance(values, dict):
            raise ValueError(f"{file_path}: expected an object of names and values")
        missing = [name for name in _REQUIRED if not values.get(name)]
        if missing:
            raise ValueError(f"{file_path}: needed and not given: {', '.join(missing)}")
        return cls.of(values)

    @classmethod
    def load_from_env(cls) -> Self:
        """From the file that `MOONCAKE_CONFIG_PATH` names, else from variables, of which `MOONCAKE_MASTER` is needed."""
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path:
            return cls.from_file(path)
        get = os.environ.get
        if not get("MOONCAKE_MASTER"):
            raise ValueError("neither MOONCAKE_CONFIG_PATH nor MOONCAKE_MASTER is set")
        variables = {
            "local_hostname": get("MOONCAKE_LOCAL_HOSTNAME") or get("LOCAL_HOSTNAME"),
            "metadata_server": get("MOONCAKE_TE_META_DATA_SERVER") or "P2PHANDSHAKE",
            "global_segment_size": get("MOONCAKE_GLOBAL_SEGMENT_SIZE"),
            "local_buffer_size": get("MOONCAKE_LOCAL_BUFFER_SIZE"),
            "protocol": get("MOONCAKE_PROTOCOL"),
            "device_name": get("MOONCAKE_DEVICE"),
            "master_server_address": get("MOONCAKE_MASTER"),
            "enable_ssd_offload": get("MOONCAKE_OFFLOAD_ENABLED"),
            "ssd_offload_path": get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"),
            "tenant_id": get("MOONCAKE_TENANT_ID"),
            "enable_client_http_server": get("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER"),
            "client_http_port": get("MOONCAKE_CLIENT_HTTP_PORT"),
        }
        named = {name: value for name, value in variables.items() if value}
        return cls.of({"local_hostname": "localhost", **named})

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From names and values, which may all be texts."""
        return cls(
            local_hostname=values["local_hostname"],
            metadata_server=values["metadata_server"],
            global_segment_size=values.get("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE),
            local_buffer_size=values.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE),
            protocol=str(values.get("protocol", "tcp")),
            device_name=values.get("device_name", ""),
            master_server_address=values["master_server_address"],
            enable_ssd_offload=truth_of("enable_ssd_offload", values.get("enable_ssd_offload", False)),
            ssd_offload_path=values.get("ssd_offload_path", ""),
            tenant_id=values.get("tenant_id", "default"),
            enable_client_http_server=truth_of(
                "enable_client_http_server", values.get("enable_client_http_server", False)
            ),
            client_http_port=int(values.get("client_http_port", 9300)),
        )
