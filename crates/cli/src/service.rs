//! What the processes that serve have in common: their keys, their signals, their end.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::Result;
use clap::Args;
use slackwater_admin::Admin;
use slackwater_mq::{Address, AllowListError, load_key};
use slackwater_node::config::Role;
use slackwater_node::serve::ServeKeys;
use slackwater_node::{Config, logging};
use slackwater_zmtp::PublicKey;

use crate::admin::{AdminArguments, AdminReload};
use crate::config::Layers;
use crate::interrupt::Interrupt;
use crate::notify::Notify;
use crate::{DONE, INTERRUPTED};

/// The files with keys.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeyFiles {
    /// Our secret key, as `slackwater keys new` makes it; with one, everything is encrypted. Needed for any address that
    /// is not loopback
    #[arg(
        long,
        env = "SLACKWATER_KEY_FILE",
        hide_env_values = true,
        value_name = "FILE",
        requires = "allow"
    )]
    key_file: Option<PathBuf>,

    /// The keys that may connect, as `slackwater keys allow` enters them
    #[arg(
        long,
        env = "SLACKWATER_ALLOW",
        hide_env_values = true,
        value_name = "FILE",
        requires = "key_file"
    )]
    allow: Option<PathBuf>,
}

impl KeyFiles {
    pub(crate) fn files(&self) -> Option<ServeKeys> {
        let keys = self.key_file.clone().zip(self.allow.clone());
        keys.map(|(key_file, allowed)| ServeKeys { key_file, allowed })
    }
}

impl KeyFiles {
    /// Says so when the key file holds another key than the process began with: peers know a process by its key, so a
    /// new one takes a restart.
    fn check_key(&self, used: Option<PublicKey>) {
        let Some(file) = &self.key_file else { return };
        match load_key(file) {
            Ok(keys) if used == Some(keys.public()) => {}
            Ok(_) => {
                tracing::warn!(file = %file.display(), "the key is another one: it is used after a restart")
            }
            Err(error) => {
                tracing::warn!(%error, "the key cannot be read: the next start would fail")
            }
        }
    }
}

/// A service: its signals, and the process manager that started it.
pub(crate) struct Service {
    pub(crate) interrupt: Interrupt,
    pub(crate) notify: Arc<Notify>,
    reloader: Arc<Reloader>,
}

/// Reads files again.
type Reload = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// Has a service read its files again, at SIGHUP and when an operator says so.
pub(crate) struct Reloader {
    reload: OnceLock<Reload>,
    notify: Arc<Notify>,
    /// Whether SIGHUP came before the start was over. Held while files are read: the process manager is told of each time.
    wanted: Mutex<bool>,
}

impl Reloader {
    fn new(notify: &Arc<Notify>) -> Self {
        Self {
            reload: OnceLock::new(),
            notify: Arc::clone(notify),
            wanted: Mutex::default(),
        }
    }

    /// Reads them, and says how that went. Until the start is over, which is what comes next, this waits: the start has read
    /// files that may have changed since.
    pub(crate) fn reload(&self) -> Result<()> {
        let reload = self.reload.wait();
        self.run(reload, &self.wanted())
    }

    /// Reads them, or notes that they are to be read as soon as the start is over. The log says how it went.
    fn hang_up(&self) {
        let mut wanted = self.wanted();
        match self.reload.get() {
            Some(reload) => drop(self.run(reload, &wanted)),
            None => *wanted = true,
        }
    }

    /// The start is over.
    fn begin(&self, reload: Reload) {
        let mut wanted = self.wanted();
        // It is empty until now.
        let reload = self.reload.get_or_init(|| reload);
        self.notify.ready();
        if std::mem::take(&mut *wanted) {
            // The log says how it went.
            drop(self.run(reload, &wanted));
        }
    }

    fn run(&self, reload: &Reload, _one_at_a_time: &MutexGuard<'_, bool>) -> Result<()> {
        self.notify.reloading();
        let reloaded = reload();
        match &reloaded {
            Ok(()) => tracing::info!("keys and tokens were read again"),
            Err(error) => tracing::error!(%error, "what was in force stays in force"),
        }
        self.notify.ready();
        reloaded
    }

    fn wanted(&self) -> MutexGuard<'_, bool> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// What every service does first: its configuration, its log and its signals.
    pub(crate) fn prepare(layers: &Layers, role: Role) -> Result<(Config, Self)> {
        let mut config = layers.load()?;
        config
            .default_to("log", "info")
            .map_err(anyhow::Error::msg)?;
        logging::init(&config).map_err(anyhow::Error::msg)?;
        for warning in layers.warnings.iter().chain(&config.warnings_in(role)) {
            tracing::warn!("{warning}");
        }
        let notify = Arc::new(Notify::from_environment());
        let reloader = Arc::new(Reloader::new(&notify));
        let at_hangup = Arc::clone(&reloader);
        let interrupt = Interrupt::install_for_service(move || at_hangup.hang_up())?;
        let service = Self {
            interrupt,
            notify,
            reloader,
        };
        Ok((config, service))
    }

    /// The service does its work, and reads its files again by `reload` from now on.
    pub(crate) fn started(&self, reload: impl Fn() -> Result<()> + Send + Sync + 'static) {
        self.reloader.begin(Box::new(reload));
    }

    /// What has this service read its files again.
    pub(crate) fn reloader(&self) -> Arc<Reloader> {
        Arc::clone(&self.reloader)
    }

    /// Serves clients at `address` and operators beside it until it is told to end; tells of other places `beside` it. `list`
    /// reads the allow-list again.
    pub(crate) fn serve(
        &self,
        address: &Address,
        beside: &[String],
        keys: &KeyFiles,
        list: impl Fn() -> Result<(), AllowListError> + Send + Sync + 'static,
        arguments: &AdminArguments,
        admin: Option<Admin>,
    ) {
        announce(address, admin.as_ref(), beside);
        let token = arguments.reload(admin.as_ref());
        let reload = reload_of(keys, address.key, list, token);
        self.notify.status(&format!("serving at {address}"));
        self.started(reload);
        self.wait();
    }

    /// Works until it is told to end.
    pub(crate) fn wait(&self) {
        self.interrupt.wait();
        self.notify.stopping();
    }
}

/// What a service with keys and an operator's token reads again.
pub(crate) fn reload_of(
    keys: &KeyFiles,
    used: Option<PublicKey>,
    list: impl Fn() -> Result<(), AllowListError> + Send + Sync + 'static,
    admin: Option<AdminReload>,
) -> impl Fn() -> Result<()> + Send + Sync + 'static {
    let keys = keys.clone();
    move || {
        keys.check_key(used);
        // All or nothing: a token that cannot be used leaves the list as it is, and a list the token.
        let token = admin.as_ref().map(AdminReload::read).transpose()?;
        list()?;
        if let (Some(admin), Some(token)) = (&admin, token) {
            admin.replace(token);
        }
        Ok(())
    }
}

/// Says where requests come in.
fn announce(address: &Address, admin: Option<&Admin>, beside: &[String]) {
    // The process that started this one may have closed its output.
    let mut out = std::io::stdout();
    let _ = writeln!(out, "serving at {address}");
    if let Some(admin) = admin {
        let _ = writeln!(out, "admin at http://{}", admin.address());
    }
    for line in beside {
        let _ = writeln!(out, "{line}");
    }
}

/// The exit code after an interrupt.
pub(crate) fn code(interrupt: &Interrupt) -> u8 {
    if interrupt.is_termination() {
        DONE
    } else {
        INTERRUPTED
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn reloader() -> (Arc<Reloader>, Arc<AtomicU32>, Reload) {
        let reloader = Reloader::new(&Arc::new(Notify::from_environment()));
        let times = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&times);
        let reload: Reload = Box::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        (Arc::new(reloader), times, reload)
    }

    /// SIGHUP during the start was taken for done, though the start had read the files before they changed.
    #[test]
    fn files_that_change_during_the_start_are_read_once_after_it() {
        let (reloader, times, reload) = reloader();
        reloader.hang_up();
        reloader.hang_up();
        assert_eq!(times.load(Ordering::SeqCst), 0);
        reloader.begin(reload);
        assert_eq!(times.load(Ordering::SeqCst), 1);
        reloader.hang_up();
        assert_eq!(times.load(Ordering::SeqCst), 2);
    }

    /// An operator who asked before the start was over was told that files were read, and none was.
    #[test]
    fn an_operator_is_answered_when_files_were_read() {
        let (reloader, times, reload) = reloader();
        let asked = Arc::clone(&reloader);
        let counted = Arc::clone(&times);
        let operator = std::thread::spawn(move || {
            asked.reload().unwrap();
            counted.load(Ordering::SeqCst)
        });
        reloader.begin(reload);
        assert_eq!(operator.join().unwrap(), 1);
    }
}
