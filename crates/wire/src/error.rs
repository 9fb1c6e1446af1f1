use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a client does about an error; the class alone decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Ask again within the deadline, with back-off and jitter.
    Retry,
    /// Never ask again: rights, limits or a bad argument.
    Refused,
    /// What was named is not there (any more): start over, or take it as a miss.
    Gone,
    /// A contract is broken: stop and report.
    Fatal,
}

macro_rules! codes {
    ($($number:literal $variant:ident $class:ident $name:literal $doc:literal;)*) => {
        /// Why an operation did not do what was asked, with the number that drop-in users branch on.
        ///
        /// Numbers from 0 to -2000 keep the meaning that integrations know; new ones lie below -2000.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum ErrorCode {
            $(#[doc = $doc] $variant = $number,)*
        }

        impl ErrorCode {
            /// Every code there is.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$variant,)*];

            /// The class, which alone decides what a client does about it.
            #[must_use]
            pub const fn class(self) -> Class {
                match self {
                    $(ErrorCode::$variant => Class::$class,)*
                }
            }

            /// The name that integrations know it by.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$variant => $name,)*
                }
            }

            /// One clause that says what it means.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(ErrorCode::$variant => $doc,)*
                }
            }

            /// The code of a number, if there is one.
            #[must_use]
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(ErrorCode::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    -1 InternalError Fatal "INTERNAL_ERROR" "a contract of the store itself is broken";
    -10 BufferOverflow Refused "BUFFER_OVERFLOW" "the caller's buffer is too small for the answer";
    -100 ShardIndexOutOfRange Refused "SHARD_INDEX_OUT_OF_RANGE" "no such metadata shard";
    -101 SegmentNotFound Gone "SEGMENT_NOT_FOUND" "no segment of that id or name is mounted";
    -102 SegmentAlreadyExists Refused "SEGMENT_ALREADY_EXISTS" "a segment of that id is mounted already";
    -103 ClientNotFound Gone "CLIENT_NOT_FOUND" "the master does not know this client (any more)";
    -200 NoAvailableHandle Retry "NO_AVAILABLE_HANDLE" "no space, and none came free within the time allowed";
    -300 InvalidVersion Gone "INVALID_VERSION" "the object has moved on to another version";
    -400 InvalidKey Refused "INVALID_KEY" "the bytes are not a key";
    -500 WriteFail Retry "WRITE_FAIL" "bytes could not be written";
    -600 InvalidParams Refused "INVALID_PARAMS" "an argument is wrong";
    -601 IllegalClient Refused "ILLEGAL_CLIENT" "another client owns what was named";
    -700 InvalidWrite Gone "INVALID_WRITE" "the put is not in the state that this step needs";
    -701 InvalidRead Gone "INVALID_READ" "the read is not in the state that this step needs";
    -702 InvalidReplica Gone "INVALID_REPLICA" "no replica of the kind that was asked for";
    -703 ReplicaIsNotReady Retry "REPLICA_IS_NOT_READY" "the object exists but nothing of it can be read yet";
    -704 ObjectNotFound Gone "OBJECT_NOT_FOUND" "no such object";
    -705 ObjectAlreadyExists Refused "OBJECT_ALREADY_EXISTS" "an object of that key exists or is being written";
    -706 ObjectHasLease Retry "OBJECT_HAS_LEASE" "a reader's lease has not run out";
    -707 LeaseExpired Gone "LEASE_EXPIRED" "the read outlasted its lease; its bytes do not count";
    -708 ObjectHasReplicationTask Retry "OBJECT_HAS_REPLICATION_TASK" "a promotion, offload, copy or move of the object is under way";
    -709 ObjectNoReplicationTask Gone "OBJECT_NO_REPLICATION_TASK" "no such task on the object";
    -710 ReplicaNotFound Gone "REPLICA_NOT_FOUND" "no such replica";
    -711 ReplicaAlreadyExists Refused "REPLICA_ALREADY_EXISTS" "such a replica is there already";
    -712 ReplicaIsGone Gone "REPLICA_IS_GONE" "the replica went away meanwhile";
    -713 ReplicaNotInLocalMemory Gone "REPLICA_NOT_IN_LOCAL_MEMORY" "the replica is not in this process's memory";
    -714 ObjectReplicaBusy Retry "OBJECT_REPLICA_BUSY" "a replica is in use and cannot be changed";
    -800 TransferFail Retry "TRANSFER_FAIL" "bytes could not be moved";
    -801 ChecksumMismatch Gone "CHECKSUM_MISMATCH" "the bytes are not those that were put";
    -900 RpcFail Retry "RPC_FAIL" "the other side could not be asked";
    -901 RpcTimeout Retry "RPC_TIMEOUT" "no answer came in time";
    -1000 EtcdOperationError Retry "ETCD_OPERATION_ERROR" "the coordinator refused an operation";
    -1001 EtcdKeyNotExist Gone "ETCD_KEY_NOT_EXIST" "the coordinator has no such key";
    -1002 EtcdTransactionFail Retry "ETCD_TRANSACTION_FAIL" "another writer was first at the coordinator";
    -1003 EtcdCtxCancelled Retry "ETCD_CTX_CANCELLED" "a coordinator call was cancelled";
    -1004 OplogEntryNotFound Gone "OPLOG_ENTRY_NOT_FOUND" "the journal has no such entry";
    -1005 K8sLeaseOperationError Retry "K8S_LEASE_OPERATION_ERROR" "a Kubernetes lease call was refused";
    -1006 K8sLeaseNotFound Gone "K8S_LEASE_NOT_FOUND" "there is no such Kubernetes lease";
    -1007 IncompleteOplogCatchUp Retry "INCOMPLETE_OPLOG_CATCH_UP" "the standby has not read the whole journal";
    -1010 UnavailableInCurrentStatus Retry "UNAVAILABLE_IN_CURRENT_STATUS" "not possible in the present status";
    -1011 UnavailableInCurrentMode Refused "UNAVAILABLE_IN_CURRENT_MODE" "not possible in the configured mode";
    -1012 NotSupported Refused "NOT_SUPPORTED" "not part of this store";
    -1100 FileNotFound Gone "FILE_NOT_FOUND" "no such file";
    -1101 FileOpenFail Fatal "FILE_OPEN_FAIL" "a file could not be opened";
    -1102 FileReadFail Fatal "FILE_READ_FAIL" "a file could not be read";
    -1103 FileWriteFail Fatal "FILE_WRITE_FAIL" "a file could not be written";
    -1104 FileInvalidBuffer Refused "FILE_INVALID_BUFFER" "a buffer is not fit for file access";
    -1105 FileLockFail Refused "FILE_LOCK_FAIL" "another process holds the directory";
    -1106 FileInvalidHandle Fatal "FILE_INVALID_HANDLE" "a file handle is not valid";
    -1200 BucketNotFound Gone "BUCKET_NOT_FOUND" "no such bucket on SSD";
    -1201 BucketAlreadyExists Refused "BUCKET_ALREADY_EXISTS" "such a bucket is on SSD already";
    -1202 KeysExceedBucketLimit Refused "KEYS_EXCEED_BUCKET_LIMIT" "too many keys for a bucket";
    -1203 KeysUltraLimit Retry "KEYS_ULTRA_LIMIT" "a queue of keys is full";
    -1300 UnableOffload Refused "UNABLE_OFFLOAD" "offload is not enabled";
    -1301 UnableOffloading Retry "UNABLE_OFFLOADING" "offload is not possible now";
    -1400 TaskNotFound Gone "TASK_NOT_FOUND" "no such task";
    -1401 TaskPendingLimitExceeded Retry "TASK_PENDING_LIMIT_EXCEEDED" "too many tasks are waiting";
    -1402 JobNotFound Gone "JOB_NOT_FOUND" "no such job";
    -1500 SerializeUnsupported Refused "SERIALIZE_UNSUPPORTED" "this cannot be written in that format";
    -1501 SerializeFail Fatal "SERIALIZE_FAIL" "a value could not be written as bytes";
    -1502 DeserializeFail Fatal "DESERIALIZE_FAIL" "bytes could not be read as a value";
    -1503 PersistentFail Fatal "PERSISTENT_FAIL" "state could not be made durable";
    -1600 DfsNetworkTimeout Retry "DFS_NETWORK_TIMEOUT" "the shared file system did not answer in time";
    -1601 DfsServiceUnavailable Retry "DFS_SERVICE_UNAVAILABLE" "the shared file system is not there";
    -1602 DfsQuotaExceeded Refused "DFS_QUOTA_EXCEEDED" "the shared file system is full for us";
    -1603 DfsPermissionDenied Refused "DFS_PERMISSION_DENIED" "the shared file system denies access";
    -1604 DfsStaleHandle Gone "DFS_STALE_HANDLE" "a handle of the shared file system is stale";
    -1605 DfsPartialWrite Retry "DFS_PARTIAL_WRITE" "the shared file system took only a part";
    -1700 TenantQuotaExceeded Refused "TENANT_QUOTA_EXCEEDED" "the tenant has used up its bytes";
    -1701 TenantNotRegistered Refused "TENANT_NOT_REGISTERED" "no quota is set for the tenant";
    -1702 TenantNotEmpty Refused "TENANT_NOT_EMPTY" "the tenant still has objects, or puts that wait";
    -2001 DiskFull Retry "DISK_FULL" "the SSD has no room for another segment";
    -2002 DeadlinePassed Retry "DEADLINE_PASSED" "the call's deadline passed first";
    -2003 ShuttingDown Refused "SHUTTING_DOWN" "the store is closing";
    -2004 ValueTooLong Refused "VALUE_TOO_LONG" "the value is longer than the SSD takes";
    -2005 Cancelled Refused "CANCELLED" "the caller gave the operation up";
    -2006 OperationTooOld Gone "OPERATION_TOO_OLD" "the answer to the operation is no longer kept, so it is not executed";
    -2007 RoleNotPermitted Refused "ROLE_NOT_PERMITTED" "the caller's key has not the role that this needs";
    -2008 TenantNotPermitted Refused "TENANT_NOT_PERMITTED" "the caller's key does not cover the tenants that were named";
    -2009 StaleEpoch Retry "STALE_EPOCH" "the master is of an earlier epoch than one that was seen already";
    -2010 TooFewHosts Refused "TOO_FEW_HOSTS" "too few hosts lend memory that could hold the value: each replica needs a host of its own, so have nodes on more hosts or ask for fewer replicas";
}

impl ErrorCode {
    /// The number of the code.
    #[must_use]
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// The code of a number that came from a peer. One that is unknown, from a newer peer, reads as
    /// [`ErrorCode::InternalError`]: fatal, never silently retried.
    #[must_use]
    pub fn of_peer(number: i32) -> Self {
        Self::from_number(number).unwrap_or(Self::InternalError)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.meaning(), self.name(), self.number())
    }
}

impl std::error::Error for ErrorCode {}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i32(self.number())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i32::deserialize(deserializer).map(Self::of_peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_its_number_and_the_wire() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_number(code.number()), Some(*code));
            let bytes = rmp_serde::to_vec_named(code).unwrap();
            assert_eq!(rmp_serde::from_slice::<ErrorCode>(&bytes).unwrap(), *code);
            assert!(
                !code.meaning().is_empty()
                    && code
                        .name()
                        .chars()
                        .all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit())
            );
        }
    }

    #[test]
    fn numbers_are_unique_and_new_ones_lie_below_the_reserved_range() {
        let mut numbers: Vec<i32> = ErrorCode::ALL.iter().map(|code| code.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ErrorCode::ALL.len());
        assert!(
            numbers
                .iter()
                .all(|n| *n < 0 && (*n >= -1702 || *n < -2000))
        );
    }

    #[test]
    fn the_codes_that_integrations_branch_on_keep_their_class() {
        let check = |number: i32, class: Class| {
            assert_eq!(
                ErrorCode::from_number(number).unwrap().class(),
                class,
                "{number}"
            );
        };
        check(-200, Class::Retry);
        check(-600, Class::Refused);
        check(-702, Class::Gone);
        check(-703, Class::Retry);
        check(-704, Class::Gone);
        check(-705, Class::Refused);
        check(-706, Class::Retry);
        check(-707, Class::Gone);
        check(-900, Class::Retry);
        check(-901, Class::Retry);
        check(-1700, Class::Refused);
    }

    #[test]
    fn an_unknown_number_is_fatal() {
        let bytes = rmp_serde::to_vec_named(&-31_337).unwrap();
        assert_eq!(
            rmp_serde::from_slice::<ErrorCode>(&bytes).unwrap(),
            ErrorCode::InternalError
        );
    }
}
