//! The CPUs of threads and the NUMA node of memory: the two system calls that no safe crate offers in full.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::topology::NodeId;

/// Lets the calling thread run on `cpus` only.
pub(crate) fn run_on(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// The highest node number a memory policy can name here.
const NODE_MAX: u32 = 1023;

/// Makes memory that the calling thread touches first come from `node`, or from elsewhere when that is full.
pub(crate) fn allocate_on(node: NodeId) -> io::Result<()> {
    if node.0 > NODE_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("node {node} is above {NODE_MAX}"),
        ));
    }
    const BITS: u32 = usize::BITS;
    let mut mask = [0usize; ((NODE_MAX + 1) / BITS) as usize];
    mask[(node.0 / BITS) as usize] |= 1 << (node.0 % BITS);
    // SAFETY: the mask has `NODE_MAX + 1` bits, and the kernel reads one bit less than the number it is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            u64::from(NODE_MAX) + 2,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a thread of its own, which takes its CPUs with it.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no CPU sets")]
    fn cpus_that_no_set_can_name_are_left_out() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU)
            .find(|cpu| allowed.is_set(*cpu))
            .unwrap();
        let thread = std::thread::spawn(move || {
            run_on(&[first, CpuSet::MAX_CPU, usize::MAX]).unwrap();
            let now = rustix::thread::sched_getaffinity(None).unwrap();
            (now.count(), now.is_set(first))
        });
        assert_eq!(thread.join().unwrap(), (1, true));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memory policies")]
    fn an_unknown_node_is_refused_by_the_kernel() {
        assert!(allocate_on(NodeId(1_000)).is_err());
        assert!(allocate_on(NodeId(5_000)).is_err());
    }
}
