//! What makes a descriptor readable. Loom has no descriptors, so there it is a number.

#[cfg(not(loom))]
pub(crate) use kernel::Bell;
#[cfg(loom)]
pub(crate) use model::Bell;

#[cfg(not(loom))]
mod kernel {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    /// An eventfd.
    #[derive(Debug)]
    pub(crate) struct Bell(OwnedFd);

    impl Bell {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self(eventfd(
                0,
                EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
            )?))
        }

        pub(crate) fn ring(&self) {
            // Adding 1 cannot fill the counter: each sleep gets one, and a few sleeps later it is read to zero.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        /// Makes it quiet, and says how often it rang since it was.
        pub(crate) fn silence(&self) -> u32 {
            let mut counter = [0; 8];
            // An error means that it is quiet.
            let read = rustix::io::read(&self.0, &mut counter);
            if read.is_ok() {
                u64::from_ne_bytes(counter) as u32
            } else {
                0
            }
        }
    }

    impl AsFd for Bell {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

#[cfg(loom)]
mod model {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd};

    use loom::sync::atomic::{AtomicU32, Ordering};

    #[derive(Debug)]
    pub(crate) struct Bell(AtomicU32);

    impl Bell {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self(AtomicU32::new(0)))
        }

        pub(crate) fn ring(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        pub(crate) fn silence(&self) -> u32 {
            self.0.swap(0, Ordering::SeqCst)
        }

        #[cfg(test)]
        pub(crate) fn rings(&self) -> bool {
            self.0.load(Ordering::SeqCst) > 0
        }
    }

    impl AsFd for Bell {
        fn as_fd(&self) -> BorrowedFd<'_> {
            unreachable!("models do not poll")
        }
    }
}
