//! Disks that are full, or give back other bytes.

use std::path::PathBuf;
use std::process::Command;

use super::super::until;
use super::cluster::{Cluster, node};
use super::faults::loaded;
use super::value;
use crate::place::Place;

/// Room for two files of a log, and not for a third.
const SMALL: u64 = 5 << 20;

/// Changes one byte of each value of the load that the log of a stopped node has; returns the keys.
fn damage(cluster: &Cluster, number: usize) -> std::collections::BTreeSet<u64> {
    let mut keys = std::collections::BTreeSet::new();
    let directory = cluster.place.path(&format!("kv{number}"));
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let mut changed = false;
        for at in 0..bytes.len().saturating_sub(value::HEADER) {
            let key = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            if key >= 1 << 16 {
                continue;
            }
            let Ok((_, length)) = value::header(key, &bytes[at..at + value::HEADER]) else {
                continue;
            };
            if let Some(last) = bytes.get_mut(at + length - 1) {
                *last ^= 1;
                changed = true;
                keys.insert(key);
            }
        }
        if changed {
            std::fs::write(&path, bytes).unwrap();
        }
    }
    keys
}

/// Records that decay are missed, or served from elsewhere; their neighbours are there.
#[test]
fn no_reader_is_given_what_a_damaged_record_holds() {
    let mut cluster = loaded(Cluster::start(80_001));
    cluster.calls(60);
    let hurt = node(1);
    cluster.kill(hurt);
    cluster.damaged = damage(&cluster, 1);
    assert!(!cluster.damaged.is_empty(), "no record was damaged");
    cluster.begin(hurt);
    cluster.heals("after damage");
    cluster.calls(60);
    cluster.settle();
}

/// A file system of its own for what is below a directory; gone with it.
struct Small(PathBuf);

impl Small {
    /// None, with a word of it, where file systems cannot be mounted.
    fn mount(at: PathBuf, size: &str) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        let options = format!("size={size}");
        let mount = ["-t", "tmpfs", "-o", &options, "none"];
        let status = Command::new("mount").args(mount).arg(&at).status();
        if status.is_ok_and(|status| status.success()) {
            return Some(Self(at));
        }
        println!("file systems cannot be mounted here: a full disk was not tried");
        None
    }

    fn used(&self) -> u64 {
        let state = rustix::fs::statvfs(&self.0).unwrap();
        (state.f_blocks - state.f_bfree) * state.f_frsize
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        let mount = ["-o", &options];
        let status = Command::new("mount").args(mount).arg(&self.0).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Files may still be open in a process that is being ended.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The disk of a node is full before its log is; later there is room again.
#[test]
fn a_full_disk_loses_nothing_that_was_acknowledged() {
    let place = Place::new();
    let Some(small) = Small::mount(place.path("kv1"), &SMALL.to_string()) else {
        return;
    };
    let mut cluster = loaded(Cluster::start_at(80_002, place));
    cluster.fill_a_disk();
    cluster.calls(100);
    cluster.heals("when the disk is full");
    small.resize("128m");
    until("the log goes on", || small.used() > SMALL);
    cluster.heals("with room again");
    cluster.settle();
    // What is mounted is held by the node.
    drop(small);
}
