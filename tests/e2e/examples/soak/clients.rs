//! Clients of the metrics: hundreds at once, most of them rude, and one that must always be served.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const ASK: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n";
/// At once.
const CROWD: usize = 300;
/// Between two crowds.
const PAUSE: Duration = Duration::from_secs(8);
/// Longer than the tracer is ever stopped; the rest is for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Served {
    pub(crate) crowd: u64,
    pub(crate) scrapes: u64,
    pub(crate) slowest: Duration,
    /// Why the polite one was not served.
    pub(crate) refused: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Clients {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Served>,
}

impl Clients {
    pub(crate) fn start(address: SocketAddr) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut served = Served::default();
            while !over.load(Ordering::Relaxed) {
                let crowd = crowd(address);
                served.crowd += crowd.len() as u64;
                let begun = Instant::now();
                match scrape(address) {
                    Ok(()) => served.scrapes += 1,
                    Err(why) => served.refused.push(why),
                }
                served.slowest = served.slowest.max(begun.elapsed());
                drop(crowd);
                let until = Instant::now() + PAUSE;
                while Instant::now() < until && !over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(100));
                }
            }
            served
        });
        Self { is_over, thread }
    }

    pub(crate) fn end(self) -> Served {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.join();
        thread.unwrap_or_else(|_| Served { refused: vec!["they panicked".to_owned()], ..Served::default() })
    }
}

/// A third says nothing, a third says half of it, a third asks and does not read.
fn crowd(address: SocketAddr) -> Vec<TcpStream> {
    let connect = |number: usize| {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
        let said = ASK.get(..ASK.len() * (number % 3) / 2).unwrap_or_default();
        stream.set_write_timeout(Some(Duration::from_millis(100))).ok()?;
        let _ = stream.write_all(said);
        Some(stream)
    };
    (0..CROWD).filter_map(connect).collect()
}

fn scrape(address: SocketAddr) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(ASK).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    if answer.starts_with("HTTP/1.1 200") && answer.ends_with("# EOF\n") {
        return Ok(());
    }
    Err(format!("{} bytes that are no exposition", answer.len()))
}
