"""What is known about the replicas of an object."""

from slackwater.compat.mooncake.kinds import ReplicaStatus, TaskStatus, TaskType


class Descriptor:
    """Bytes of memory that are lent to the pool."""

    def __init__(self, size: int, buffer_address: int, transport_endpoint: str) -> None:
        self.size, self.buffer_address, self.transport_endpoint = size, buffer_address, transport_endpoint

    def __repr__(self) -> str:
        return (
            f"<Descriptor size={self.size} buffer_address={self.buffer_address} "
            f"transport_endpoint={self.transport_endpoint}>"
        )


class MemoryDescriptor:
    """Where a replica in memory is."""

    def __init__(self, buffer_descriptor: Descriptor) -> None:
        self.buffer_descriptor = buffer_descriptor


class DiskDescriptor:
    """Where a replica in a file is."""

    def __init__(self, file_path: str, object_size: int) -> None:
        self.file_path, self.object_size = file_path, object_size


class ReplicaDescriptor:
    """One replica of an object. The address counts from the start of its segment: addresses are told to nobody."""

    def __init__(self, status: ReplicaStatus, memory: MemoryDescriptor | None) -> None:
        self.status = status
        self._memory = memory

    def is_memory_replica(self) -> bool:
        """Whether it is in memory."""
        return self._memory is not None

    def is_disk_replica(self) -> bool:
        """Whether it is a file that several hosts share; none is."""
        return False

    def is_local_disk_replica(self) -> bool:
        """Whether it is on the SSD of a node."""
        return self._memory is None

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Where it is in memory; raises for another replica."""
        if self._memory is None:
            raise RuntimeError("not a replica in memory")
        return self._memory

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Raises: no replica is a file that several hosts share."""
        raise RuntimeError("not a replica in a file that several hosts share")


class QueryTaskResponse:
    """The state of a task."""

    def __init__(self) -> None:
        self.id = (0, 0)
        self.type = TaskType.REPLICA_COPY
        self.status = TaskStatus.PENDING
        self.created_at_ms_epoch = 0
        self.last_updated_at_ms_epoch = 0
        self.assigned_client = (0, 0)
        self.message = ""
