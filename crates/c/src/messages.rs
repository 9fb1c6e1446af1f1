use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::net::SocketAddr;
use std::time::Duration;

use slackwater_mq::{
    Access, Address, Admission, AllowList, Answer, Builder, Call, Category, ConnectOptions,
    ConnectionId, Deferred, Level, ListenOptions, Mq, Options, Queueing, Refusal, RequestError,
    RequestOptions, Running, load_key,
};
use slackwater_net::Endpoint;
use slackwater_wire::ErrorCode;

use crate::status::{Failure, SW_OK, guard, quietly, sw_status};
use crate::values::{
    Context, at, give, optional, optional_path, optional_time, places, slices, sw_buffer, sw_bytes,
    take, text,
};

/// A message layer that is being made: what peers may call here is said before it starts.
pub struct sw_messages_builder(Option<Builder>);

/// A message layer. Any thread may use it; none may while it is stopped.
pub struct sw_messages(Running);

/// A link to a peer.
pub struct sw_link(ConnectionId);

/// A command as its handler sees it: valid only while the handler runs.
pub struct sw_call {
    _opaque: [u8; 0],
}

/// The permission to answer a request later, from any thread.
pub struct sw_deferred(Deferred);

/// The parts of a reply.
pub struct sw_answer(Answer);

/// Connected, nothing more.
pub const SW_LEVEL_NONE: u32 = 0;
/// An ordinary client.
pub const SW_LEVEL_BASIC: u32 = 1;
/// An operator.
pub const SW_LEVEL_ADMIN: u32 = 2;

/// What a message layer is started with. All zero is one without keys.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_messages_options {
    /// The file of its secret key; null for one that is made up.
    pub key_file: *const c_char,
    /// Event loops, 256 at most; 0 for one.
    pub loops: u32,
    /// How long a request may take that does not say, in nanoseconds; 0 for 15 s.
    pub request_timeout: u64,
}

/// Carries a command out, on a worker; it may block, but not for the stop of its message layer, and must not throw.
pub type sw_handler = Option<unsafe extern "C" fn(context: *mut c_void, call: *const sw_call)>;

/// Gets the answer of a request once, on any thread, also inside `sw_messages_stop`; it must not block. `SW_OK` and the
/// answer, which is the callee's to give back with `sw_answer_free`; or why there is none, and null.
pub type sw_answered =
    Option<unsafe extern "C" fn(context: *mut c_void, status: sw_status, answer: *mut sw_answer)>;

/// Most event loops of a message layer.
const LOOPS_MAX: u32 = 256;

/// Begins a message layer. It is given back by `sw_messages_start` or `sw_messages_builder_free`.
///
/// # Safety
/// `options` is null or valid, with its texts; `builder` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_messages_new(
    options: *const sw_messages_options,
    builder: *mut *mut sw_messages_builder,
) -> sw_status {
    guard(|| {
        let mut chosen = Options::default();
        // SAFETY: as the caller promises.
        if let Some(options) = unsafe { optional(options, "options") }? {
            // SAFETY: as the caller promises.
            let key_file = unsafe { optional_path(options.key_file, "key_file") }?;
            let keys = key_file.as_deref().map(load_key).transpose();
            chosen.keys = keys.map_err(Failure::invalid)?;
            if options.loops > LOOPS_MAX {
                let text = format_args!("{} loops, at most {LOOPS_MAX} can be", options.loops);
                return Err(Failure::invalid(text));
            }
            chosen.loops = options.loops.max(1) as usize;
            if let Some(timeout) = optional_time(options.request_timeout) {
                chosen.request_timeout = timeout;
            }
        }
        let begun = sw_messages_builder(Some(Builder::new(chosen)));
        // SAFETY: as the caller promises.
        unsafe { give(builder, begun, "builder") }
    })
}

/// Adds a category of commands: `level` is what a caller needs, `queue` how many of its commands may wait for a worker (0 for
/// 200); further ones are refused.
///
/// # Safety
/// `builder` is valid and used by this call alone; `name` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_messages_category(
    builder: *mut sw_messages_builder,
    name: *const c_char,
    level: u32,
    queue: u32,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (builder, name) = unsafe { (building(builder)?, text(name, "name")?) };
        let mut queueing = Queueing::default();
        if queue > 0 {
            queueing.queue = Some(queue as usize);
        }
        let category = Category {
            access: Access {
                level: level_of(level)?,
                ..Access::default()
            },
            queueing,
            ..Category::default()
        };
        let added = builder.category(name, category).map(drop);
        added.map_err(Failure::invalid)
    })
}

/// Adds `CATEGORY.COMMAND`; with `is_request` it is answered.
///
/// # Safety
/// `builder` is valid and used by this call alone; `name` is a text; `handler` may be called with `context` on any thread,
/// and on several at once, until the message layer is stopped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_messages_command(
    builder: *mut sw_messages_builder,
    name: *const c_char,
    is_request: bool,
    handler: sw_handler,
    context: *mut c_void,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (builder, name) = unsafe { (building(builder)?, text(name, "name")?) };
        let handler = handler.ok_or_else(|| Failure::invalid("handler is null"))?;
        let context = Context(context);
        let handle = move |call: &Call<'_>| {
            let context = &context;
            // SAFETY: as the caller promises; the call outlives the handler.
            inside(|| unsafe { handler(context.0, std::ptr::from_ref(call).cast()) });
        };
        let added = match is_request {
            true => builder.request_command(name, handle).map(drop),
            false => builder.command(name, handle).map(drop),
        };
        added.map_err(Failure::invalid)
    })
}

/// Starts what was begun, which is given back by this, whether it starts or not.
///
/// # Safety
/// `builder` came from `sw_messages_new` and is not used again; `messages` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_messages_start(
    builder: *mut sw_messages_builder,
    messages: *mut *mut sw_messages,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let begun = unsafe { take(builder) }.and_then(|mut builder| builder.0.take());
        let begun = begun.ok_or_else(|| Failure::invalid("builder is null"))?;
        let started = begun.start();
        let started =
            started.map_err(|error| Failure::new(ErrorCode::UnavailableInCurrentMode, error))?;
        // SAFETY: as the caller promises.
        unsafe { give(messages, sw_messages(started), "messages") }
    })
}

/// Gives up what was begun; null is nothing.
///
/// # Safety
/// `builder` is null or came from `sw_messages_new`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_messages_builder_free(builder: *mut sw_messages_builder) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(builder) }));
}

/// Stops a message layer: what is queued is dropped, links close after writing what they hold, and functions of the caller
/// that run are waited for: when this succeeds none runs or will. Null is nothing. `SW_INVALID` from inside such a function:
/// it would wait for itself.
///
/// # Safety
/// `messages` is null or came from `sw_messages_start`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_messages_stop(messages: *mut sw_messages) -> sw_status {
    guard(|| {
        if INSIDE.get() {
            return Err(Failure::invalid(
                "called by a function that it would wait for",
            ));
        }
        // SAFETY: as the caller promises.
        if let Some(messages) = unsafe { take(messages) } {
            messages.0.stop();
            while !messages.0.drain(LONG) {}
        }
        Ok(())
    })
}

/// Each wait for the functions of the caller; there is another one behind it.
const LONG: Duration = Duration::from_secs(3600);

thread_local! {
    /// Whether this thread runs a function of the caller.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the caller.
fn inside(call: impl FnOnce()) {
    let outer = INSIDE.replace(true);
    call();
    INSIDE.set(outer);
}

/// Listens at `address` (`tcp://IP:PORT`, a port of 0 for a free one; `ipc://PATH`), and writes the address that peers
/// connect to into `into`, with its length to `bytes`. With `allow_list`, a file of keys and their levels, links are
/// encrypted and only those keys come in; without it everybody does, at `level`, which no address allows that other
/// machines reach. `SW_TOO_SMALL`, with the length that is enough, before anything listens.
///
/// # Safety
/// Pointers are valid, with what they point to; `allow_list` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_messages_listen(
    messages: *const sw_messages,
    address: *const c_char,
    level: u32,
    allow_list: *const c_char,
    into: sw_buffer,
    bytes: *mut usize,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (messages, address, allow_list, into, bytes) = unsafe {
            let messages = at(messages, "messages")?;
            let address = text(address, "address")?;
            let allow_list = optional_path(allow_list, "allow_list")?;
            (
                messages,
                address,
                allow_list,
                into.slice("into")?,
                places(bytes, 1, "bytes")?,
            )
        };
        let endpoint: Endpoint = address.parse().map_err(Failure::invalid)?;
        let encrypted = allow_list.is_some();
        let key = encrypted.then(|| messages.0.public_key());
        let longest = match &endpoint {
            Endpoint::Tcp(address) => Endpoint::Tcp(SocketAddr::new(address.ip(), u16::MAX)),
            unix @ Endpoint::Unix(_) => unix.clone(),
        };
        let (need, have) = (Address::of(&longest, key).to_string().len(), into.len());
        if have < need {
            bytes.fill(need);
            let text = format_args!("the address has up to {need} bytes, the buffer {have}");
            return Err(Failure::new(ErrorCode::BufferOverflow, text));
        }
        let admission = match allow_list {
            Some(path) => Admission::Listed(AllowList::load(&path).map_err(Failure::invalid)?),
            None => Admission::Everybody(level_of(level)?),
        };
        let options = ListenOptions {
            admission,
            encrypted,
            plain_anywhere: false,
            access: Default::default(),
            beside: false,
        };
        let endpoint = messages
            .0
            .listen(&endpoint, &options)
            .map_err(Failure::invalid)?;
        let shown = Address::of(&endpoint, key).to_string();
        bytes.fill(shown.len());
        if let Some(front) = into.get_mut(..shown.len()) {
            front.copy_from_slice(shown.as_bytes());
        }
        Ok(())
    })
}

/// Opens a link to `address` and waits until it is up, for `timeout` nanoseconds (0 for 10 s). It is opened again whenever it
/// is lost, until it is given back with `sw_link_close`. `level` is what the other side may call here.
///
/// # Safety
/// Pointers are valid, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_messages_connect(
    messages: *const sw_messages,
    address: *const c_char,
    level: u32,
    timeout: u64,
    link: *mut *mut sw_link,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (messages, address) = unsafe { (at(messages, "messages")?, text(address, "address")?) };
        let address: Address = address.parse().map_err(Failure::invalid)?;
        let options = ConnectOptions {
            level: level_of(level)?,
            timeout: optional_time(timeout),
            ..ConnectOptions::default()
        };
        let connected = messages.0.connect_wait(&address, &options);
        let connected = connected.map_err(|error| Failure::new(ErrorCode::RpcFail, error))?;
        // SAFETY: as the caller promises.
        unsafe { give(link, sw_link(connected), "link") }
    })
}

/// Closes a link after writing what is queued, and gives it back; null is nothing.
///
/// # Safety
/// `messages` is valid; `link` is null or came from it, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_link_close(messages: *const sw_messages, link: *mut sw_link) {
    quietly(|| {
        // SAFETY: as the caller promises.
        if let (Ok(messages), Some(link)) = unsafe { (at(messages, "messages"), take(link)) } {
            messages.0.disconnect(link.0);
        }
    });
}

/// Sends a command of `count` parts, which has no answer: it is lost without a word when the link goes, or its queue is full.
///
/// # Safety
/// Pointers are valid for `count`, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_messages_send(
    messages: *const sw_messages,
    link: *const sw_link,
    command: *const c_char,
    count: usize,
    parts: *const sw_bytes,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (messages, link, command, parts) =
            unsafe { sending(messages, link, command, count, parts) }?;
        messages.send(link, command, parts);
        Ok(())
    })
}

/// Sends a request of `count` parts and waits for its answer, for `timeout` nanoseconds (0 for the time of the message
/// layer). The answer is given back with `sw_answer_free`.
///
/// # Safety
/// Pointers are valid for `count`, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_messages_request(
    messages: *const sw_messages,
    link: *const sw_link,
    command: *const c_char,
    count: usize,
    parts: *const sw_bytes,
    timeout: u64,
    answer: *mut *mut sw_answer,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (messages, link, command, parts) =
            unsafe { sending(messages, link, command, count, parts) }?;
        let answered = messages.request_wait(link, command, parts, &request_options(timeout));
        // SAFETY: as the caller promises.
        unsafe { give(answer, sw_answer(answered.map_err(unanswered)?), "answer") }
    })
}

/// Sends a request of `count` parts and returns; `answered` is called exactly once, unless this fails.
///
/// # Safety
/// Pointers are valid for `count`, with what they point to; `answered` may be called with `context` on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_messages_request_start(
    messages: *const sw_messages,
    link: *const sw_link,
    command: *const c_char,
    count: usize,
    parts: *const sw_bytes,
    timeout: u64,
    answered: sw_answered,
    context: *mut c_void,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (messages, link, command, parts) =
            unsafe { sending(messages, link, command, count, parts) }?;
        let answered = answered.ok_or_else(|| Failure::invalid("answered is null"))?;
        let context = Context(context);
        let told = move |outcome: Result<Answer, RequestError>| {
            let context = context;
            let (status, answer) = match outcome {
                Ok(answer) => (SW_OK, Box::into_raw(Box::new(sw_answer(answer)))),
                Err(error) => (unanswered(error).tell(), std::ptr::null_mut()),
            };
            // SAFETY: as the caller promises.
            inside(|| unsafe { answered(context.0, status, answer) });
        };
        messages.request(link, command, parts, &request_options(timeout), told);
        Ok(())
    })
}

/// How many parts an answer has; 0 for null.
///
/// # Safety
/// `answer` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_answer_count(answer: *const sw_answer) -> usize {
    // SAFETY: as the caller promises.
    unsafe { at(answer, "answer") }.map_or(0, |answer| answer.0.parts().len())
}

/// A part of an answer, as long as it is not given back; none beyond its end.
///
/// # Safety
/// `answer` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_answer_part(answer: *const sw_answer, index: usize) -> sw_bytes {
    // SAFETY: as the caller promises.
    let part = unsafe { at(answer, "answer") }
        .ok()
        .and_then(|answer| answer.0.part(index));
    sw_bytes::of(part.unwrap_or_default())
}

/// Gives an answer back; null is nothing.
///
/// # Safety
/// `answer` is null or one of ours, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_answer_free(answer: *mut sw_answer) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(answer) }));
}

/// How many parts a command has; 0 for null.
///
/// # Safety
/// `call` is null, or that of the handler that runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_call_count(call: *const sw_call) -> usize {
    // SAFETY: as the caller promises.
    unsafe { called(call) }.map_or(0, |call| call.parts().len())
}

/// A part of a command, while its handler runs; none beyond its end.
///
/// # Safety
/// `call` is null, or that of the handler that runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_call_part(call: *const sw_call, index: usize) -> sw_bytes {
    // SAFETY: as the caller promises.
    let part = unsafe { called(call) }
        .ok()
        .and_then(|call| call.part(index));
    sw_bytes::of(part.unwrap_or_default())
}

/// Answers a request with `count` parts.
///
/// # Safety
/// `call` is that of the handler that runs; `parts` are valid for `count`, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_call_reply(
    call: *const sw_call,
    count: usize,
    parts: *const sw_bytes,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (call, parts) = unsafe { (called(call)?, slices(parts, count, "parts")?) };
        call.reply(parts).map_err(Failure::invalid)
    })
}

/// Says that a request failed, to a peer that knows the word.
///
/// # Safety
/// `call` is that of the handler that runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_call_fail(call: *const sw_call) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let call = unsafe { called(call) }?;
        call.refuse(Refusal::Failed).map_err(Failure::invalid)
    })
}

/// Takes the answer to a request over, to be given with `sw_deferred_reply`.
///
/// # Safety
/// `call` is that of the handler that runs; `deferred` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_call_defer(
    call: *const sw_call,
    deferred: *mut *mut sw_deferred,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let taken = unsafe { called(call) }?.defer().map_err(Failure::invalid)?;
        // SAFETY: as the caller promises.
        unsafe { give(deferred, sw_deferred(taken), "deferred") }
    })
}

/// Sends a command of `count` parts on the link that this one came on.
///
/// # Safety
/// `call` is that of the handler that runs; the other pointers are valid for `count`, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_call_send_back(
    call: *const sw_call,
    command: *const c_char,
    count: usize,
    parts: *const sw_bytes,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (call, command, parts) = unsafe {
            let command = text(command, "command")?;
            (called(call)?, command, slices(parts, count, "parts")?)
        };
        call.send_back(command, parts);
        Ok(())
    })
}

/// Answers with `count` parts, and gives the permission back. With null parts that are some, it is given back and the peer is
/// told that the request failed.
///
/// # Safety
/// `deferred` came from `sw_call_defer` and is not used again; `parts` are valid for `count`, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_deferred_reply(
    deferred: *mut sw_deferred,
    count: usize,
    parts: *const sw_bytes,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let deferred = unsafe { take(deferred) };
        let deferred = deferred.ok_or_else(|| Failure::invalid("deferred is null"))?;
        // SAFETY: as the caller promises.
        let parts = unsafe { slices(parts, count, "parts") }?;
        deferred.0.reply(parts);
        Ok(())
    })
}

/// Tells the peer that its request failed, and gives the permission back; null is nothing.
///
/// # Safety
/// `deferred` is null or came from `sw_call_defer`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_deferred_fail(deferred: *mut sw_deferred) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(deferred) }));
}

unsafe fn building<'a>(builder: *mut sw_messages_builder) -> Result<&'a mut Builder, Failure> {
    // SAFETY: as the caller promises.
    unsafe { at(builder, "builder") }?;
    // SAFETY: not null, and used by this call alone, as the caller promises.
    let builder = unsafe { &mut *builder };
    builder
        .0
        .as_mut()
        .ok_or_else(|| Failure::invalid("builder was started"))
}

unsafe fn called<'a>(call: *const sw_call) -> Result<&'a Call<'a>, Failure> {
    // SAFETY: it is the one that the handler was called with.
    unsafe { at(call.cast::<Call<'a>>(), "call") }
}

/// By what, to whom, the command and its parts.
type Sending<'a> = (&'a Mq, ConnectionId, &'a str, Vec<&'a [u8]>);

/// What every message is sent with.
unsafe fn sending<'a>(
    messages: *const sw_messages,
    link: *const sw_link,
    command: *const c_char,
    count: usize,
    parts: *const sw_bytes,
) -> Result<Sending<'a>, Failure> {
    // SAFETY: as the caller promises.
    unsafe {
        let messages: &'a sw_messages = at(messages, "messages")?;
        let (link, command) = (at(link, "link")?.0, text(command, "command")?);
        Ok((&messages.0, link, command, slices(parts, count, "parts")?))
    }
}

fn request_options(timeout: u64) -> RequestOptions {
    RequestOptions {
        timeout: optional_time(timeout),
        ..RequestOptions::default()
    }
}

fn level_of(level: u32) -> Result<Level, Failure> {
    match level {
        SW_LEVEL_NONE => Ok(Level::None),
        SW_LEVEL_BASIC => Ok(Level::Basic),
        SW_LEVEL_ADMIN => Ok(Level::Admin),
        _ => Err(Failure::invalid(format_args!(
            "level {level} is none of SW_LEVEL_"
        ))),
    }
}

fn unanswered(error: RequestError) -> Failure {
    let code = match &error {
        RequestError::Timeout => ErrorCode::DeadlinePassed,
        RequestError::Gone => ErrorCode::RpcFail,
        RequestError::Full => ErrorCode::NoAvailableHandle,
        RequestError::Refused(Refusal::Busy) => ErrorCode::NoAvailableHandle,
        RequestError::Refused(Refusal::Forbidden | Refusal::ForbiddenNode) => {
            ErrorCode::RoleNotPermitted
        }
        RequestError::Refused(Refusal::UnknownCommand) => ErrorCode::NotSupported,
        RequestError::Refused(_) => ErrorCode::UnavailableInCurrentStatus,
        RequestError::InsideLoop => ErrorCode::InvalidParams,
    };
    Failure::new(code, error)
}
