//! The NUMA node of memory: the system call that no safe crate offers.

use std::io;

use slackwater_wait::NumaId;

/// The highest node number a memory policy can name here.
const NODE_MAX: u32 = 1023;

/// Makes memory that the calling thread touches first come from `node`, or from elsewhere when that is full.
pub(crate) fn allocate_on(node: NumaId) -> io::Result<()> {
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

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memory policies")]
    fn an_unknown_node_is_refused_by_the_kernel() {
        assert!(allocate_on(NumaId(1_000)).is_err());
        assert!(allocate_on(NumaId(5_000)).is_err());
    }
}
