//! One run of `ncclflow dump`.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// What a dump says of one communicator.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DumpedCommunicator {
    pub comm_hash: String,
    pub n_ranks: u32,
    pub ranks: Vec<serde_json::Value>,
    pub verdict: Verdict,
}

/// As docs/DUMP.md has it.
#[derive(Clone, Debug, Deserialize)]
pub struct Verdict {
    pub state: String,
    pub culprits: Vec<u32>,
    pub victims: Vec<u32>,
    pub evidence: Vec<String>,
}

/// A dump and its exit code.
#[derive(Clone, Debug)]
pub struct Dump {
    pub code: Option<i32>,
    /// The JSON, whole.
    pub text: String,
    pub communicators: Vec<DumpedCommunicator>,
    pub said: String,
}

impl Dump {
    /// Dumps the processes of `pids`, a comma list, as JSON.
    pub fn take(ncclflow: &Path, pids: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(ncclflow);
        command.args(["dump", "--json"]).args(arguments);
        if !pids.is_empty() {
            command.args(["-p", pids]);
        }
        let output = command.output().with_context(|| format!("starting `{}`", ncclflow.display()))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8(output.stdout).context("the dump is no text")?;
        let mut json: serde_json::Value =
            serde_json::from_str(&text).with_context(|| format!("no JSON: `{text}` {said}"))?;
        let communicators = serde_json::from_value(json["communicators"].take()).context("communicators")?;
        Ok(Self { code: output.status.code(), text, communicators, said })
    }
}
