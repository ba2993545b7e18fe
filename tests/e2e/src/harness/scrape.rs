//! Metrics, fetched over HTTP and read by Prometheus's own Python parser of OpenMetrics, which is strict.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use test_support::need;

const PARSER: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
samples = [dict(name=s.name, labels=s.labels, value=s.value)
           for family in text_string_to_metric_families(sys.stdin.read()) for s in family.samples]
json.dump(samples, sys.stdout)
";

/// A value.
#[derive(Debug, Clone, Deserialize)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// Whether the parser is there.
pub fn can_parse() -> bool {
    let found =
        Command::new("python3").args(["-c", "import prometheus_client"]).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    need("openmetrics", found, "run `python3 -m pip install prometheus-client`")
}

/// The body of `http://ADDRESS/metrics`.
pub fn fetch(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
    if !head.starts_with("HTTP/1.1 200") || !head.contains("application/openmetrics-text; version=1.0.0") {
        bail!("not what was asked for: {head}");
    }
    Ok(body.to_owned())
}

/// Reads an exposition.
pub fn parse(text: &str) -> Result<Vec<Sample>> {
    let mut parser = Command::new("python3")
        .args(["-c", PARSER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting python3")?;
    parser.stdin.take().context("no standard input")?.write_all(text.as_bytes())?;
    let output = parser.wait_with_output()?;
    if !output.status.success() {
        bail!("no OpenMetrics: {}\n{text}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("reading the parser's output")
}

/// The sum of the samples of this name that have these labels; whole numbers.
#[must_use]
pub fn count(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> u64 {
    let fits = |sample: &&Sample| {
        sample.name == name
            && labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|have| have == value))
    };
    let sum: f64 = samples.iter().filter(fits).map(|sample| sample.value).sum();
    format!("{sum:.0}").parse().unwrap_or(0)
}
