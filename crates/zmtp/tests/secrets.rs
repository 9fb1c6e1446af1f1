//! Memory that is freed contains no secret.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use slackwater_zmtp::*;

/// An allocator that searches every freed block for [`EPHEMERALS`].
struct Searching;

/// The secrets s' and c' of the two ends, as [`random_like`] makes them.
const EPHEMERALS: [u8; 2] = [3, 4];
/// Blocks above this size are not searched, as a link allocates none.
const BLOCK_BYTES: usize = 4096;
static FOUND: AtomicUsize = AtomicUsize::new(0);
static SEARCHED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Searching = Searching;

// SAFETY: allocation and release are the system's; a block is only read before it is released.
unsafe impl GlobalAlloc for Searching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is live, of this layout, and was zeroed when it was allocated.
        let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
        // The comparison is byte by byte, so that the search itself leaves no copy of the secrets on the stack.
        let is_secret = |window: &[u8], seed| {
            window
                .iter()
                .enumerate()
                .all(|(at, byte)| *byte == random_byte(seed, at))
        };
        let holds = |seed: &u8| bytes.windows(16).any(|window| is_secret(window, *seed));
        if layout.size() > BLOCK_BYTES {
            // SAFETY: as for the allocation.
            return unsafe { System.dealloc(block, layout) };
        }
        SEARCHED.fetch_add(1, Ordering::Relaxed);
        FOUND.fetch_add(
            EPHEMERALS.iter().filter(|seed| holds(seed)).count(),
            Ordering::Relaxed,
        );
        // SAFETY: as for the allocation.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Each step of a handshake was moved out of its box to make the next one: the box was freed with the secret of the
/// connection, and on a server with its long-term key, still in it.
#[test]
fn what_a_handshake_frees_contains_no_secret() {
    let (client, server) = joined(true);
    drop((client, server));
    // A handshake that is abandoned half way.
    let mut server = End::new(curve_server(SocketType::Router, 2), 4);
    let mut client = End::new(curve_client(SocketType::Dealer, 1, 2), 3);
    client.handle(Input::Bytes(&std::mem::take(&mut server.wire)));
    server.handle(Input::Bytes(&std::mem::take(&mut client.wire)));
    server.handle(Input::Close);
    client.handle(Input::Eof);
    drop((client, server));
    assert!(SEARCHED.load(Ordering::Relaxed) > 10);
    assert_eq!(FOUND.load(Ordering::Relaxed), 0);
    // Proves that the search finds a secret that is there.
    drop(Box::new(random_like(3)));
    assert!(FOUND.load(Ordering::Relaxed) > 0);
}
