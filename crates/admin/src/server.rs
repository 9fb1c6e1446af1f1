use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::guard::{Token, TokenInForce};
use crate::{Source, paths};

/// Connections that are open at a time; more wait in the listener's queue.
const CONNECTIONS_MAX: usize = 64;
/// Requests that are executed at a time, each on a thread that exists while there is work.
const WORKERS: usize = 4;
/// How long the head of a request may take to arrive, and how long a connection may be idle.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// How long a connection may last.
const CONNECTION_TIME: Duration = Duration::from_secs(15 * 60);
/// How long after the end was asked for the last answers may take.
const DRAIN: Duration = Duration::from_secs(1);
/// How long to wait when the process has no descriptor for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where and for whom to listen.
#[derive(Clone, Debug)]
pub struct AdminOptions {
    /// The address; a port of 0 means a free one.
    pub listen: SocketAddr,
    /// What callers must know; needed unless the address is a loopback.
    pub token: Option<Token>,
}

impl AdminOptions {
    /// The port when nothing else is said.
    pub const PORT: u16 = 9003;
}

/// Why the admin address cannot be served; the message says what to change.
#[derive(Debug, Error)]
pub enum AdminError {
    /// Everybody who reaches the address could remove everything.
    #[error(
        "{listen} can be reached from other machines, which needs a token: --admin-token-file FILE"
    )]
    NeedsToken {
        /// The address.
        listen: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("{listen}: {why} (--admin chooses another address, --admin none does without)")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// What the system said.
        #[source]
        why: std::io::Error,
    },
    /// The runtime could not be started.
    #[error("no thread for the admin address: {0}")]
    Runtime(#[source] std::io::Error),
}

/// A listener and its thread; both end when this is dropped.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    token: TokenInForce,
    ending: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Listens and answers for `source`.
    ///
    /// # Errors
    /// When the address needs a token or cannot be listened on.
    pub fn start(options: AdminOptions, source: Arc<dyn Source>) -> Result<Self, AdminError> {
        let AdminOptions { listen, token } = options;
        if token.is_none() && !listen.ip().is_loopback() {
            return Err(AdminError::NeedsToken { listen });
        }
        let refused = |why| AdminError::Listen { listen, why };
        let listener = std::net::TcpListener::bind(listen).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(WORKERS)
            .build()
            .map_err(AdminError::Runtime)?;
        let (ending, ended) = watch::channel(false);
        let token = TokenInForce::new(token);
        let router = paths::router(source, token.clone(), ended.clone());
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                if let Err(error) = runtime.block_on(serve(listener, router, ended)) {
                    tracing::error!(%error, "the admin address is not served any more");
                }
                runtime.shutdown_timeout(DRAIN);
            })
            .map_err(AdminError::Runtime)?;
        Ok(Self {
            address,
            token,
            ending,
            thread: Some(thread),
        })
    }

    /// The token that callers must send, which may be replaced.
    #[must_use]
    pub fn token(&self) -> TokenInForce {
        self.token.clone()
    }

    /// The address that it listens on, with the port that it was given.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.ending.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: std::net::TcpListener,
    router: Router,
    mut ended: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            () = over(&mut ended) => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection to the admin address was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .serve_connection(TokioIo::new(stream), service);
        let mut ended = ended.clone();
        tokio::spawn(async move {
            let mut connection = std::pin::pin!(connection);
            let ends = tokio::select! {
                ends = connection.as_mut() => ends,
                () = over(&mut ended) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
                // A peer that neither reads nor goes away would keep its place for ever.
                () = tokio::time::sleep(CONNECTION_TIME) => Ok(()),
            };
            if let Err(error) = ends {
                tracing::debug!(%error, "a connection to the admin address ended early");
            }
            drop(place);
        });
    }
    // All places are free once every connection has ended.
    let all = places.acquire_many(CONNECTIONS_MAX as u32);
    let _ = tokio::time::timeout(DRAIN, all).await;
    Ok(())
}

/// Waits until the end was asked for.
async fn over(ended: &mut watch::Receiver<bool>) {
    // An error says that nobody is left who could ask.
    let _ = ended.wait_for(|ended| *ended).await;
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await;
    let place = place.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}
