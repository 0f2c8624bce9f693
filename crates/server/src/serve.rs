//! From a socket to handled connections, and the orderly end: no new requests, running answers get their time, what
//! is left is cut with an error that says so.

use crate::app::App;
use crate::routes::router;
use crate::unreadable_head::TellUnreadableHeads;
use crate::write_deadline::WriteDeadline;
use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// How far the server is to come down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shutdown {
    Not,
    /// Running answers may end within the time for that.
    Drain,
    /// At once.
    Now,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: std::io::Error },
    #[error("the threads of the server cannot start: {0}")]
    Threads(std::io::Error),
    #[error("signals cannot be handled: {0}")]
    Signals(std::io::Error),
}

/// Listens and serves until SIGINT or SIGTERM; a second one ends at once. `on_listening` learns the address, whose
/// port the system chose if it was 0.
///
/// # Errors
/// An address that cannot be listened on.
pub fn serve_until_signal(
    app: Arc<App>,
    host: &str,
    port: u16,
    on_listening: impl FnOnce(SocketAddr),
) -> Result<(), ServeError> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(ServeError::Threads)?;
    let outcome = runtime.block_on(async {
        let address = || format!("{host}:{port}");
        let listener = TcpListener::bind((host, port))
            .await
            .map_err(|source| ServeError::Listen { address: address(), source })?;
        let shutdown = shutdown_on_signals()?;
        app.grammars.prepare();
        let local = listener.local_addr();
        on_listening(local.map_err(|source| ServeError::Listen { address: address(), source })?);
        serve(listener, app, shutdown).await;
        Ok(())
    });
    // Connections that did not end by now have had their time.
    runtime.shutdown_background();
    outcome
}

#[cfg(unix)]
fn shutdown_on_signals() -> Result<watch::Receiver<Shutdown>, ServeError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let (sender, receiver) = watch::channel(Shutdown::Not);
    tokio::spawn(async move {
        for stage in [Shutdown::Drain, Shutdown::Now] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if sender.send(stage).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

#[cfg(not(unix))]
fn shutdown_on_signals() -> Result<watch::Receiver<Shutdown>, ServeError> {
    let (sender, receiver) = watch::channel(Shutdown::Not);
    tokio::spawn(async move {
        for stage in [Shutdown::Drain, Shutdown::Now] {
            if tokio::signal::ctrl_c().await.is_err() || sender.send(stage).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Serves until `shutdown` says otherwise.
pub async fn serve(listener: TcpListener, app: Arc<App>, mut shutdown: watch::Receiver<Shutdown>) {
    let graceful = GracefulShutdown::new();
    let mut reached = async |stage: Shutdown| {
        if shutdown.wait_for(|asked| *asked >= stage).await.is_err() {
            // Nobody is left who could ask.
            std::future::pending::<()>().await;
        }
    };
    let drained = {
        // New connections are accepted until the last answer is out: they are told that it is over.
        let mut accepting = std::pin::pin!(accept(listener, &app, &graceful));
        tokio::select! {
            () = &mut accepting => {}
            () = reached(Shutdown::Drain) => {}
        }
        app.engine.drain();
        let drained = Instant::now() + app.options.drain;
        tokio::select! {
            () = &mut accepting => {}
            () = app.engine.ended() => {}
            () = sleep_until(drained) => {}
            () = reached(Shutdown::Now) => {}
        }
        drained
    };
    app.engine.stop();
    let all_gone = async {
        graceful.shutdown().await;
        app.engine.left().await;
    };
    // Answers may be whole long before they are read.
    let patience = async {
        tokio::select! {
            () = sleep_until(drained) => {}
            () = reached(Shutdown::Now) => {}
        }
        sleep(app.limits().goodbye).await;
    };
    tokio::select! {
        () = all_gone => {}
        () = patience => {}
    }
}

/// Never ends.
async fn accept(listener: TcpListener, app: &Arc<App>, graceful: &GracefulShutdown) {
    let router = router(Arc::clone(app));
    let places = Arc::new(Semaphore::new(app.limits().connections));
    loop {
        let Ok(permit) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => handle(stream, permit, router.clone(), app, graceful),
            // Too many open files, most often: others have to close theirs first.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A place among the connections, counted for as long as it is taken.
struct Place {
    app: Arc<App>,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    fn new(app: &Arc<App>, permit: OwnedSemaphorePermit) -> Self {
        app.engine.metrics().connections.fetch_add(1, Relaxed);
        Place { app: Arc::clone(app), _permit: permit }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.app.engine.metrics().connections.fetch_sub(1, Relaxed);
    }
}

fn handle(
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
    router: Router,
    app: &Arc<App>,
    graceful: &GracefulShutdown,
) {
    // Every write is a token that somebody waits for. A socket that refuses is slower, not wrong.
    let _ = stream.set_nodelay(true);
    let stream = TellUnreadableHeads::new(WriteDeadline::new(stream, app.limits().write_stall));
    let has_asked = Arc::new(AtomicBool::new(false));
    let service = {
        let (router, has_asked) = (TowerToHyperService::new(router), Arc::clone(&has_asked));
        move |request| {
            has_asked.store(true, Relaxed);
            router.call(request)
        }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.limits().arrival)
        .serve_connection(TokioIo::new(stream), service_fn(service));
    let connection = graceful.watch(connection);
    let place = Place::new(app, permit);
    tokio::spawn(async move {
        // Given back also when a handler panics.
        let over = over_without_a_request(&place.app, &has_asked);
        tokio::select! {
            // A connection that breaks concerns its client only.
            _ = connection => {}
            () = over => {}
        }
    });
}

/// Waits until the server is over for a connection on which no request ever came whole: a client that stopped within
/// its first head would hold up the end for as long as heads may take.
async fn over_without_a_request(app: &App, has_asked: &AtomicBool) {
    app.engine.ended().await;
    sleep(app.limits().goodbye).await;
    if has_asked.load(Relaxed) {
        std::future::pending::<()>().await;
    }
}
