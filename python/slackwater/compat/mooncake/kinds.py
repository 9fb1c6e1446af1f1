"""The enumerations of `mooncake.store`."""

import enum


class _Kind(enum.Enum):
    """Members that are no numbers but turn into one."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


class ReplicaStatus(_Kind):
    """The life of a replica."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class TaskStatus(_Kind):
    """The life of a task."""

    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3


class TaskType(_Kind):
    """What a task does with a replica."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class ObjectDataType(_Kind):
    """What an object holds; accepted and not acted on."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(_Kind):
    """What a put does about the soft pin of its object."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2
