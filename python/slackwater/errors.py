"""The exceptions of calls: one class for each thing that a caller can do about them.

The class says what to do, `.code` says what happened. Codes are those that integrations of KV-cache stores know: an
`ErrorCode` is an `int`, negative.
"""

import enum
from typing import Self


class ErrorCode(enum.IntEnum):
    """Why a call did not do what was asked."""

    INTERNAL_ERROR = -1
    BUFFER_OVERFLOW = -10
    SHARD_INDEX_OUT_OF_RANGE = -100
    SEGMENT_NOT_FOUND = -101
    SEGMENT_ALREADY_EXISTS = -102
    CLIENT_NOT_FOUND = -103
    NO_AVAILABLE_HANDLE = -200
    INVALID_VERSION = -300
    INVALID_KEY = -400
    WRITE_FAIL = -500
    INVALID_PARAMS = -600
    ILLEGAL_CLIENT = -601
    INVALID_WRITE = -700
    INVALID_READ = -701
    INVALID_REPLICA = -702
    REPLICA_IS_NOT_READY = -703
    OBJECT_NOT_FOUND = -704
    OBJECT_ALREADY_EXISTS = -705
    OBJECT_HAS_LEASE = -706
    LEASE_EXPIRED = -707
    OBJECT_HAS_REPLICATION_TASK = -708
    OBJECT_NO_REPLICATION_TASK = -709
    REPLICA_NOT_FOUND = -710
    REPLICA_ALREADY_EXISTS = -711
    REPLICA_IS_GONE = -712
    REPLICA_NOT_IN_LOCAL_MEMORY = -713
    OBJECT_REPLICA_BUSY = -714
    TRANSFER_FAIL = -800
    CHECKSUM_MISMATCH = -801
    RPC_FAIL = -900
    RPC_TIMEOUT = -901
    ETCD_OPERATION_ERROR = -1000
    ETCD_KEY_NOT_EXIST = -1001
    ETCD_TRANSACTION_FAIL = -1002
    ETCD_CTX_CANCELLED = -1003
    OPLOG_ENTRY_NOT_FOUND = -1004
    K8S_LEASE_OPERATION_ERROR = -1005
    K8S_LEASE_NOT_FOUND = -1006
    INCOMPLETE_OPLOG_CATCH_UP = -1007
    UNAVAILABLE_IN_CURRENT_STATUS = -1010
    UNAVAILABLE_IN_CURRENT_MODE = -1011
    NOT_SUPPORTED = -1012
    FILE_NOT_FOUND = -1100
    FILE_OPEN_FAIL = -1101
    FILE_READ_FAIL = -1102
    FILE_WRITE_FAIL = -1103
    FILE_INVALID_BUFFER = -1104
    FILE_LOCK_FAIL = -1105
    FILE_INVALID_HANDLE = -1106
    BUCKET_NOT_FOUND = -1200
    BUCKET_ALREADY_EXISTS = -1201
    KEYS_EXCEED_BUCKET_LIMIT = -1202
    KEYS_ULTRA_LIMIT = -1203
    UNABLE_OFFLOAD = -1300
    UNABLE_OFFLOADING = -1301
    TASK_NOT_FOUND = -1400
    TASK_PENDING_LIMIT_EXCEEDED = -1401
    JOB_NOT_FOUND = -1402
    SERIALIZE_UNSUPPORTED = -1500
    SERIALIZE_FAIL = -1501
    DESERIALIZE_FAIL = -1502
    PERSISTENT_FAIL = -1503
    DFS_NETWORK_TIMEOUT = -1600
    DFS_SERVICE_UNAVAILABLE = -1601
    DFS_QUOTA_EXCEEDED = -1602
    DFS_PERMISSION_DENIED = -1603
    DFS_STALE_HANDLE = -1604
    DFS_PARTIAL_WRITE = -1605
    TENANT_QUOTA_EXCEEDED = -1700
    TENANT_NOT_REGISTERED = -1701
    TENANT_NOT_EMPTY = -1702
    DISK_FULL = -2001
    DEADLINE_PASSED = -2002
    SHUTTING_DOWN = -2003
    VALUE_TOO_LONG = -2004
    CANCELLED = -2005
    OPERATION_TOO_OLD = -2006
    ROLE_NOT_PERMITTED = -2007
    TENANT_NOT_PERMITTED = -2008
    STALE_EPOCH = -2009
    TOO_FEW_HOSTS = -2010


class SlackwaterError(Exception):
    """Anything that a store refuses or fails to do."""

    code: ErrorCode

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)
        self.code = ErrorCode(code)

    def __str__(self) -> str:
        return self.args[0]

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), self.args


class RetryError(SlackwaterError):
    """Try again after a pause: no space now, a lease that runs out, a deadline that passed."""


class RefusedError(SlackwaterError):
    """Never try again: rights, limits, a wrong argument, a store that is closed."""


class GoneError(SlackwaterError):
    """What was named is not there any more: start over, or take it as a miss."""


class FatalError(SlackwaterError):
    """A contract is broken: stop, and report it."""


_CLASSES = {"retry": RetryError, "refused": RefusedError, "gone": GoneError, "fatal": FatalError}


def _make(kind: str, code: int, message: str) -> SlackwaterError:
    return _CLASSES[kind](message, code)
