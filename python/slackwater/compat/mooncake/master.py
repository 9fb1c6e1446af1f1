"""`mooncake_master`: a `slackwater master` that is started with the flags of Mooncake's.

Flags have one or two dashes, and their value after `=` or as the next word; a truth needs none, and `--noname` is false.
The program becomes `slackwater master`, under the same process id.
"""

import difflib
import ipaddress
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from slackwater.compat import installed_mooncake

FLAGS: dict[str, dict[str, Any]] = {
    flag["name"]: flag for flag in json.loads((Path(__file__).parent / "flags.json").read_text(encoding="utf-8"))
}
_TRUTHS = {"true": True, "t": True, "1": True, "yes": True, "false": False, "f": False, "0": False, "no": False}
_LEVELS = ("info", "warn", "error")


class FlagError(Exception):
    """A flag, or a file of them, that cannot be used."""


def given_flags(words: Sequence[str], flags: dict[str, dict[str, Any]] = FLAGS) -> dict[str, Any]:
    """The flags on a command line, checked, by name; `flags` are those of the program."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word.strip("-") == "":
            raise FlagError(f"`{word}` is no flag: flags are written --name=value")
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        negated = name.removeprefix("no")
        if not equals and name not in flags and flags.get(negated, {}).get("kind") == "bool":
            found[negated] = False
            continue
        flag = _flag(name, flags)
        if not equals and flag["kind"] == "bool":
            value = "true" if not rest or rest[0].lower() not in _TRUTHS else rest.pop(0)
        elif not equals:
            if not rest:
                raise FlagError(f"--{name} needs a value")
            value = rest.pop(0)
        found[name] = _read(flag, value)
    return found


def _flag(name: str, flags: dict[str, dict[str, Any]]) -> dict[str, Any]:
    flag = flags.get(name)
    if flag is None:
        near = difflib.get_close_matches(name, flags, n=1, cutoff=0)
        raise FlagError(f"there is no flag --{name}: did you mean --{near[0]}?")
    return flag


def _read(flag: dict[str, Any], value: Any) -> Any:
    name, kind, text = flag["name"], flag["kind"], str(value).strip()
    try:
        if kind == "bool":
            return value if isinstance(value, bool) else _TRUTHS[text.lower()]
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
        if kind == "duration" and not re.fullmatch(r"\d+(ms|s|m|h)?", text):
            raise ValueError
    except (ValueError, KeyError):
        raise FlagError(f"--{name}: `{text}` is no {kind}") from None
    return text


def flags_of_file(path: str) -> dict[str, Any]:
    """The flags in a JSON file, or in a YAML file with one `name: value` a line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FlagError(f"--config_path: {error}") from None
    if text.lstrip().startswith("{"):
        try:
            values = json.loads(text)
        except ValueError as error:
            raise FlagError(f"{path}: not JSON: {error}") from None
    else:
        values = {}
        for number, line in enumerate(text.splitlines(), 1):
            line = re.sub(r"(^|\s)#.*", "", line).rstrip()
            if not line or line == "---":
                continue
            name, colon, value = line.partition(":")
            if not colon or name != name.strip() or not value.strip():
                raise FlagError(f"{path}, line {number}: expected `name: value`, found `{line.strip()}`")
            values[name] = value.strip().strip("\"'")
    return {name: _read(_flag(name, FLAGS), value) for name, value in values.items()}


def command_line(words: Sequence[str], has_keys: bool) -> tuple[list[str], list[str]]:
    """The arguments of `slackwater` for these flags, and what is to be warned of."""
    on_line = given_flags(words)
    found = (flags_of_file(on_line["config_path"]) if on_line.get("config_path") else {}) | on_line
    warnings = [
        f"--{name} has no effect: {FLAGS[name]['meaning']}"
        for name, value in found.items()
        if FLAGS[name]["option"] is None and value != FLAGS[name]["default"]
    ]
    host = found.get("rpc_address", "0.0.0.0" if has_keys else "127.0.0.1")
    port = found.get("rpc_port", 0) or found.get("port", FLAGS["port"]["default"])
    arguments = ["master", f"--listen={_at(host, port)}"]
    admin = _at(found.get("metrics_host", "127.0.0.1"), found.get("metrics_port", FLAGS["metrics_port"]["default"]))
    arguments.append(f"--admin={admin}")
    if "rpc_address" not in found and not has_keys:
        warnings.append(f"there are no keys, so that only this machine is served: listening on {host}")
    for name, option in (("default_kv_lease_ttl", "--lease-ttl"), ("default_kv_soft_pin_ttl", "--soft-pin-ttl")):
        if name in found:
            arguments.append(f"{option}={found[name]}{'ms' if found[name].isdigit() else ''}")
    if "eviction_high_watermark_ratio" in found or "eviction_ratio" in found:
        high = found.get("eviction_high_watermark_ratio", FLAGS["eviction_high_watermark_ratio"]["default"])
        low = max(high - found.get("eviction_ratio", FLAGS["eviction_ratio"]["default"]), 0)
        arguments += [f"--evict-high={high:g}", f"--evict-low={low:.6g}"]
    for name, option in (("enable_multi_tenants", "--tenants"), ("promotion_on_hit", "--promotion-enabled")):
        if name in found:
            arguments.append(f"{option}={str(found[name]).lower()}")
    if "offload_on_evict" in found:
        arguments.append(f"--offload={'on-evict' if found['offload_on_evict'] else 'eager'}")
    if "promotion_admission_threshold" in found:
        wanted = found["promotion_admission_threshold"]
        threshold = min(max(wanted, 1), 255)
        if threshold != wanted:
            warnings.append(f"--promotion_admission_threshold={wanted}: {threshold} is taken, of 1 to 255")
        arguments.append(f"--promotion-threshold={threshold}")
    if "promotion_queue_limit" in found:
        arguments.append(f"--promotion-limit={found['promotion_queue_limit']}")
    arguments += _replication(found, warnings)
    arguments += _kv_events(found, warnings)
    if "minloglevel" in found:
        arguments.append(f"--log={_LEVELS[min(max(found['minloglevel'], 0), 2)]}")
    return arguments, warnings


def _replication(found: dict[str, Any], warnings: list[str]) -> list[str]:
    flags = {name: f"dynamic_replication_{name}" for name in ("mode", "heat_window_seconds", "admission_qps_threshold", "max_memory_replicas")}
    mode, window, rate, most = (found.get(flag, FLAGS[flag]["default"]) for flag in flags.values())
    given = {name for name, flag in flags.items() if flag in found}
    arguments = []
    if "mode" in given:
        if mode not in ("off", "observe", "enforce"):
            raise FlagError(f"--{flags['mode']}: `{mode}` is none of off, observe, enforce")
        arguments.append(f"--replication-mode={mode}")
    if given & {"heat_window_seconds", "admission_qps_threshold"}:
        if window < 1 or window > 3600:
            raise FlagError(f"--{flags['heat_window_seconds']}: {window} is not from 1 to 3600")
        reads = math.ceil(rate * window) if math.isfinite(rate) else 0
        if not 1 <= reads <= 1_000_000:
            raise FlagError(f"--{flags['admission_qps_threshold']}: {rate} over {window} s is not from 1 to 1000000 reads")
        arguments += [f"--replication-window={window}s", f"--replication-reads={reads}"]
    if "max_memory_replicas" in given:
        replicas = min(max(most, 2), 64)
        if replicas != most:
            warnings.append(f"--{flags['max_memory_replicas']}={most}: {replicas} is taken, of 2 to 64")
        arguments.append(f"--replication-replicas={replicas}")
    return arguments


_EVENTS_MOST = 1 << 24


def _kv_events(found: dict[str, Any], warnings: list[str]) -> list[str]:
    given = {name: found[name] for name in found if name.startswith("kv_events_") and FLAGS[name]["option"] is not None}
    if not found.get("enable_kv_events", False):
        idle = [name for name, value in given.items() if value != FLAGS[name]["default"]]
        warnings += [f"--{name} has no effect without --enable_kv_events" for name in idle]
        return []
    endpoint = given.pop("kv_events_bind_endpoint", "")
    arguments = [f"--kv-events={endpoint}" if endpoint else "--kv-events", "--kv-events-dialect=rfc1527"]
    for name, value in given.items():
        if name == "kv_events_queue_capacity":
            capacity = _EVENTS_MOST if value == 0 else min(max(value, 1), _EVENTS_MOST)
            if capacity != value:
                warnings.append(f"--{name}={value}: {capacity} is taken, of 1 to {_EVENTS_MOST}")
            value = capacity
        elif isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < 1 << 32:
            raise FlagError(f"--{name}: {value} is not from 0 to {(1 << 32) - 1}")
        if value == "":
            continue
        arguments.append(f"{FLAGS[name]['option']}={str(value).lower() if isinstance(value, bool) else value}")
    return arguments


def _at(host: str, port: int) -> str:
    try:
        is_six = ipaddress.ip_address(host).version == 6
    except ValueError:
        if host != "localhost":
            raise FlagError(f"`{host}` is no address: give it in numbers") from None
        host, is_six = "127.0.0.1", False
    return f"[{host}]:{port}" if is_six else f"{host}:{port}"


def find_command() -> str:
    """The `slackwater` command, beside the interpreter or on the path."""
    beside = Path(sys.executable).with_name("slackwater")
    found = str(beside) if beside.exists() else shutil.which("slackwater")
    if found is None:
        raise FlagError("the command `slackwater` is not on the path: build it with `cargo build --release`")
    return found


def help_if_asked(words: Sequence[str], about: str | None, flags: dict[str, dict[str, Any]]) -> None:
    """Ends the program with its flags when they are asked for."""
    if {"-h", "--help", "-help", "--helpfull", "--helpshort"} & set(words):
        print(about)
        for flag in flags.values():
            print(f"--{flag['name']} ({flag['kind']}, default {flag['default']!r}): {flag['meaning']}")
        sys.exit(0)


def main() -> NoReturn:
    """Becomes a `slackwater master`."""
    words = sys.argv[1:]
    help_if_asked(words, __doc__, FLAGS)
    try:
        other = installed_mooncake()
        if other is not None:
            raise FlagError(f"{other} is installed beside slackwater-mooncake: uninstall one of them")
        arguments, warnings = command_line(words, bool(os.environ.get("SLACKWATER_KEY_FILE")))
        command = find_command()
    except FlagError as error:
        sys.exit(f"mooncake_master: {error}")
    for warning in warnings:
        print(f"mooncake_master: {warning}", file=sys.stderr)
    sys.stderr.flush()
    os.execv(command, [command, *arguments])


if __name__ == "__main__":
    main()
