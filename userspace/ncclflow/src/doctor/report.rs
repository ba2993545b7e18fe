//! Checks, each of one requirement of tracing and with a verdict on it; their report, and its text.

use std::io::{self, Write};

use serde::Serialize;

use super::{
    host::{self, Facts},
    libraries, process, trial,
};
use flow::text::{plain, write_wrapped};
use trace::kernel::loader::try_uprobe;

/// Columns of a verdict, and fewest of what was found.
const VERDICT: usize = 8;
const LEAST_WIDTH: usize = 20;

/// Consequence of a check for tracing, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Tracing works, except for what [`Check::found`] names.
    Degraded,
    /// Tracing does not work.
    No,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::No => "no",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: String,
    pub verdict: Verdict,
    /// Result; if the verdict is not ok, also what does not work.
    pub found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

pub(super) fn ok(found: impl Into<String>) -> Check {
    Check { name: String::new(), verdict: Verdict::Ok, found: found.into(), remedy: None }
}

pub(super) fn degraded(found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { verdict: Verdict::Degraded, remedy: Some(remedy.into()), ..ok(found) }
}

pub(super) fn no(found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { verdict: Verdict::No, ..degraded(found, remedy) }
}

impl Check {
    pub(super) fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    ncclflow: &'static str,
    schema: u32,
    /// The worst verdict of `checks`; or no, where one of `libraries` is.
    pub verdict: Verdict,
    pub checks: Vec<Check>,
    pub libraries: Vec<Check>,
    /// Permissions for the processes of `-p`. They do not count for `verdict`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub process: Vec<Check>,
    /// The worst verdict of `process`, with `-p`.
    #[serde(rename = "processVerdict", skip_serializing_if = "Option::is_none")]
    pub process_verdict: Option<Verdict>,
}

/// Examines this host, tries a uprobe on this process, and examines the NCCL libraries; or, instead of these,
/// one process.
pub fn examine(pids: &[u32]) -> Report {
    let facts = Facts::read();
    let mut checks = host::checks(&facts);
    checks.push(libraries::own_program().named("mapped files"));
    checks.extend(trial::checks(&try_uprobe()));
    let libraries = if pids.is_empty() { libraries::checks(&facts) } else { Vec::new() };
    Report::new(checks, libraries).with_processes(pids.iter().copied().flat_map(process::checks).collect())
}

impl Report {
    pub(super) fn new(checks: Vec<Check>, libraries: Vec<Check>) -> Self {
        // A degraded library does not affect others.
        let unusable = libraries.iter().filter(|check| check.verdict == Verdict::No);
        let verdict = checks.iter().chain(unusable).map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
        Self {
            ncclflow: env!("CARGO_PKG_VERSION"),
            schema: 1,
            verdict,
            checks,
            libraries,
            process: Vec::new(),
            process_verdict: None,
        }
    }

    pub(super) fn with_processes(self, process: Vec<Check>) -> Self {
        let process_verdict = process.iter().map(|check| check.verdict).max();
        Self { process, process_verdict, ..self }
    }

    /// Returns what the host, and the processes that were asked about, are good for.
    pub fn worst(&self) -> Verdict {
        self.verdict.max(self.process_verdict.unwrap_or(Verdict::Ok))
    }

    /// Prints a line for each check, with its remedy below; `paint` gives words the colour of a verdict. What
    /// does not fit into `columns` goes on in the next line, below where it begins.
    ///
    /// # Errors
    /// Those of writing.
    pub fn print(
        &self,
        out: &mut impl Write,
        columns: Option<usize>,
        paint: impl Fn(Verdict, &str) -> String,
    ) -> io::Result<()> {
        let all = || self.checks.iter().chain(&self.libraries).chain(&self.process);
        let width = all().map(|check| check.name.len()).max().unwrap_or(0);
        let indent = VERDICT + 2 + width + 2;
        let fitted = |text: &str| {
            let columns = columns.map_or(usize::MAX, |columns| columns.max(indent + LEAST_WIDTH));
            let mut lines = String::new();
            // Writing to a string cannot fail.
            _ = write_wrapped(&mut lines, &plain(text), indent, columns);
            lines.trim().to_owned()
        };
        for check in all() {
            let verdict = paint(check.verdict, &format!("{:VERDICT$}", check.verdict.name()));
            writeln!(out, "{verdict}  {:width$}  {}", plain(&check.name), fitted(&check.found))?;
            if let Some(remedy) = &check.remedy {
                writeln!(out, "{:indent$}{}", "", fitted(&format!("-> {remedy}")))?;
            }
        }
        let says = match self.worst() {
            Verdict::Ok => "this host can trace",
            Verdict::Degraded => "this host can trace, but for what the lines above say",
            Verdict::No if self.verdict != Verdict::No => {
                "this host can trace, but not what -p names: see above"
            }
            Verdict::No => "this host cannot trace as it is, or not as this user",
        };
        writeln!(out, "\n{}", paint(self.worst(), says))
    }
}
