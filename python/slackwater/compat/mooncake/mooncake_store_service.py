"""`mc_store_rest_server`: a store by HTTP, for programs in other languages."""

import argparse
import dataclasses
import difflib
import json
import logging
import sys
import threading
import time
from typing import Any

from slackwater.compat.mooncake.client import MooncakeDistributedStore
from slackwater.compat.mooncake.http_service import NOT_ALLOWED, NOT_FOUND, Answer, Asked, Service
from slackwater.compat.mooncake.mooncake_config import MooncakeConfig
from slackwater.errors import ErrorCode

BODY_BYTES_MAX = 100_000_000
# What another try may change: a master that does not answer yet, or is about to end.
_RETRIED = (ErrorCode.RPC_FAIL, ErrorCode.RPC_TIMEOUT, ErrorCode.DEADLINE_PASSED, ErrorCode.SHUTTING_DOWN)
_GRACE_SECONDS_MAX = 3600
_DECODE, _PREFILL = "decode", "prefill"
_BARE = {"metadata_server": "P2PHANDSHAKE", "local_hostname": "localhost"}


class _BadInput(Exception):
    """A request that says nothing that can be done."""


class MooncakeStoreService:
    """The calls of a store that is set up, by HTTP."""

    def __init__(self, store: MooncakeDistributedStore) -> None:
        self._store = store
        # What requests to lend a file have made of it, one after another.
        self._state = threading.Lock()
        self._mode, self._segments = _PREFILL, list[str]()
        self._routes = {
            ("put",): ("PUT", self._put),
            ("get", "*"): ("GET", self._get),
            ("exist", "*"): ("GET", self._exist),
            ("remove", "*"): ("DELETE", self._remove),
            ("remove_all",): ("DELETE", self._remove_all),
            ("mount",): ("POST", self._mount),
            ("unmount",): ("POST", self._unmount),
            ("mount_shm",): ("POST", self._mount_shm),
            ("unmount_shm",): ("POST", self._unmount_shm),
            ("reconfigure",): ("POST", self._reconfigure),
            ("unmount_local_disk",): ("POST", self._unmount_local_disk),
        }

    def answer(self, asked: Asked) -> Answer:
        """Requests of `/api/…`."""
        name = asked.path[1:]
        found = self._routes.get(name) or self._routes.get((*name[:1], "*") if len(name) == 2 and name[1] else ())
        if asked.path[:1] != ("api",) or found is None:
            return NOT_FOUND
        method, call = found
        if asked.method != method:
            return NOT_ALLOWED
        try:
            return call(asked)
        except _BadInput as error:
            return Answer.json(400, error=str(error))

    def _put(self, asked: Asked) -> Answer:
        given = _fields(asked)
        key, value = given.get("key"), given.get("value")
        if not key or value is None:
            raise _BadInput("Missing key or value")
        if not isinstance(key, str) or not isinstance(value, str):
            raise _BadInput("key and value must be texts")
        try:
            name, value = key.encode(), value.encode()
        except UnicodeEncodeError as error:
            raise _BadInput(f"key and value must be texts: {error}") from None
        return _done(self._store.put(name, value), "PUT operation failed")

    def _get(self, asked: Asked) -> Answer:
        value = self._store.get(asked.path[2])
        return Answer(200, value, "application/octet-stream") if value else Answer.json(404, error="Key not found")

    def _exist(self, asked: Asked) -> Answer:
        found = self._store.is_exist(asked.path[2])
        return Answer.json(200, exists=found == 1) if found >= 0 else _done(found, "EXIST operation failed")

    def _remove(self, asked: Asked) -> Answer:
        return _done(self._store.remove(asked.path[2]), "Remove operation failed")

    def _remove_all(self, asked: Asked) -> Answer:
        removed = self._store.remove_all()
        if removed < 0:
            return _done(removed, "Remove all operation failed")
        return Answer.json(200, status=f"success removed {removed} keys")

    def _mount(self, asked: Asked) -> Answer:
        given = _fields(asked)
        size, protocol, location = given.get("size"), given.get("protocol", "tcp"), given.get("location", "")
        if type(size) is not int or size <= 0:
            raise _BadInput("Invalid size, must be a positive integer")
        if not isinstance(protocol, str) or not isinstance(location, str):
            raise _BadInput("protocol and location must be texts")
        mounted = self._store.allocate_and_mount_segment(size, protocol, location)
        if mounted["ret"]:
            return _done(mounted["ret"], "Allocate and mount failed")
        return Answer.json(
            200, status="success", segment_ids=mounted["segment_ids"], allocated_size=mounted["allocated_size"]
        )

    def _unmount(self, asked: Asked) -> Answer:
        given = _fields(asked)
        ids, grace = _ids(given.get("segment_ids")), _grace(given.get("grace_period_seconds", 0))
        return _done(self._store.unmount_and_free_segment(ids, grace), "Unmount and free failed")

    def _unmount_local_disk(self, asked: Asked) -> Answer:
        grace = _grace(_fields(asked).get("grace_period_seconds", 0))
        return _done(self._store.unmount_local_disk_segment(grace), "Unmount local disk failed")

    def _mount_shm(self, asked: Asked) -> Answer:
        given = _fields(asked)
        path = _shared_memory(given.get("name"))
        if path is None or given.get("size") is None:
            raise _BadInput("Missing or invalid name or size")
        mounted = self._store.mount_segment(path, *_piece(given))
        if mounted["ret"]:
            return _done(mounted["ret"], "Mount failed")
        return Answer.json(200, status="success", segment_ids=mounted["segment_ids"])

    def _unmount_shm(self, asked: Asked) -> Answer:
        given = _fields(asked)
        ids, grace = _ids(given.get("segment_ids")), _grace(given.get("grace_period_seconds", 0))
        with self._state:
            failed = self._taken_back(ids, grace)
            self._segments = [one for one in self._segments if one not in ids or one in failed]
            if not self._segments:
                self._mode = _PREFILL
        if failed:
            return Answer.json(500, error="Unmount failed for one or more segments", failed_segment_ids=failed)
        return Answer.json(200, status="success")

    def _reconfigure(self, asked: Asked) -> Answer:
        """`decode` lends a file, and takes those back that it lent before; `prefill` takes all of them back."""
        given = _fields(asked)
        mode = given.get("mode")
        if not isinstance(mode, str) or mode.lower() not in (_DECODE, _PREFILL):
            raise _BadInput("Invalid mode. Use 'decode' or 'prefill'")
        if mode.lower() == _PREFILL:
            with self._state:
                self._segments = self._taken_back(self._segments, 0)
                if self._segments:
                    return Answer.json(500, error="Unmount failed", failed_segment_ids=self._segments)
                self._mode = _PREFILL
                return Answer.json(200, status="success", mode=self._mode)
        path = given.get("path")
        if not isinstance(path, str) or not path or given.get("size") is None:
            raise _BadInput("Missing path or size for decode mode")
        piece = _piece(given)
        with self._state:
            # Before the others go, so that there is room all the time.
            mounted = self._store.mount_segment(path, *piece)
            if mounted["ret"]:
                self._mode = self._mode if self._segments else _PREFILL
                kept = "keeping previous decode segments" if self._segments else "rolled back to prefill"
                error = f"Mount failed, ret={mounted['ret']}; {kept}"
                return Answer.json(500, error=error, mode=self._mode)
            # Those that could not be taken back can be tried again.
            self._segments = [*mounted["segment_ids"], *self._taken_back(self._segments, 0)]
            self._mode = _DECODE
            return Answer.json(200, status="success", mode=self._mode, segment_ids=self._segments)

    def _taken_back(self, ids: list[str], grace: int) -> list[str]:
        """Takes files back, one at a time, so that it is known of each; those that it could not."""
        return [one for one in ids if self._store.unmount_segment([one], grace)]


def _fields(asked: Asked) -> dict[str, Any]:
    try:
        given = json.loads(asked.body)
    except (ValueError, RecursionError) as error:
        raise _BadInput(f"the body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise _BadInput("the body must be an object of names and values")
    return given


def _ids(given: Any) -> list[str]:
    ids = [given] if isinstance(given, str) and given else given
    if not isinstance(ids, list) or not ids or not all(isinstance(one, str) for one in ids):
        raise _BadInput("Missing segment_ids")
    return ids


def _piece(given: dict[str, Any]) -> tuple[int, int, str, str]:
    """Size, offset, protocol and location of a file that is to be lent."""
    size, offset = given["size"], given.get("offset", 0)
    protocol, location = given.get("protocol", "tcp"), given.get("location", "")
    if type(size) is not int or type(offset) is not int or size <= 0 or offset < 0:
        raise _BadInput("Invalid size or offset, must be a positive integer, and a non-negative one")
    if not isinstance(protocol, str) or not isinstance(location, str):
        raise _BadInput("protocol and location must be texts")
    return size, offset, protocol, location


def _shared_memory(name: Any) -> str | None:
    """The file of shared memory of a name; None for what is no name of any."""
    given = name.removeprefix("/") if isinstance(name, str) else ""
    return f"/dev/shm/{given}" if given and "/" not in given and given not in (".", "..") else None


def _grace(given: Any) -> int:
    if type(given) is not int or not 0 <= given <= _GRACE_SECONDS_MAX:
        raise _BadInput(
            f"Invalid grace_period_seconds, must be a non-negative integer no greater than {_GRACE_SECONDS_MAX}"
        )
    return given


def _done(code: int, failed: str) -> Answer:
    return Answer.json(200, status="success") if code >= 0 else Answer.json(500, error=failed, code=code)


def configuration(path: str | None, defined: list[str]) -> MooncakeConfig:
    """From a file or the environment, with what is defined on the command line in its place."""
    known = [one.name for one in dataclasses.fields(MooncakeConfig)]
    over = {}
    for text in defined:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0)
            raise ValueError(f"-D{text}: expected NAME=VALUE, of a name such as {near[0]}")
        over[name] = value
    if path:
        base = dataclasses.asdict(MooncakeConfig.from_file(path))
    elif "master_server_address" in over:
        base = _BARE
    else:
        base = dataclasses.asdict(MooncakeConfig.load_from_env())
    return MooncakeConfig.of(base | over)


def set_up(store: MooncakeDistributedStore, config: MooncakeConfig, seconds: float) -> int:
    """Sets a store up; tries again each second, for so many, while no master answers."""
    until = time.monotonic() + seconds
    given = dataclasses.asdict(config)
    while (code := store.setup(given)) in _RETRIED and time.monotonic() + 1 < until:
        time.sleep(1)
    return code


def main(arguments: list[str] | None = None) -> None:
    """Serves until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="mc_store_rest_server", description=__doc__)
    parser.add_argument("--config", "-config", help="a JSON file; otherwise the environment")
    parser.add_argument("-D", "--define", action="append", default=[], metavar="NAME=VALUE", help="goes before both")
    parser.add_argument("--host", "-host", default="127.0.0.1", help="where to listen (default: this machine alone)")
    parser.add_argument("--port", "-port", type=int, default=8080, help="port to listen on (default: 8080)")
    parser.add_argument(
        "--max-wait-time", "-max-wait-time", type=float, default=60, help="seconds to wait for the master (default: 60)"
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO)
    store = MooncakeDistributedStore()
    try:
        config = configuration(given.config, given.define)
    except (ValueError, OSError) as error:
        sys.exit(f"mc_store_rest_server: {error}")
    with Service(given.host, given.port, BODY_BYTES_MAX, MooncakeStoreService(store).answer) as service:
        code = set_up(store, config, given.max_wait_time)
        if code:
            sys.exit(f"mc_store_rest_server: setup failed with {code} at {config.master_server_address}")
        service.run_until_stopped("mc_store_rest_server")
    store.close()


sync_main = main

if __name__ == "__main__":
    main()
