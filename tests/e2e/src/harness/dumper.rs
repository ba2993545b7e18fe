//! One run of `ncclflow dump`.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::schemas::assert_valid;

/// A dump is taken so often at most where something did not answer it in time.
const ATTEMPTS: usize = 3;

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
    pub kind: Option<String>,
    pub culprits: Vec<u32>,
    pub victims: Vec<u32>,
    pub evidence: Vec<String>,
}

/// What a dump says of the whole job.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct DumpedJob {
    pub state: String,
    pub kind: Option<String>,
    pub sentence: String,
}

/// A dump and its exit code.
#[derive(Clone, Debug)]
pub struct Dump {
    pub code: Option<i32>,
    /// The JSON, whole.
    pub text: String,
    pub communicators: Vec<DumpedCommunicator>,
    pub job: DumpedJob,
    pub said: String,
}

impl Dump {
    /// Dumps the processes of `pids`, a comma list, as JSON.
    pub fn take(ncclflow: &Path, pids: &str, arguments: &[&str]) -> Result<Self> {
        Self::take_with(ncclflow, pids, arguments, &[])
    }

    /// The same, with variables in its environment.
    pub fn take_with(
        ncclflow: &Path,
        pids: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let mut command = Command::new(ncclflow);
        command.args(["dump", "--json"]).args(arguments).envs(variables.iter().copied());
        if !pids.is_empty() {
            command.args(["-p", pids]);
        }
        let output = command.output().with_context(|| format!("starting `{}`", ncclflow.display()))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8(output.stdout).context("the dump is no text")?;
        let mut json: serde_json::Value =
            serde_json::from_str(&text).with_context(|| format!("no JSON: `{text}` {said}"))?;
        assert_valid("dump", &json);
        let communicators = serde_json::from_value(json["communicators"].take()).context("communicators")?;
        let job = serde_json::from_value(json["job"].take()).ok().unwrap_or_default();
        Ok(Self { code: output.status.code(), text, communicators, job, said })
    }

    /// The same of processes that can answer. One that did not in time stood with all others, on a machine that is busy:
    /// then it is taken again. What never answers is not hidden by that.
    pub fn take_answered(
        ncclflow: &Path,
        pids: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let mut dump = Self::take_with(ncclflow, pids, arguments, variables)?;
        for _ in 1..ATTEMPTS {
            if !dump.lacks_answers() {
                break;
            }
            dump = Self::take_with(ncclflow, pids, arguments, variables)?;
        }
        Ok(dump)
    }

    /// A child that died over what it read is no such thing: it was ended by its own limits.
    fn lacks_answers(&self) -> bool {
        let report: serde_json::Value = serde_json::from_str(&self.text).unwrap_or_default();
        let mut processes = report["processes"].as_array().into_iter().flatten();
        let is_silent = |error: &str| error.contains("answer");
        report["lostReaders"]["unanswered"].as_u64().is_some_and(|count| count > 0)
            || processes.any(|process| process["error"].as_str().is_some_and(is_silent))
    }

    /// For how long nothing moved before its eyes, by what it says of its readings.
    pub fn seconds(&self) -> f64 {
        let ranks = self.communicators.iter().flat_map(|communicator| &communicator.ranks);
        ranks.filter_map(|rank| rank["motion"]["seconds"].as_f64()).fold(0.0, f64::max)
    }
}
