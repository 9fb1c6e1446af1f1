"""The names of `mooncake.store`."""

from slackwater._native import BufferHandle, get_alloc_func_addr, get_free_func_addr
from slackwater.compat.mooncake.buffer_pool import (
    BufferLease,
    BufferLeaseView,
    BufferPool,
    MooncakeHostMemAllocator,
    RegisteredBufferPool,
)
from slackwater.compat.mooncake.client import MooncakeDistributedStore
from slackwater.compat.mooncake.engram import EngramStore, EngramStoreConfig
from slackwater.compat.mooncake.kinds import ObjectDataType, ReplicaStatus, SoftPinAction, TaskStatus, TaskType
from slackwater.compat.mooncake.numa import bind_to_numa_node
from slackwater.compat.mooncake.nvme_of import MooncakeDistributedNoFRegister
from slackwater.compat.mooncake.parallelism import ParallelAxis, ReadTarget, TensorParallelism
from slackwater.compat.mooncake.replicas import (
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    QueryTaskResponse,
    ReplicaDescriptor,
)
from slackwater.compat.mooncake.replicate import ReplicateConfig
from slackwater.compat.mooncake.tensor_format import HEADER_BYTES
from slackwater.compat.mooncake.tensors import deserialized as _deserialize_tensor
from slackwater.compat.mooncake.tensors import serialized as _serialize_tensor

RegisteredBufferLease = BufferLease
RegisteredBufferLeaseView = BufferLeaseView

__all__ = [
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "EngramStore",
    "EngramStoreConfig",
    "MemoryDescriptor",
    "MooncakeDistributedNoFRegister",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "bind_to_numa_node",
    "get_alloc_func_addr",
    "get_free_func_addr",
]

def _tensor_metadata_size() -> int:
    """Bytes of the header of a stored tensor."""
    return HEADER_BYTES


# Members are attributes of the module too; those of tasks stand for names that two kinds have.
for _kind in (ReplicaStatus, ObjectDataType, SoftPinAction, TaskType, TaskStatus):
    globals().update(_kind.__members__)
    __all__ += _kind.__members__
