//! Host names: looked up on workers of their own, each name once at a time, never on a sender's thread or a loop.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use slackwater_base::Map;

use crate::LinkId;
use crate::context::Context;
use crate::shard::LoopCommand;

/// Finds the addresses of a host and a port. It may block.
pub(crate) type Resolve = Arc<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

/// Links that wait for the addresses of a name, by host and port.
#[derive(Default)]
pub(crate) struct Lookups(Mutex<Map<(String, u16), Vec<LinkId>>>);

/// Names that may be looked up at one time, those that wait for a worker included.
pub(crate) const LOOKUPS: usize = 1_024;
/// Addresses of one name that are tried; more than any service needs, and few enough to share one connect timeout.
const ADDRESSES: usize = 16;

/// What the operating system knows.
pub(crate) fn by_the_system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

impl Context {
    /// Looks a name up for a link. [`LoopCommand::Resolved`] follows, unless the message layer stops before.
    ///
    /// # Errors
    /// When too many names are being looked up.
    pub(crate) fn resolve(
        self: &Arc<Self>,
        host: &str,
        port: u16,
        link: LinkId,
    ) -> Result<(), String> {
        let name = (host.to_owned(), port);
        let mut lookups = self
            .lookups
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(links) = lookups.get_mut(&name) {
            links.push(link);
            return Ok(());
        }
        let (context, asked) = (Arc::clone(self), name.clone());
        let task = move || context.look_up(&asked);
        if self.jobs.lookup(Box::new(task)).is_err() {
            return Err("too many names are being looked up".into());
        }
        lookups.insert(name, vec![link]);
        Ok(())
    }

    /// Looks a name up, on a worker, and tells every link that waits for it.
    fn look_up(&self, name: &(String, u16)) {
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.resolver)(&name.0, name.1)));
        let outcome = match outcome {
            Ok(Ok(mut addresses)) if !addresses.is_empty() => {
                addresses.truncate(ADDRESSES);
                Ok(addresses)
            }
            Ok(Ok(_)) => Err("the name has no address".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                self.metrics.rare(&self.metrics.jobs_panicked);
                Err("the resolver panicked".to_owned())
            }
        };
        let links = {
            let mut lookups = self
                .lookups
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            lookups.remove(name).unwrap_or_default()
        };
        for link in links {
            self.order(
                link.shard,
                LoopCommand::Resolved(link.serial, outcome.clone()),
            );
        }
    }
}
