//! Gives the hashes of the scripts and styles of a report, by which its page allows them and nothing else.

use std::fs;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use sha2::{Digest as _, Sha256};

/// Scripts and styles, and the variables that have their hashes.
const REPORT: [(&str, &str); 10] = [
    ("uplot/uPlot.min.css", "UPLOT_CSS"),
    ("report.css", "CSS"),
    ("uplot/uPlot.iife.min.js", "UPLOT_JS"),
    ("base.js", "BASE_JS"),
    ("parts.js", "PARTS_JS"),
    ("topology.js", "TOPOLOGY_JS"),
    ("matrix.js", "MATRIX_JS"),
    ("timeline.js", "TIMELINE_JS"),
    ("tables.js", "TABLES_JS"),
    ("report.js", "JS"),
];

/// As a Content-Security-Policy has them: SHA-256 in Base64.
fn hash_report() -> Result<(), String> {
    for (file, variable) in REPORT {
        let path = format!("assets/report/{file}");
        println!("cargo::rerun-if-changed={path}");
        let bytes = fs::read(&path).map_err(|error| format!("reading `{path}`: {error}"))?;
        let hash = BASE64_STANDARD.encode(Sha256::digest(&bytes));
        println!("cargo::rustc-env=NCCLFLOW_REPORT_{variable}={hash}");
    }
    Ok(())
}

fn main() {
    if let Err(problem) = hash_report() {
        println!("cargo::error={problem}");
    }
}
