//! Serves the metrics over HTTP, from a thread of its own.

use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, oneshot};

use super::exposition::Exposition;

/// Connections that are served at a time; others wait. A scraper needs one.
const MAX_CONNECTIONS: usize = 8;
/// How long a client may take to say what it wants.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection lasts, whatever it does. Scrapers open a new one.
const CONNECTION_TIMEOUT: Duration = Duration::from_mins(5);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A server of metrics; it ends when this is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    pub fn start(address: SocketAddr, exposition: Exposition) -> Result<Self> {
        let listener =
            TcpListener::bind(address).with_context(|| format!("cannot serve metrics on {address}"))?;
        listener.set_nonblocking(true).context("setting up the metrics' socket")?;
        let address = listener.local_addr().context("asking for the metrics' address")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting tokio for the metrics")?;
        let (stop, stopped) = oneshot::channel();
        let exposition = Arc::new(exposition);
        let thread = thread::Builder::new()
            .name("ncclflow-metric".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = serve(listener, exposition) => {}
                        _ = stopped => {}
                    }
                });
                runtime.shutdown_background();
            })
            .context("starting the metrics' thread")?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed, and is no reason for another.
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, exposition: Arc<Exposition>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, or the client is gone already: neither ends the session.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let exposition = Arc::clone(&exposition);
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = answer(&request, &exposition);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(16 * 1024)
                .serve_connection(TokioIo::new(stream), service);
            // What goes wrong with a client is the client's.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
            drop(permit);
        });
    }
}

fn answer(request: &Request<Incoming>, exposition: &Exposition) -> Response<Full<Bytes>> {
    let plain = |status, text: &'static str| respond(status, "text/plain; charset=utf-8", text.into());
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "GET /metrics\n");
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => match exposition.encode() {
            Ok(text) => respond(StatusCode::OK, OPEN_METRICS, text.into()),
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written\n"),
        },
        "/" => plain(StatusCode::OK, "ncclflow: metrics are at /metrics\n"),
        _ => plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    response
}
