//! What a peer can do with memory that it has mapped.

use std::fs;

use slackwater_engine::{Buffers, Remote};

use super::*;
use crate::carry::{CopyRequest, carry};
use crate::copy_threads::CopyThreads;

/// The rights of the mapping at an address, as the kernel writes them.
fn mapped(at: *mut u8) -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let contains = |line: &&str| {
        let range = line.split_whitespace().next().unwrap();
        let (first, end) = range.split_once('-').unwrap();
        let address = |digits| usize::from_str_radix(digits, 16).unwrap();
        (address(first)..address(end)).contains(&at.addr())
    };
    let line = maps.lines().find(contains).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

/// Shared memory was mapped for writing whatever its owner had granted: an error of a reader changed the memory of all.
#[test]
fn memory_is_mapped_for_what_was_granted() {
    let (far, near) = (
        owner(ServiceLimits::default()),
        owner(ServiceLimits::default()),
    );
    let region = far.region(Memory::shared(8192).unwrap());
    let link = far.link(&near);
    let window = |rights| {
        let spec = GrantSpec::whole(&region, rights);
        ask(&link, far.life.grant(&region, &spec)).unwrap()
    };
    let at = |window: &OpenWindow| match window.reach(4096, 8) {
        Some(Reach::Mapped(at)) => at,
        reach => panic!("it is not mapped: {reach:?}"),
    };
    let [reader, writer, both] = [Rights::READ, Rights::WRITE, Rights::BOTH].map(window);
    for (window, expected) in [(&reader, "r--s"), (&writer, "rw-s"), (&both, "rw-s")] {
        assert_eq!(mapped(at(window)), expected);
        assert_eq!(window.is_writable(), expected == "rw-s");
    }
    region.access(4096, 1).unwrap().copy_in(0, &[7]);
    // SAFETY: the windows are open, and nothing else touches the memory.
    unsafe {
        assert_eq!(at(&reader).read(), 7);
        at(&writer).write(8);
        assert_eq!(at(&reader).read(), 8);
    }
    let again = window(Rights::READ);
    assert_eq!(at(&again), at(&reader), "the memory is mapped once");
}

/// An owner passes memory for reading behind a capability that allows writing: the write is refused, and does not end
/// the process.
#[test]
fn a_write_through_memory_for_reading_is_refused() {
    let near = owner(ServiceLimits::default());
    let mut liar = Liar::new();
    let link = liar.link(&near, |_| {}).unwrap();
    let memory = Mapping::shared(4096).unwrap();
    let passed = slackwater_memory::read_only(memory.file().unwrap()).unwrap();
    let opened = liar.answered(&link, &[shared(0, 4096, 4096)], &[passed.as_fd()]);
    let own = near.region(Memory::anonymous(4096).unwrap());
    let buffers = Buffers::held(vec![own.access(0, 8).unwrap()]);
    let remote = Remote {
        offset: 0,
        capability: near.grant(&own),
        key: None,
        trace: None,
    };
    let write = CopyRequest {
        op: Op::Write,
        buffers: &buffers,
        remote: &remote,
        deadline: now() + PATIENCE,
        part: None,
        submitted_bytes: 8,
        checksum: false,
    };
    let carried = carry(&write, &opened.unwrap(), &CopyThreads::start(1).unwrap());
    assert!(
        matches!(
            carried,
            Err(NotCopied::Failed(Cause::Refused(Refusal::Rights)))
        ),
        "{carried:?}"
    );
}
