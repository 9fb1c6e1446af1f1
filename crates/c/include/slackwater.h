/* Slackwater: the C interface. Made from the crate slackwater-c. */

#ifndef SLACKWATER_H
#define SLACKWATER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// Connected, nothing more.
#define SW_LEVEL_NONE 0

// An ordinary client.
#define SW_LEVEL_BASIC 1

// An operator.
#define SW_LEVEL_ADMIN 2

// The call did what was asked.
#define SW_OK 0

// The other side cannot be reached or does not answer.
#define SW_UNREACHABLE -900

// An argument is wrong; the text says which.
#define SW_INVALID -600

// There is no such object.
#define SW_NOT_FOUND -704

// There is an object of that key already.
#define SW_EXISTS -705

// The caller's buffer is too small.
#define SW_TOO_SMALL -10

// There is no space, and none came free in time; or a queue is full.
#define SW_FULL -200

// Bytes could not be moved.
#define SW_TRANSFER_FAILED -800

// The caller's key has not the role, or the capability not the right, that this needs.
#define SW_NOT_PERMITTED -2007

// The deadline passed first.
#define SW_TIMED_OUT -2002

// The operation was cancelled.
#define SW_CANCELLED -2005

// The peer could not do what it was asked.
#define SW_PEER_FAILED -1010

// What was started is closed.
#define SW_CLOSED -2003

// A defect of the library; its text says more.
#define SW_DEFECT -1

// Bytes of a capability.
#define SW_CAPABILITY_BYTES 88

// Peers may read.
#define SW_READ 1

// Peers may write.
#define SW_WRITE 2

// A time in nanoseconds without an end, for waits.
#define SW_FOREVER UINT64_MAX

// The parts of a reply.
typedef struct sw_answer sw_answer;

// Transfers that were submitted together.
typedef struct sw_batch sw_batch;

// A command as its handler sees it: valid only while the handler runs.
typedef struct sw_call sw_call;

// Ends calls from another thread.
typedef struct sw_cancel sw_cancel;

// A client of a store that another process serves. Any thread may use it; none may while it is closed.
typedef struct sw_client sw_client;

// The end of work in several parts: each is reported by the thread that does it, and all waiters wake with the last. Waiters stand still:
// they spin no longer than pays and then sleep.
typedef struct sw_completion sw_completion;

// The permission to answer a request later, from any thread.
typedef struct sw_deferred sw_deferred;

// Moves bytes between registered memory of this process and of others. Any thread may use it; none may while it is closed.
typedef struct sw_engine sw_engine;

// Keys in byte order.
typedef struct sw_keys sw_keys;

// A link to a peer.
typedef struct sw_link sw_link;

// A message layer. Any thread may use it; none may while it is stopped.
typedef struct sw_messages sw_messages;

// A message layer that is being made: what peers may call here is said before it starts.
typedef struct sw_messages_builder sw_messages_builder;

// Notices that peers sent.
typedef struct sw_notices sw_notices;

// Threads for short bursts of work: they watch for a learned time after each and then sleep.
typedef struct sw_pool sw_pool;

// A task in the background.
typedef struct sw_task sw_task;

// A value that the library read into memory of its own.
typedef struct sw_value sw_value;

// How a call ended: `SW_OK`, or the negative number of an error code.
typedef int32_t sw_status;

// Called once when a batch is over, on any thread; it must not block.
typedef void (*sw_ended)(void *context);

// What a message layer is started with. All zero is one without keys.
typedef struct sw_messages_options {
  // The file of its secret key; null for one that is made up.
  const char *key_file;
  // Event loops, 256 at most; 0 for one.
  uint32_t loops;
  // How long a request may take that does not say, in nanoseconds; 0 for 15 s.
  uint64_t request_timeout;
} sw_messages_options;

// Carries a command out, on a worker; it may block, but not for the stop of its message layer, and must not throw.
typedef void (*sw_handler)(void *context, const struct sw_call *call);

// Memory that a call writes: nothing else may touch it while the call runs.
typedef struct sw_buffer {
  // The first byte; may be null when there are none.
  void *data;
  // How many.
  size_t bytes;
} sw_buffer;

// Bytes that a call reads: they must not change while it runs.
typedef struct sw_bytes {
  // The first byte; may be null when there are none.
  const void *data;
  // How many.
  size_t bytes;
} sw_bytes;

// Gets the answer of a request once, on any thread, also inside `sw_messages_stop`; it must not block. `SW_OK` and the
// answer, which is the callee's to give back with `sw_answer_free`; or why there is none, and null.
typedef void (*sw_answered)(void *context, sw_status status, struct sw_answer *answer);

// How to reach a server. All zero is a server of this machine at its ordinary port.
typedef struct sw_connect_options {
  // Where it is: `tcp://HOST:PORT`, or `curve://HOST:PORT/KEY` for one with keys; null for `tcp://127.0.0.1:50051`.
  const char *address;
  // The file of our secret key, for a server with keys; null for none.
  const char *key_file;
  // How long connecting may take, in nanoseconds; 0 for 2 s.
  uint64_t connect_timeout;
  // How long a call may take that does not say, in nanoseconds; 0 for 10 s.
  uint64_t timeout;
  // Nothing but TCP, not even memory that is shared with a server of this machine.
  bool force_tcp;
} sw_connect_options;

// How a call is made. All zero is the default tenant and the time of the connection.
typedef struct sw_call_options {
  // The tenant of the keys; null for the default tenant.
  const char *tenant;
  // How long it may take, in nanoseconds; 0 for the time of the connection.
  uint64_t timeout;
  // Ends it from another thread; null for nothing.
  const struct sw_cancel *cancel;
} sw_call_options;

// How values are put. All zero is an ordinary put.
typedef struct sw_put_options {
  // How the call is made.
  struct sw_call_options call;
  // Replace the value of a key that has one; without it such a put is `SW_EXISTS`.
  bool upsert;
  // Return only when the value is on SSD.
  bool durable;
  // Never evict the value.
  bool pinned;
  // Return only when each of the copies is in memory of another host; refused where there are fewer hosts.
  bool replicated;
  // Copies in memory, on different nodes; 0 counts as 1.
  uint32_t replicas;
  // How long to wait for space, in nanoseconds; 0 for the server's time.
  uint64_t wait;
} sw_put_options;

// What is known of an object.
typedef struct sw_stat {
  // Its length.
  uint64_t bytes;
  // The version of the put that wrote it.
  uint64_t version;
  // The checksum of its bytes.
  uint64_t checksum;
  // How long readers hold it yet, in nanoseconds.
  uint64_t lease;
  // Its replicas in memory and on SSD.
  uint32_t replicas;
} sw_stat;

// What an engine is started with. All zero is one that only initiates.
typedef struct sw_engine_options {
  // Its name; null for `engine`.
  const char *name;
  // Where peers reach it, `IP:PORT` with port 0 for a free one; null for an engine that only initiates. An address that
  // other machines reach needs a key.
  const char *listen;
  // The file of its secret key: every connection is encrypted then; null for none.
  const char *key_file;
  // The file of the keys that may connect; null for none. Needs `key_file`.
  const char *allow_list;
  // Event loops; 0 for the default.
  uint32_t io_threads;
  // Nothing but TCP, not even within this machine.
  bool force_tcp;
} sw_engine_options;

// Registered memory of this process.
typedef uint64_t sw_region;

// The right to reach a range of a peer's region. It means nothing to anyone but the engine that granted it, so it may be
// sent as it is to whom it is meant for, and to nobody else.
typedef struct sw_capability {
  // Opaque.
  uint8_t data[SW_CAPABILITY_BYTES];
} sw_capability;

// An engine of another process.
typedef uint64_t sw_peer;

// One transfer: between a range of our region and as many bytes of a peer's.
typedef struct sw_transfer {
  // Whether the peer's bytes are written; they are read otherwise.
  bool write;
  // Our region.
  sw_region region;
  // Offset of its first byte in our region, in bytes.
  uint64_t offset;
  // How many bytes.
  uint64_t bytes;
  // The engine that has the other range.
  sw_peer peer;
  // Offset of its first byte in the region of the peer, in bytes.
  uint64_t peer_offset;
  // What its owner granted.
  struct sw_capability capability;
} sw_transfer;

// Does the indices from `begin` to before `end`. Called on several threads at once; it must not throw.
typedef void (*sw_body)(void *context, size_t begin, size_t end);

// Does a task. Called on any thread; it must not throw.
typedef void (*sw_work)(void *context);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes one of `parts` parts; one without parts is over at once.
//
// # Safety
// `completion` is valid for a write.
sw_status sw_completion_new(uint32_t parts, struct sw_completion **completion);

// Makes another handle to the same one, for a thread that may end its part after the waiters have given up.
//
// # Safety
// Pointers are valid, with what they point to.
sw_status sw_completion_share(const struct sw_completion *completion, struct sw_completion **other);

// Says that one part is over: done for `SW_OK`, failed for another status. The first failure is what waiters get. With the
// last part the handle may be given back by a waiter at once.
//
// # Safety
// `completion` is valid.
sw_status sw_completion_end(const struct sw_completion *completion,
                            sw_status status);

// Waits until all parts are over: `SW_OK`, or the first failure. `SW_TIMED_OUT` after `timeout` nanoseconds and
// `SW_CANCELLED` after `sw_completion_cancel` mean that parts may still be under way.
//
// # Safety
// `completion` is valid.
sw_status sw_completion_wait(const struct sw_completion *completion, uint64_t timeout);

// Ends present and future waits, while parts go on.
//
// # Safety
// `completion` is null or valid.
void sw_completion_cancel(const struct sw_completion *completion);

// Whether all parts are over; false for null.
//
// # Safety
// `completion` is null or valid.
bool sw_completion_is_done(const struct sw_completion *completion);

// Has a function called once when all parts are over, or now if they are; waiters may return before it does. A completion
// has one at most.
//
// # Safety
// `completion` is valid; `call` may be called with `context` on any thread.
sw_status sw_completion_on_end(const struct sw_completion *completion,
                               sw_ended call,
                               void *context);

// Gives a handle back; null is nothing.
//
// # Safety
// `completion` is null or came from `sw_completion_new` or `sw_completion_share`, and is not used again.
void sw_completion_free(struct sw_completion *completion);

// Begins a message layer. It is given back by `sw_messages_start` or `sw_messages_builder_free`.
//
// # Safety
// `options` is null or valid, with its texts; `builder` is valid for a write.
sw_status sw_messages_new(const struct sw_messages_options *options, struct sw_messages_builder **builder);

// Adds a category of commands: `level` is what a caller needs, `queue` how many of its commands may wait for a worker (0 for
// 200); further ones are refused.
//
// # Safety
// `builder` is valid and used by this call alone; `name` is a text.
sw_status sw_messages_category(struct sw_messages_builder *builder,
                               const char *name,
                               uint32_t level,
                               uint32_t queue);

// Adds `CATEGORY.COMMAND`; with `is_request` it is answered.
//
// # Safety
// `builder` is valid and used by this call alone; `name` is a text; `handler` may be called with `context` on any thread,
// and on several at once, until the message layer is stopped.
sw_status sw_messages_command(struct sw_messages_builder *builder,
                              const char *name,
                              bool is_request,
                              sw_handler handler,
                              void *context);

// Starts what was begun, which is given back by this, whether it starts or not.
//
// # Safety
// `builder` came from `sw_messages_new` and is not used again; `messages` is valid for a write.
sw_status sw_messages_start(struct sw_messages_builder *builder, struct sw_messages **messages);

// Gives up what was begun; null is nothing.
//
// # Safety
// `builder` is null or came from `sw_messages_new`, and is not used again.
void sw_messages_builder_free(struct sw_messages_builder *builder);

// Stops a message layer: what is queued is dropped, links close after writing what they hold, and functions of the caller
// that run are waited for: when this succeeds none runs or will. Null is nothing. `SW_INVALID` from inside such a function:
// it would wait for itself.
//
// # Safety
// `messages` is null or came from `sw_messages_start`, and is not used again.
sw_status sw_messages_stop(struct sw_messages *messages);

// Listens at `address` (`tcp://IP:PORT`, a port of 0 for a free one; `ipc://PATH`), and writes the address that peers
// connect to into `into`, with its length to `bytes`. With `allow_list`, a file of keys and their levels, links are
// encrypted and only those keys come in; without it everybody does, at `level`, which no address allows that other
// machines reach. `SW_TOO_SMALL`, with the length that is enough, before anything listens.
//
// # Safety
// Pointers are valid, with what they point to; `allow_list` may be null.
sw_status sw_messages_listen(const struct sw_messages *messages,
                             const char *address,
                             uint32_t level,
                             const char *allow_list,
                             struct sw_buffer into,
                             size_t *bytes);

// Opens a link to `address` and waits until it is up, for `timeout` nanoseconds (0 for 10 s). It is opened again whenever it
// is lost, until it is given back with `sw_link_close`. `level` is what the other side may call here.
//
// # Safety
// Pointers are valid, with what they point to.
sw_status sw_messages_connect(const struct sw_messages *messages,
                              const char *address,
                              uint32_t level,
                              uint64_t timeout,
                              struct sw_link **link);

// Closes a link after writing what is queued, and gives it back; null is nothing.
//
// # Safety
// `messages` is valid; `link` is null or came from it, and is not used again.
void sw_link_close(const struct sw_messages *messages, struct sw_link *link);

// Sends a command of `count` parts, which has no answer: it is lost without a word when the link goes, or its queue is full.
//
// # Safety
// Pointers are valid for `count`, with what they point to.
sw_status sw_messages_send(const struct sw_messages *messages,
                           const struct sw_link *link,
                           const char *command,
                           size_t count,
                           const struct sw_bytes *parts);

// Sends a request of `count` parts and waits for its answer, for `timeout` nanoseconds (0 for the time of the message
// layer). The answer is given back with `sw_answer_free`.
//
// # Safety
// Pointers are valid for `count`, with what they point to.
sw_status sw_messages_request(const struct sw_messages *messages,
                              const struct sw_link *link,
                              const char *command,
                              size_t count,
                              const struct sw_bytes *parts,
                              uint64_t timeout,
                              struct sw_answer **answer);

// Sends a request of `count` parts and returns; `answered` is called exactly once, unless this fails.
//
// # Safety
// Pointers are valid for `count`, with what they point to; `answered` may be called with `context` on any thread.
sw_status sw_messages_request_start(const struct sw_messages *messages,
                                    const struct sw_link *link,
                                    const char *command,
                                    size_t count,
                                    const struct sw_bytes *parts,
                                    uint64_t timeout,
                                    sw_answered answered,
                                    void *context);

// How many parts an answer has; 0 for null.
//
// # Safety
// `answer` is null or valid.
size_t sw_answer_count(const struct sw_answer *answer);

// A part of an answer, as long as it is not given back; none beyond its end.
//
// # Safety
// `answer` is null or valid.
struct sw_bytes sw_answer_part(const struct sw_answer *answer, size_t index);

// Gives an answer back; null is nothing.
//
// # Safety
// `answer` is null or one of ours, and is not used again.
void sw_answer_free(struct sw_answer *answer);

// How many parts a command has; 0 for null.
//
// # Safety
// `call` is null, or that of the handler that runs.
size_t sw_call_count(const struct sw_call *call);

// A part of a command, while its handler runs; none beyond its end.
//
// # Safety
// `call` is null, or that of the handler that runs.
struct sw_bytes sw_call_part(const struct sw_call *call, size_t index);

// Answers a request with `count` parts.
//
// # Safety
// `call` is that of the handler that runs; `parts` are valid for `count`, with what they point to.
sw_status sw_call_reply(const struct sw_call *call, size_t count, const struct sw_bytes *parts);

// Says that a request failed, to a peer that knows the word.
//
// # Safety
// `call` is that of the handler that runs.
sw_status sw_call_fail(const struct sw_call *call);

// Takes the answer to a request over, to be given with `sw_deferred_reply`.
//
// # Safety
// `call` is that of the handler that runs; `deferred` is valid for a write.
sw_status sw_call_defer(const struct sw_call *call, struct sw_deferred **deferred);

// Sends a command of `count` parts on the link that this one came on.
//
// # Safety
// `call` is that of the handler that runs; the other pointers are valid for `count`, with what they point to.
sw_status sw_call_send_back(const struct sw_call *call,
                            const char *command,
                            size_t count,
                            const struct sw_bytes *parts);

// Answers with `count` parts, and gives the permission back. With null parts that are some, it is given back and the peer is
// told that the request failed.
//
// # Safety
// `deferred` came from `sw_call_defer` and is not used again; `parts` are valid for `count`, with what they point to.
sw_status sw_deferred_reply(struct sw_deferred *deferred,
                            size_t count,
                            const struct sw_bytes *parts);

// Tells the peer that its request failed, and gives the permission back; null is nothing.
//
// # Safety
// `deferred` is null or came from `sw_call_defer`, and is not used again.
void sw_deferred_fail(struct sw_deferred *deferred);

// The text of the last failure in this thread; empty when there was none. It stays until the next failure in this thread.
const char *sw_last_error(void);

// The name of a status, as `OBJECT_NOT_FOUND`; `UNKNOWN` for a number that is none.
const char *sw_status_name(sw_status status);

// The version of the library, as `1.2.3`.
const char *sw_version(void);

// Connects to a server.
//
// # Safety
// `options` is null or valid, with its texts; `client` is valid for a write.
sw_status sw_client_connect(const struct sw_connect_options *options, struct sw_client **client);

// Closes a client; null is nothing. No call of it may be under way.
//
// # Safety
// `client` is null or came from `sw_client_connect`, and is not used again.
void sw_client_close(struct sw_client *client);

// Puts one value. Returns when it is visible, and when it was asked to be durable, on SSD.
//
// # Safety
// Pointers are valid, with what they point to; `options` may be null.
sw_status sw_client_put(const struct sw_client *client,
                        struct sw_bytes key,
                        struct sw_bytes value,
                        const struct sw_put_options *options);

// Puts `count` values. `results` gets a status each: one that fails does not touch its neighbours. The call fails as a
// whole only for arguments that are wrong.
//
// # Safety
// Pointers are valid for `count`, with what they point to; `options` may be null.
sw_status sw_client_put_batch(const struct sw_client *client,
                              size_t count,
                              const struct sw_bytes *keys,
                              const struct sw_bytes *values,
                              const struct sw_put_options *options,
                              sw_status *results);

// Reads one value into `into` and says its length. `SW_NOT_FOUND` when there is none; `SW_TOO_SMALL`, with the length
// that is needed, when it does not fit. The other bytes of `into` are of no meaning afterwards.
//
// # Safety
// Pointers are valid, with what they point to; `options` may be null.
sw_status sw_client_get(const struct sw_client *client,
                        struct sw_bytes key,
                        struct sw_buffer into,
                        const struct sw_call_options *options,
                        size_t *bytes);

// Reads `count` values into the caller's buffers, which must not overlap. `results` gets the length or the negative
// status of each. The call fails as a whole only for arguments that are wrong.
//
// # Safety
// Pointers are valid for `count`, with what they point to; `options` may be null.
sw_status sw_client_get_batch(const struct sw_client *client,
                              size_t count,
                              const struct sw_bytes *keys,
                              const struct sw_buffer *into,
                              const struct sw_call_options *options,
                              int64_t *results);

// Reads one value into memory of the library, to be given back with `sw_value_free`. `SW_NOT_FOUND` when there is none.
//
// # Safety
// Pointers are valid, with what they point to; `options` may be null.
sw_status sw_client_get_value(const struct sw_client *client,
                              struct sw_bytes key,
                              const struct sw_call_options *options,
                              struct sw_value **value);

// The bytes of a value, as long as it is not given back; none for null.
//
// # Safety
// `value` is null or came from `sw_client_get_value`.
struct sw_bytes sw_value_bytes(const struct sw_value *value);

// Gives a value back; null is nothing.
//
// # Safety
// `value` is null or came from `sw_client_get_value`, and is not used again.
void sw_value_free(struct sw_value *value);

// Says for each of `count` keys whether there is an object.
//
// # Safety
// Pointers are valid for `count`, with what they point to; `options` may be null.
sw_status sw_client_exists(const struct sw_client *client,
                           size_t count,
                           const struct sw_bytes *keys,
                           const struct sw_call_options *options,
                           bool *found);

// Removes `count` objects, with `force` also those that readers hold. `results` gets a status each. When it returns, no
// crash of the server brings them back. The call fails as a whole only for arguments that are wrong.
//
// # Safety
// Pointers are valid for `count`, with what they point to; `options` may be null.
sw_status sw_client_remove(const struct sw_client *client,
                           size_t count,
                           const struct sw_bytes *keys,
                           bool force,
                           const struct sw_call_options *options,
                           sw_status *results);

// Tells what is known of one object, which counts neither as a read nor as a lease. `SW_NOT_FOUND` when there is none.
//
// # Safety
// Pointers are valid, with what they point to; `options` may be null.
sw_status sw_client_stat(const struct sw_client *client,
                         struct sw_bytes key,
                         const struct sw_call_options *options,
                         struct sw_stat *stat);

// Lists up to `limit` keys, at least one, in byte order, those after `after` (null for the first) in which the regular expression
// `pattern` is found (null for all). The list is given back with `sw_keys_free`.
//
// # Safety
// Pointers are valid, with what they point to; `pattern`, `after` and `options` may be null.
sw_status sw_client_list(const struct sw_client *client,
                         const char *pattern,
                         const struct sw_bytes *after,
                         size_t limit,
                         const struct sw_call_options *options,
                         struct sw_keys **keys);

// How many keys are in a list; 0 for null.
//
// # Safety
// `keys` is null or came from `sw_client_list`.
size_t sw_keys_count(const struct sw_keys *keys);

// Whether there are more keys behind those of a list.
//
// # Safety
// `keys` is null or came from `sw_client_list`.
bool sw_keys_more(const struct sw_keys *keys);

// A key of a list, as long as the list is not given back; none beyond its end.
//
// # Safety
// `keys` is null or came from `sw_client_list`.
struct sw_bytes sw_keys_at(const struct sw_keys *keys, size_t index);

// Gives a list back; null is nothing.
//
// # Safety
// `keys` is null or came from `sw_client_list`, and is not used again.
void sw_keys_free(struct sw_keys *keys);

// Makes something that cancels the calls which are given it.
//
// # Safety
// `cancel` is valid for a write.
sw_status sw_cancel_new(struct sw_cancel **cancel);

// Cancels the calls that were given it, now and later. They return soon, when nothing touches their buffers any more.
//
// # Safety
// `cancel` is null or came from `sw_cancel_new`.
void sw_cancel_all(const struct sw_cancel *cancel);

// Gives it back; null is nothing. No call that was given it may be under way.
//
// # Safety
// `cancel` is null or came from `sw_cancel_new`, and is not used again.
void sw_cancel_free(struct sw_cancel *cancel);

// Starts an engine.
//
// # Safety
// `options` is null or valid, with its texts; `engine` is valid for a write.
sw_status sw_engine_start(const struct sw_engine_options *options, struct sw_engine **engine);

// Ends all transfers of an engine and closes it; null is nothing. No call of it may be under way. When it returns, nothing
// touches the memory of its regions any more.
//
// # Safety
// `engine` is null or came from `sw_engine_start`, and is not used again.
void sw_engine_close(struct sw_engine *engine);

// Writes the description that others open this engine by, a line of text without a zero byte, into `into` and says its
// length. `SW_TOO_SMALL`, with the length that is needed, when it does not fit.
//
// # Safety
// Pointers are valid, with what they point to.
sw_status sw_engine_segment(const struct sw_engine *engine, struct sw_buffer into, size_t *bytes);

// Registers memory of the caller, which must stay until it is unregistered or the engine is closed. `rights` is the most
// that peers may ever be granted: `SW_READ`, `SW_WRITE`, or both.
//
// # Safety
// `memory` is valid for reads and writes until then, and the caller expects its bytes to change when peers may write.
sw_status sw_engine_register(const struct sw_engine *engine,
                             struct sw_buffer memory,
                             uint32_t rights,
                             sw_region *region);

// Registers fresh zeroed memory of the library, which processes of this machine reach without a copy by the kernel. It
// goes when it is unregistered or the engine is closed.
//
// # Safety
// Pointers are valid, with what they point to.
sw_status sw_engine_allocate(const struct sw_engine *engine,
                             size_t bytes,
                             uint32_t rights,
                             sw_region *region,
                             void **memory);

// Unregisters a region: peers are refused from now on, and when this succeeds nothing touches its memory any more. After
// `SW_TIMED_OUT` accesses are still under way, and another call goes on.
//
// # Safety
// `engine` is valid.
sw_status sw_engine_unregister(const struct sw_engine *engine,
                               sw_region region,
                               uint64_t timeout);

// Grants a range of a region to the bearer of the capability: `rights` as in `sw_engine_register`, for `ttl` nanoseconds,
// or until the region goes when that is `SW_FOREVER`.
//
// # Safety
// Pointers are valid, with what they point to.
sw_status sw_engine_grant(const struct sw_engine *engine,
                          sw_region region,
                          uint64_t offset,
                          uint64_t bytes,
                          uint32_t rights,
                          uint64_t ttl,
                          struct sw_capability *capability);

// Opens an engine by its description; nothing is connected yet. The same description opened again is the same peer.
//
// # Safety
// Pointers are valid, with what they point to.
sw_status sw_engine_open(const struct sw_engine *engine, struct sw_bytes segment, sw_peer *peer);

// Forgets a peer. Transfers under way go on.
//
// # Safety
// `engine` is valid.
sw_status sw_engine_forget(const struct sw_engine *engine, sw_peer peer);

// Finds out whether a peer answers, within `timeout` nanoseconds.
//
// # Safety
// `engine` is valid.
sw_status sw_engine_probe(const struct sw_engine *engine, sw_peer peer, uint64_t timeout);

// Reads a peer's bytes into memory that need not be registered, while the caller waits. On failure the contents of the
// memory are of no meaning.
//
// # Safety
// Pointers are valid, with what they point to.
sw_status sw_engine_read(const struct sw_engine *engine,
                         sw_peer peer,
                         uint64_t offset,
                         const struct sw_capability *capability,
                         struct sw_buffer into,
                         uint64_t timeout);

// Writes a peer's bytes from memory that need not be registered, while the caller waits. On failure the contents of the
// peer's memory are of no meaning.
//
// # Safety
// Pointers are valid, with what they point to.
sw_status sw_engine_write(const struct sw_engine *engine,
                          sw_peer peer,
                          uint64_t offset,
                          const struct sw_capability *capability,
                          struct sw_bytes from,
                          uint64_t timeout);

// Submits `count` transfers, which may take `timeout` nanoseconds, and returns. The batch is given back with
// `sw_batch_free`.
//
// # Safety
// Pointers are valid for `count`, with what they point to. The regions' memory stays until the batch is over.
sw_status sw_engine_submit(const struct sw_engine *engine,
                           size_t count,
                           const struct sw_transfer *transfers,
                           uint64_t timeout,
                           struct sw_batch **batch);

// Waits until every transfer of a batch has ended. After `timeout` nanoseconds it cancels the batch and waits until its
// memory is released, so that nothing touches it when this returns, however it ends.
//
// # Safety
// `batch` is valid.
sw_status sw_batch_wait(const struct sw_batch *batch, uint64_t timeout);

// Whether every transfer of a batch has ended; false for null.
//
// # Safety
// `batch` is null or valid.
bool sw_batch_is_done(const struct sw_batch *batch);

// The outcome of one transfer of a batch that is over, and the bytes that are known to have arrived. `bytes` may be null.
//
// # Safety
// Pointers are valid, with what they point to.
sw_status sw_batch_outcome(const struct sw_batch *batch,
                           size_t index,
                           uint64_t *bytes);

// Asks for the end of a batch, which comes soon: `sw_batch_wait` returns then.
//
// # Safety
// `batch` is null or valid.
void sw_batch_cancel(const struct sw_batch *batch);

// Has a function called once when a batch is over, or now if it is: to set an eventfd, for one. Waiters may return before it
// does. A batch has one at most.
//
// # Safety
// `batch` is valid; `call` may be called with `context` on any thread.
sw_status sw_batch_on_end(const struct sw_batch *batch,
                          sw_ended call,
                          void *context);

// Gives a batch back; null is nothing. Transfers that are still under way are cancelled and waited for, a function of
// `sw_batch_on_end` is not.
//
// # Safety
// `batch` is null or came from `sw_engine_submit`, and is not used again.
void sw_batch_free(struct sw_batch *batch);

// Sends a notice to a peer, and returns when the peer has it.
//
// # Safety
// Pointers are valid, with what they point to.
sw_status sw_engine_notify(const struct sw_engine *engine,
                           sw_peer peer,
                           const char *name,
                           struct sw_bytes content,
                           uint64_t timeout);

// Takes the notices that peers sent; waits for the first for `timeout` nanoseconds. They are given back with
// `sw_notices_free`.
//
// # Safety
// Pointers are valid, with what they point to.
sw_status sw_engine_notices(const struct sw_engine *engine, uint64_t timeout, struct sw_notices **notices);

// How many notices there are; 0 for null.
//
// # Safety
// `notices` is null or came from `sw_engine_notices`.
size_t sw_notices_count(const struct sw_notices *notices);

// The name and the content of a notice, as long as they are not given back; none beyond their end. Either may be null.
//
// # Safety
// Pointers are null or valid.
void sw_notices_at(const struct sw_notices *notices, size_t index, struct sw_bytes *name, struct sw_bytes *content);

// Gives notices back; null is nothing.
//
// # Safety
// `notices` is null or came from `sw_engine_notices`, and is not used again.
void sw_notices_free(struct sw_notices *notices);

// Starts a pool of `threads` threads, the caller of a job among them; 0 for as many as there are usable CPUs.
//
// # Safety
// `pool` is valid for a write.
sw_status sw_pool_start(uint32_t threads, struct sw_pool **pool);

// Waits for what runs, and ends the threads; what is queued is dropped. Null is nothing.
//
// # Safety
// `pool` is null or came from `sw_pool_start`, and is not used again.
void sw_pool_stop(struct sw_pool *pool);

// The threads that take part in a job, its caller among them; 0 for null.
//
// # Safety
// `pool` is null or valid.
size_t sw_pool_threads(const struct sw_pool *pool);

// Does every index below `count` once, in ranges, on as many threads as are free, and returns when all are done.
//
// # Safety
// `pool` is valid; `body` may be called with `context` on several threads at once.
sw_status sw_pool_run(const struct sw_pool *pool, size_t count, sw_body body, void *context);

// Queues a task. `task` may be null when nobody waits for it; else it is given back with `sw_task_free`.
//
// # Safety
// `pool` is valid, `task` is null or valid for a write; `work` may be called with `context` on any thread.
sw_status sw_pool_submit(const struct sw_pool *pool, sw_work work, void *context, struct sw_task **task);

// Waits until a task is done, and does it in this thread, to its end, when no other has begun it. `SW_TIMED_OUT` after
// `timeout` nanoseconds: another call goes on. `SW_CANCELLED` when the pool was stopped before it began. One thread waits for
// a task at a time.
//
// # Safety
// `task` is valid and used by this call alone.
sw_status sw_task_wait(struct sw_task *task,
                       uint64_t timeout);

// Gives a task back; null is nothing. It is done all the same, unless the pool is stopped first.
//
// # Safety
// `task` is null or came from `sw_pool_submit`, and is not used again.
void sw_task_free(struct sw_task *task);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLACKWATER_H */
