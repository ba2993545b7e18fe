//! The exposition of known statistics, read back line by line, and the server of it. A real parser reads it
//! in `tests/e2e/tests/live.rs`.

mod promised;
mod watched;

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use super::*;
use flow::made::ops::{Op, host, launch, messages};
use inspect::gpu::GpuSamples;
use recording::sinks::LiveStatistics;
use trace::health::Health;

fn live() -> LiveStatistics {
    let live = LiveStatistics::default();
    let mut tally = live.lock();
    tally.event(&launch(1, 41), Some(&host(10)), 3);
    for seq in [0, 2] {
        let mut record = Op { seq, ..Op::default() }.record();
        record.peers[0].measured = messages(&[2_000_000, 20_000]);
        tally.flow(&record, &host(10));
    }
    drop(tally);
    live
}

const RANK: &str = r#"comm="0x0000000000000007",rank="1",pid="10""#;

#[test]
fn numbers_stand_under_the_names_that_are_promised() {
    let text = Exposition::new(live(), GpuSamples::default(), || 1_000_000_000).encode().unwrap();
    let value = |series: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no `{series}` in\n{text}")).to_owned()
    };
    let op = format!(r#"{RANK},coll="AllReduce",algorithm="RING",protocol="SIMPLE""#);
    assert_eq!(value(&format!("ncclflow_ops_total{{{op}}}")), "2");
    assert_eq!(value(&format!("ncclflow_op_bytes_total{{{op}}}")), "8192");
    assert_eq!(value(r#"ncclflow_records_lost_total{pid="10"}"#), "3");
    assert_eq!(value("ncclflow_records_undecodable_total"), "0", "zero is said too");
    let way = format!(r#"{RANK},direction="RECV",peer_kind="NET""#);
    assert_eq!(value(&format!("ncclflow_messages_total{{{way}}}")), "4");
    assert_eq!(value(&format!("ncclflow_message_bytes_total{{{way}}}")), "400");
    let wait = format!(r#"{way},wait="network""#);
    assert_eq!(value(&format!("ncclflow_wait_seconds_count{{{wait}}}")), "4");
    assert_eq!(value(&format!("ncclflow_wait_seconds_sum{{{wait}}}")), "0.00404");
    assert_eq!(value(&format!(r#"ncclflow_wait_seconds_bucket{{le="0.00003",{wait}}}"#)), "2");
    assert_eq!(value(&format!(r#"ncclflow_wait_seconds_bucket{{le="+Inf",{wait}}}"#)), "4");
    assert_eq!(value(&format!("ncclflow_launched_collectives{{{RANK}}}")), "41.0");
    assert!(text.ends_with("# EOF\n"));
    assert!(text.contains("# UNIT ncclflow_op_bytes bytes\n"));
}

#[test]
fn names_that_a_target_made_up_are_no_labels() {
    let live = LiveStatistics::default();
    for (seq, name) in [(0, "a\"} evil 1\n"), (2, ""), (4, &*"x".repeat(1000)), (6, "Send")] {
        let mut record = Op { seq, ..Op::default() }.record();
        record.op.coll = Some(name.into());
        live.lock().flow(&record, &host(10));
    }
    let text = Exposition::new(live, GpuSamples::default(), || 0).encode().unwrap();
    assert!(!text.contains("evil") && !text.contains("xxx"), "{text}");
    assert!(text.contains(r#"coll="other",algorithm="RING",protocol="SIMPLE"} 3"#), "{text}");
}

fn ask(server: &MetricsServer, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_server_answers_what_it_is_asked_and_ends_when_it_is_dropped() {
    let health = Health::default();
    let server = MetricsServer::start(
        "127.0.0.1:0".parse().unwrap(),
        Exposition::new(live(), GpuSamples::default(), || 0),
        &health,
    )
    .unwrap();
    let end = "HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let metrics = ask(&server, &format!("GET /metrics {end}"));
    assert!(metrics.starts_with("HTTP/1.1 200 OK"), "{metrics}");
    assert!(metrics.contains("content-type: application/openmetrics-text; version=1.0.0"), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"));
    assert!(ask(&server, &format!("GET / {end}")).contains("/metrics"));
    assert!(ask(&server, &format!("GET /nothing {end}")).starts_with("HTTP/1.1 404"));
    assert!(ask(&server, &format!("POST /metrics {end}")).starts_with("HTTP/1.1 405"));
    assert!(ask(&server, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));

    let get = |path: &str| ask(&server, &format!("GET {path} {end}"));
    assert!(get("/healthz").starts_with("HTTP/1.1 200") && get("/readyz").starts_with("HTTP/1.1 503"));
    health.begin_recording();
    assert!(get("/readyz").starts_with("HTTP/1.1 200"));
    health.set_sight(3, Some("cannot inspect 3 of 4 processes".to_owned()));
    assert!(get("/readyz").starts_with("HTTP/1.1 503") && get("/readyz").contains("cannot inspect"));
    assert!(get("/healthz").starts_with("HTTP/1.1 200"), "it is alive");
    health.set_sight(3, None);
    assert!(get("/readyz").starts_with("HTTP/1.1 200"), "enough is seen");
    let exposition = Exposition::new(live(), GpuSamples::default(), || 0).with_health(&health);
    assert!(exposition.encode().unwrap().contains("ncclflow_processes_denied 3.0\n"));
    health.fail("the thread `x` panicked".to_owned());
    for path in ["/healthz", "/readyz"] {
        let answer = get(path);
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.ends_with("the thread `x` panicked\n"),
            "{answer}"
        );
    }

    // A silent client does not keep others from the server, nor the server from ending.
    let _silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    assert!(ask(&server, &format!("GET /metrics {end}")).starts_with("HTTP/1.1 200"));
    let taken =
        MetricsServer::start(server.address, Exposition::new(live(), GpuSamples::default(), || 0), &health);
    let error = format!("{:#}", taken.unwrap_err());
    assert!(error.contains("cannot serve metrics on 127.0.0.1:"), "{error}");
    let address = server.address;
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}

/// Prometheus gives up after 10 s; it is to have its answer in far less, whoever else is connected.
#[test]
fn a_thousand_clients_that_say_nothing_or_read_nothing_do_not_keep_anybody_from_the_metrics() {
    let health = Health::default();
    let server = MetricsServer::start(
        "127.0.0.1:0".parse().unwrap(),
        Exposition::new(live(), GpuSamples::default(), || 0),
        &health,
    )
    .unwrap();
    // Both ends of each are ours.
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let mut clients = Vec::new();
    for number in 0..1000 {
        let mut client = TcpStream::connect(server.address).unwrap();
        match number % 3 {
            0 => {}
            1 => client.write_all(b"GET /metrics HTTP/1.1\r\nHo").unwrap(),
            // This client asks, and does not read.
            _ => client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap(),
        }
        clients.push(client);
        if number % 100 == 99 {
            let time_of_an_answer = || {
                let begun = std::time::Instant::now();
                let answer = ask(&server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                begun.elapsed()
            };
            // On a busy machine one answer may wait for a processor; if clients held answers back, all would
            // wait.
            let least = (0..3).map(|_| time_of_an_answer()).min().unwrap();
            assert!(least < Duration::from_secs(2), "it took {least:?}");
        }
    }
}
