//! Serves the metrics over HTTP, from a thread of its own.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::thread::CapabilitySet;
use tokio::{sync::oneshot, task::AbortHandle};

use super::Expose;
use inspect::{failpoint, privileges};
use trace::health::Health;

/// Most connections at a time. A further one ends the oldest: a client that connects and says nothing, or
/// reads nothing, keeps nobody else from the metrics.
const MAX_CONNECTIONS: usize = 256;
/// Time within which a client must send its request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest duration of a connection, which is for one answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which an exposition is shared by all requests, so that many clients cost as one.
const FRESH: Duration = Duration::from_millis(200);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A server of metrics; it ends when this is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    pub address: SocketAddr,
    /// The thread, which ends when the sender is gone.
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl MetricsServer {
    /// Starts the server. `health` is served, and told of its end.
    pub fn start(address: SocketAddr, exposition: impl Expose + 'static, health: &Health) -> Result<Self> {
        let listener =
            TcpListener::bind(address).with_context(|| format!("cannot serve metrics on {address}"))?;
        listener.set_nonblocking(true).context("setting up the metrics' socket")?;
        let address = listener.local_addr().context("asking for the metrics' address")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting tokio for the metrics")?;
        let (stop, stopped) = oneshot::channel();
        let served = Arc::new(Served {
            exposition: Box::new(exposition),
            latest: Mutex::default(),
            health: health.clone(),
        });
        let thread = thread::Builder::new()
            .name("ncclflow-metric".to_owned())
            .spawn(move || {
                let guard = served.health.guard("ncclflow-metric");
                privileges::keep_only(CapabilitySet::empty());
                let is_told = runtime.block_on(async {
                    tokio::select! {
                        () = serve(listener, served) => false,
                        _ = stopped => true,
                    }
                });
                runtime.shutdown_background();
                if is_told {
                    guard.done();
                }
            })
            .context("starting the metrics' thread")?;
        Ok(Self { address, running: Some((stop, thread)) })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            // A panic there has been printed, and is no reason for another.
            let _ = thread.join();
        }
    }
}

/// State that requests are answered from.
#[derive(Debug)]
struct Served {
    exposition: Box<dyn Expose>,
    /// Latest answer and its time: clients that read slowly share it.
    latest: Mutex<Option<(Instant, Bytes)>>,
    health: Health,
}

impl Served {
    fn metrics(&self) -> Result<Bytes, fmt::Error> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, text)) = &*latest
            && made.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let text = Bytes::from(self.exposition.text()?);
        *latest = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

async fn serve(listener: TcpListener, served: Arc<Served>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        if failpoint::here("metrics").is_err() {
            return;
        }
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, or the client is gone already: neither ends the session.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if connections.len() >= MAX_CONNECTIONS {
            connections.retain(|connection| !connection.is_finished());
        }
        if connections.len() >= MAX_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let served = Arc::clone(&served);
        let connection = tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = answer(&request, &served);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(16 * 1024)
                .serve_connection(TokioIo::new(stream), service);
            // Errors with a client are the client's.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
        });
        connections.push_back(connection.abort_handle());
    }
}

fn answer(request: &Request<Incoming>, served: &Served) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "GET /metrics\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => match served.metrics() {
            Ok(text) => respond(StatusCode::OK, OPEN_METRICS, text),
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written\n"),
        },
        "/healthz" => tell(served.health.is_alive()),
        "/readyz" => tell(served.health.is_ready()),
        "/" => plain(StatusCode::OK, "ncclflow: metrics are at /metrics\n"),
        _ => plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
    }
}

/// Answers an orchestrator: by the status, and for people why.
fn tell(state: Result<(), String>) -> Response<Full<Bytes>> {
    match state {
        Ok(()) => plain(StatusCode::OK, "ok\n"),
        Err(why) => plain(StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
    }
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", text.into())
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
