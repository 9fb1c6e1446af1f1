use std::ffi::c_char;
use std::time::Duration;

use slackwater_mq::Address;
use slackwater_remote::{
    CallOptions, Cancel, Client, ClientError, ConnectOptions, GetOptions, PutOptions,
    RemoveOptions, Stored,
};
use slackwater_wire::{Durability, ErrorCode, Key, List, Pin, PutMode, Tenant};

use crate::status::{Failure, SW_OK, guard, quietly, sw_status};
use crate::values::{
    at, buffers, give, optional, optional_path, optional_text, optional_time, places, slices,
    sw_buffer, sw_bytes, take,
};

/// A client of a store that another process serves. Any thread may use it; none may while it is closed.
pub struct sw_client(Client);

/// Ends calls from another thread.
pub struct sw_cancel(Cancel);

/// A value that the library read into memory of its own.
pub struct sw_value(Vec<u8>);

/// Keys in byte order.
pub struct sw_keys {
    keys: Vec<Key>,
    more: bool,
}

/// How to reach a server. All zero is a server of this machine at its ordinary port.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_connect_options {
    /// Where it is: `tcp://HOST:PORT`, or `curve://HOST:PORT/KEY` for one with keys; null for `tcp://127.0.0.1:50051`.
    pub address: *const c_char,
    /// The file of our secret key, for a server with keys; null for none.
    pub key_file: *const c_char,
    /// How long connecting may take, in nanoseconds; 0 for 2 s.
    pub connect_timeout: u64,
    /// How long a call may take that does not say, in nanoseconds; 0 for 10 s.
    pub timeout: u64,
    /// Nothing but TCP, not even memory that is shared with a server of this machine.
    pub force_tcp: bool,
}

/// How a call is made. All zero is the default tenant and the time of the connection.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_call_options {
    /// The tenant of the keys; null for the default tenant.
    pub tenant: *const c_char,
    /// How long it may take, in nanoseconds; 0 for the time of the connection.
    pub timeout: u64,
    /// Ends it from another thread; null for nothing.
    pub cancel: *const sw_cancel,
}

/// How values are put. All zero is an ordinary put.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_put_options {
    /// How the call is made.
    pub call: sw_call_options,
    /// Replace the value of a key that has one; without it such a put is `SW_EXISTS`.
    pub upsert: bool,
    /// Return only when the value is on SSD.
    pub durable: bool,
    /// Never evict the value.
    pub pinned: bool,
    /// Return only when each of the copies is in memory of another host; refused where there are fewer hosts.
    pub replicated: bool,
    /// Copies in memory, on different nodes; 0 counts as 1.
    pub replicas: u32,
    /// How long to wait for space, in nanoseconds; 0 for the server's time.
    pub wait: u64,
}

/// What is known of an object.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_stat {
    /// Its length.
    pub bytes: u64,
    /// The version of the put that wrote it.
    pub version: u64,
    /// The checksum of its bytes.
    pub checksum: u64,
    /// How long readers hold it yet, in nanoseconds.
    pub lease: u64,
    /// Its replicas in memory and on SSD.
    pub replicas: u32,
}

/// Connects to a server.
///
/// # Safety
/// `options` is null or valid, with its texts; `client` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_client_connect(
    options: *const sw_connect_options,
    client: *mut *mut sw_client,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let connected = Client::connect(&unsafe { connect_options(options) }?);
        let connected = connected.map_err(|error| Failure::new(error.code(), error))?;
        // SAFETY: as the caller promises.
        unsafe { give(client, sw_client(connected), "client") }
    })
}

/// Closes a client; null is nothing. No call of it may be under way.
///
/// # Safety
/// `client` is null or came from `sw_client_connect`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_client_close(client: *mut sw_client) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(client) }));
}

/// Puts one value. Returns when it is visible, and when it was asked to be durable, on SSD.
///
/// # Safety
/// Pointers are valid, with what they point to; `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_client_put(
    client: *const sw_client,
    key: sw_bytes,
    value: sw_bytes,
    options: *const sw_put_options,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (client, key, value, options) = unsafe {
            let client = at(client, "client")?;
            let options = put_options(options)?;
            (client, key.slice("key")?, value.slice("value")?, options)
        };
        stored(key, client.0.put(key, value, &options))
    })
}

/// Puts `count` values. `results` gets a status each: one that fails does not touch its neighbours. The call fails as a
/// whole only for arguments that are wrong.
///
/// # Safety
/// Pointers are valid for `count`, with what they point to; `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_client_put_batch(
    client: *const sw_client,
    count: usize,
    keys: *const sw_bytes,
    values: *const sw_bytes,
    options: *const sw_put_options,
    results: *mut sw_status,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (client, keys, values, options, results) = unsafe {
            let client = at(client, "client")?;
            let keys = slices(keys, count, "keys")?;
            let values = slices(values, count, "values")?;
            let results = places(results, count, "results")?;
            (client, keys, values, put_options(options)?, results)
        };
        let entries: Vec<_> = keys.iter().copied().zip(values).collect();
        let outcomes = client.0.put_batch(&entries, &options);
        let status = |(key, outcome): (&&[u8], _)| match stored(key, outcome) {
            Ok(()) => SW_OK,
            Err(failure) => failure.tell(),
        };
        fill(results, keys.iter().zip(outcomes).map(status));
        Ok(())
    })
}

/// Reads one value into `into` and says its length. `SW_NOT_FOUND` when there is none; `SW_TOO_SMALL`, with the length
/// that is needed, when it does not fit. The other bytes of `into` are of no meaning afterwards.
///
/// # Safety
/// Pointers are valid, with what they point to; `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_client_get(
    client: *const sw_client,
    key: sw_bytes,
    into: sw_buffer,
    options: *const sw_call_options,
    bytes: *mut usize,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (client, key, into, options, bytes) = unsafe {
            let client = at(client, "client")?;
            let (key, into) = (key.slice("key")?, into.slice("into")?);
            (
                client,
                key,
                into,
                get_options(options)?,
                places(bytes, 1, "bytes")?,
            )
        };
        match client.0.get_into(key, into, &options) {
            Ok(Some(read)) => {
                bytes.fill(read);
                Ok(())
            }
            Ok(None) => Err(missing(key)),
            Err(error) => {
                if let ClientError::BufferTooSmall { need, .. } = &error {
                    bytes.fill(usize::try_from(*need).unwrap_or(usize::MAX));
                }
                Err(failed(error))
            }
        }
    })
}

/// Reads `count` values into the caller's buffers, which must not overlap. `results` gets the length or the negative
/// status of each. The call fails as a whole only for arguments that are wrong.
///
/// # Safety
/// Pointers are valid for `count`, with what they point to; `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_client_get_batch(
    client: *const sw_client,
    count: usize,
    keys: *const sw_bytes,
    into: *const sw_buffer,
    options: *const sw_call_options,
    results: *mut i64,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (client, keys, mut into, options, results) = unsafe {
            let client = at(client, "client")?;
            let keys = slices(keys, count, "keys")?;
            let into = buffers(into, count, "into")?;
            let results = places(results, count, "results")?;
            (client, keys, into, get_options(options)?, results)
        };
        let outcomes = client.0.get_batch_into(&keys, &mut into, &options);
        for (place, (outcome, key)) in results.iter_mut().zip(outcomes.into_iter().zip(&keys)) {
            *place = match outcome {
                Ok(Some(read)) => i64::try_from(read).unwrap_or(i64::MAX),
                Ok(None) => missing(key).tell().into(),
                Err(error) => failed(error).tell().into(),
            };
        }
        Ok(())
    })
}

/// Reads one value into memory of the library, to be given back with `sw_value_free`. `SW_NOT_FOUND` when there is none.
///
/// # Safety
/// Pointers are valid, with what they point to; `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_client_get_value(
    client: *const sw_client,
    key: sw_bytes,
    options: *const sw_call_options,
    value: *mut *mut sw_value,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (client, key, options) = unsafe {
            let client = at(client, "client")?;
            (client, key.slice("key")?, get_options(options)?)
        };
        let read = client.0.get(key, &options).map_err(failed)?;
        let read = read.ok_or_else(|| missing(key))?;
        // SAFETY: as the caller promises.
        unsafe { give(value, sw_value(read), "value") }
    })
}

/// The bytes of a value, as long as it is not given back; none for null.
///
/// # Safety
/// `value` is null or came from `sw_client_get_value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_value_bytes(value: *const sw_value) -> sw_bytes {
    // SAFETY: as the caller promises.
    match unsafe { at(value, "value") } {
        Ok(value) => sw_bytes::of(&value.0),
        Err(_) => sw_bytes::of(&[]),
    }
}

/// Gives a value back; null is nothing.
///
/// # Safety
/// `value` is null or came from `sw_client_get_value`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_value_free(value: *mut sw_value) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(value) }));
}

/// Says for each of `count` keys whether there is an object.
///
/// # Safety
/// Pointers are valid for `count`, with what they point to; `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_client_exists(
    client: *const sw_client,
    count: usize,
    keys: *const sw_bytes,
    options: *const sw_call_options,
    found: *mut bool,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (client, keys, options, found) = unsafe {
            let client = at(client, "client")?;
            let keys = slices(keys, count, "keys")?;
            (
                client,
                keys,
                call_options(options)?,
                places(found, count, "found")?,
            )
        };
        fill(found, client.0.exists(&keys, &options).map_err(failed)?);
        Ok(())
    })
}

/// Removes `count` objects, with `force` also those that readers hold. `results` gets a status each. When it returns, no
/// crash of the server brings them back. The call fails as a whole only for arguments that are wrong.
///
/// # Safety
/// Pointers are valid for `count`, with what they point to; `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_client_remove(
    client: *const sw_client,
    count: usize,
    keys: *const sw_bytes,
    force: bool,
    options: *const sw_call_options,
    results: *mut sw_status,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (client, keys, call, results) = unsafe {
            let client = at(client, "client")?;
            let keys = slices(keys, count, "keys")?;
            (
                client,
                keys,
                call_options(options)?,
                places(results, count, "results")?,
            )
        };
        let outcomes = client.0.remove(&keys, &RemoveOptions { call, force });
        let status = |outcome: Result<(), ClientError>| match outcome {
            Ok(()) => SW_OK,
            Err(error) => failed(error).tell(),
        };
        fill(results, outcomes.into_iter().map(status));
        Ok(())
    })
}

/// Tells what is known of one object, which counts neither as a read nor as a lease. `SW_NOT_FOUND` when there is none.
///
/// # Safety
/// Pointers are valid, with what they point to; `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_client_stat(
    client: *const sw_client,
    key: sw_bytes,
    options: *const sw_call_options,
    stat: *mut sw_stat,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (client, key, options, stat) = unsafe {
            let client = at(client, "client")?;
            (
                client,
                key.slice("key")?,
                call_options(options)?,
                places(stat, 1, "stat")?,
            )
        };
        let found = client.0.stat(key, &options).map_err(failed)?;
        let found = found.ok_or_else(|| missing(key))?;
        stat.fill(sw_stat {
            bytes: found.bytes,
            version: found.version.0,
            checksum: found.checksum.0,
            lease: u64::try_from(found.lease.as_nanos()).unwrap_or(u64::MAX),
            replicas: u32::try_from(found.replicas.len()).unwrap_or(u32::MAX),
        });
        Ok(())
    })
}

/// Lists up to `limit` keys, at least one, in byte order, those after `after` (null for the first) in which the regular expression
/// `pattern` is found (null for all). The list is given back with `sw_keys_free`.
///
/// # Safety
/// Pointers are valid, with what they point to; `pattern`, `after` and `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_client_list(
    client: *const sw_client,
    pattern: *const c_char,
    after: *const sw_bytes,
    limit: usize,
    options: *const sw_call_options,
    keys: *mut *mut sw_keys,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (client, pattern, after, call) = unsafe {
            let client = at(client, "client")?;
            let pattern = optional_text(pattern, "pattern")?;
            let after = optional(after, "after")?;
            let after = after.map(|after| after.slice("after")).transpose()?;
            (client, pattern, after, call_options(options)?)
        };
        if limit == 0 {
            return Err(Failure::invalid("limit is 0"));
        }
        let after = after.map(Key::new).transpose().map_err(Failure::invalid)?;
        let list = List {
            tenant: call.tenant.clone(),
            pattern: pattern.map(str::to_owned),
            after,
            limit: 0,
        };
        let (found, more) = client.0.list_up_to(list, limit, &call).map_err(failed)?;
        // SAFETY: as the caller promises.
        unsafe { give(keys, sw_keys { keys: found, more }, "keys") }
    })
}

/// How many keys are in a list; 0 for null.
///
/// # Safety
/// `keys` is null or came from `sw_client_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_keys_count(keys: *const sw_keys) -> usize {
    // SAFETY: as the caller promises.
    unsafe { at(keys, "keys") }.map_or(0, |keys| keys.keys.len())
}

/// Whether there are more keys behind those of a list.
///
/// # Safety
/// `keys` is null or came from `sw_client_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_keys_more(keys: *const sw_keys) -> bool {
    // SAFETY: as the caller promises.
    unsafe { at(keys, "keys") }.is_ok_and(|keys| keys.more)
}

/// A key of a list, as long as the list is not given back; none beyond its end.
///
/// # Safety
/// `keys` is null or came from `sw_client_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_keys_at(keys: *const sw_keys, index: usize) -> sw_bytes {
    // SAFETY: as the caller promises.
    let key = unsafe { at(keys, "keys") }
        .ok()
        .and_then(|keys| keys.keys.get(index));
    sw_bytes::of(key.map_or(&[], Key::as_bytes))
}

/// Gives a list back; null is nothing.
///
/// # Safety
/// `keys` is null or came from `sw_client_list`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_keys_free(keys: *mut sw_keys) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(keys) }));
}

/// Makes something that cancels the calls which are given it.
///
/// # Safety
/// `cancel` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_cancel_new(cancel: *mut *mut sw_cancel) -> sw_status {
    // SAFETY: as the caller promises.
    guard(|| unsafe { give(cancel, sw_cancel(Cancel::new()), "cancel") })
}

/// Cancels the calls that were given it, now and later. They return soon, when nothing touches their buffers any more.
///
/// # Safety
/// `cancel` is null or came from `sw_cancel_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_cancel_all(cancel: *const sw_cancel) {
    quietly(|| {
        // SAFETY: as the caller promises.
        if let Ok(cancel) = unsafe { at(cancel, "cancel") } {
            cancel.0.cancel();
        }
    });
}

/// Gives it back; null is nothing. No call that was given it may be under way.
///
/// # Safety
/// `cancel` is null or came from `sw_cancel_new`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_cancel_free(cancel: *mut sw_cancel) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(cancel) }));
}

unsafe fn connect_options(options: *const sw_connect_options) -> Result<ConnectOptions, Failure> {
    let mut connect = ConnectOptions::default();
    // SAFETY: as the caller promises.
    let Some(options) = unsafe { optional(options, "options") }? else {
        return Ok(connect);
    };
    // SAFETY: as the caller promises.
    let (address, key_file) = unsafe {
        let address = optional_text(options.address, "address")?;
        (address, optional_path(options.key_file, "key_file")?)
    };
    if let Some(address) = address {
        connect.address = address.parse::<Address>().map_err(Failure::invalid)?;
    }
    connect.key_file = key_file;
    connect.force_tcp = options.force_tcp;
    let or = |given, otherwise: Duration| optional_time(given).unwrap_or(otherwise);
    connect.connect_timeout = or(options.connect_timeout, connect.connect_timeout);
    connect.deadline = or(options.timeout, connect.deadline);
    Ok(connect)
}

unsafe fn call_options(options: *const sw_call_options) -> Result<CallOptions, Failure> {
    // SAFETY: as the caller promises.
    match unsafe { optional(options, "options") }? {
        None => Ok(CallOptions::default()),
        // SAFETY: as the caller promises.
        Some(options) => unsafe { call_of(options) },
    }
}

unsafe fn call_of(options: &sw_call_options) -> Result<CallOptions, Failure> {
    // SAFETY: as the caller promises.
    let (tenant, cancel) = unsafe {
        let tenant = optional_text(options.tenant, "tenant")?;
        (tenant, optional(options.cancel, "cancel")?)
    };
    Ok(CallOptions {
        tenant: tenant
            .map(Tenant::new)
            .transpose()
            .map_err(Failure::invalid)?
            .unwrap_or_default(),
        deadline: optional_time(options.timeout),
        cancel: cancel.map(|cancel| cancel.0.clone()),
    })
}

unsafe fn get_options(options: *const sw_call_options) -> Result<GetOptions, Failure> {
    Ok(GetOptions {
        // SAFETY: as the caller promises.
        call: unsafe { call_options(options) }?,
        ..GetOptions::default()
    })
}

unsafe fn put_options(options: *const sw_put_options) -> Result<PutOptions, Failure> {
    // SAFETY: as the caller promises.
    let Some(options) = unsafe { optional(options, "options") }? else {
        return Ok(PutOptions::default());
    };
    let choose = |wanted: bool, one, other| if wanted { one } else { other };
    Ok(PutOptions {
        // SAFETY: as the caller promises.
        call: unsafe { call_of(&options.call) }?,
        mode: if options.upsert {
            PutMode::Upsert
        } else {
            PutMode::Create
        },
        durability: match (options.durable, options.replicated) {
            (true, true) => {
                let text = "a put is durable or replicated, and not both";
                return Err(Failure::invalid(text));
            }
            (true, false) => Durability::Disk,
            (false, true) => Durability::Replicated,
            (false, false) => Durability::Memory,
        },
        pin: choose(options.pinned, Pin::Hard, Pin::None),
        replicas: options.replicas.max(1),
        wait: optional_time(options.wait),
        ..PutOptions::default()
    })
}

fn stored(key: &[u8], outcome: Result<Stored, ClientError>) -> Result<(), Failure> {
    match outcome.map_err(failed)? {
        Stored::New => Ok(()),
        Stored::Existed => {
            let key = String::from_utf8_lossy(key);
            let text = format_args!("there is an object with the key {key} already");
            Err(Failure::new(ErrorCode::ObjectAlreadyExists, text))
        }
    }
}

fn failed(error: ClientError) -> Failure {
    Failure::new(error.code(), error)
}

fn missing(key: &[u8]) -> Failure {
    let key = String::from_utf8_lossy(key);
    Failure::new(
        ErrorCode::ObjectNotFound,
        format_args!("there is no object with the key {key}"),
    )
}

fn fill<T>(places: &mut [T], results: impl IntoIterator<Item = T>) {
    places
        .iter_mut()
        .zip(results)
        .for_each(|(place, result)| *place = result);
}
