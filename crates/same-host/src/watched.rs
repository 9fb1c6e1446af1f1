use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A link whose end is watched for.
pub(crate) struct Watched {
    gone: AtomicBool,
    tell: Box<dyn Fn() + Send + Sync>,
}

impl Watched {
    /// `tell` is called once, by the service's thread, when the peer has ended; it must not block.
    pub(crate) fn new(tell: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            gone: AtomicBool::new(false),
            tell: Box::new(tell),
        })
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.gone.store(true, Ordering::Release);
        (self.tell)();
    }
}
