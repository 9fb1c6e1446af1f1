"""How objects are put: `ReplicateConfig`."""

from typing import Any

from slackwater._native import RawPlan
from slackwater.compat.mooncake.fields import Field, defaults, member, or_none, text, texts, truth, whole
from slackwater.compat.mooncake.kinds import ObjectDataType, SoftPinAction

INVALID_PARAMS = -600
_DFS_SERVICE_UNAVAILABLE = -1601
_SOFT_PIN_MILLISECONDS_MAX = 86_400_000

# What a plan is made for: a put or an upsert, and whether the call can choose the memory of its own node.
CREATE, UPSERT, CREATE_NEAR, UPSERT_NEAR = range(4)


class ReplicateConfig:
    """How objects are put. Attributes of a wrong type are refused with a `TypeError` when they are assigned."""

    __slots__ = ("__weakref__", "_plans", "_values")

    replica_num = Field(1, whole(0, 2**64 - 1), "a whole number that is not negative")
    nof_replica_num = Field(0, whole(0, 2**64 - 1), "a whole number that is not negative")
    dfs_replica_num = Field(0, whole(0, 2**64 - 1), "a whole number that is not negative")
    soft_pin_action = Field(SoftPinAction.PRESERVE, member(SoftPinAction), "a SoftPinAction")
    soft_pin_ttl_ms = Field(None, or_none(whole(0, 2**64 - 1)), "milliseconds or None")
    with_hard_pin = Field(False, truth, "a truth")
    preferred_segment = Field("", text, "a text")
    preferred_segments = Field([], texts, "a list of texts")
    preferred_nof_segments = Field([], texts, "a list of texts")
    prefer_alloc_in_same_node = Field(False, truth, "a truth")
    data_type = Field(ObjectDataType.UNKNOWN, member(ObjectDataType), "an ObjectDataType")
    group_ids = Field(None, or_none(texts), "a list of texts or None")
    session_ids = Field(None, or_none(texts), "a list of texts or None")

    def __init__(self) -> None:
        self._values: dict[str, Any] = defaults(ReplicateConfig)
        self._plans: dict[int, RawPlan | int] = {}

    @property
    def with_soft_pin(self) -> bool:
        """Whether the object is evicted late; True means the default time."""
        return self.soft_pin_action is SoftPinAction.ENABLE

    @with_soft_pin.setter
    def with_soft_pin(self, value: Any) -> None:
        if isinstance(value, (str, bytes)):
            raise TypeError(f"with_soft_pin: expected a truth, found {value!r}")
        self.soft_pin_action = SoftPinAction.ENABLE if value else SoftPinAction.PRESERVE

    def __str__(self) -> str:
        def shown(value: Any) -> str:
            if isinstance(value, bool):
                return str(int(value))
            if isinstance(value, list):
                return f"[{', '.join(value)}]"
            return str(getattr(value, "name", "default" if value is None else value))

        fields = (f"{name}: {shown(value)}" for name, value in self._values.items())
        return f"ReplicateConfig: {{ {', '.join(fields)} }}"

    def _changed(self) -> None:
        self._plans.clear()

    def _plan(self, kind: int) -> RawPlan | int:
        """The options of such a call, or the code that it is refused with."""
        plan = self._plans.get(kind)
        if plan is None:
            plan = self._plans[kind] = self._make(kind)
        return plan

    def _make(self, kind: int) -> RawPlan | int:
        values = self._values
        replicas, ttl = values["replica_num"], values["soft_pin_ttl_ms"]
        enabled = values["soft_pin_action"] is SoftPinAction.ENABLE
        if values["dfs_replica_num"]:
            return _DFS_SERVICE_UNAVAILABLE
        if values["nof_replica_num"] or not replicas:
            return INVALID_PARAMS
        if ttl is not None and (not enabled or ttl > _SOFT_PIN_MILLISECONDS_MAX):
            return INVALID_PARAMS
        if values["prefer_alloc_in_same_node"] and (kind < CREATE_NEAR or replicas != 1):
            return INVALID_PARAMS
        soft = enabled and ttl != 0
        return RawPlan(
            upsert=kind in (UPSERT, UPSERT_NEAR),
            replicas=min(replicas, 2**32 - 1),
            preferred=[values["preferred_segment"]] if values["preferred_segment"] else values["preferred_segments"],
            pin="hard" if values["with_hard_pin"] else "soft" if soft else "none",
            pin_milliseconds=ttl if soft else None,
            groups=values["group_ids"],
            near=values["prefer_alloc_in_same_node"],
        )


DEFAULT = ReplicateConfig()


def plan_of(config: ReplicateConfig, kind: int) -> RawPlan | int:
    """The options of such a call by this configuration, or the code that it is refused with."""
    if not isinstance(config, ReplicateConfig):
        raise TypeError(f"config: expected a ReplicateConfig, found {type(config).__name__}")
    return config._plan(kind)
