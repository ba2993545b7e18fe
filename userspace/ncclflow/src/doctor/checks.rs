//! One thing that was looked at, and what it means.

use serde::Serialize;

/// What it means for tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Something is lost, as the line says; the rest works.
    Degraded,
    /// Nothing can be traced.
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

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: String,
    pub verdict: Verdict,
    /// What was found, and, where it is not ok, what is lost.
    pub found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    pub fn ok(name: &str, found: impl Into<String>) -> Self {
        Self { name: name.to_owned(), verdict: Verdict::Ok, found: found.into(), remedy: None }
    }

    pub fn degraded(name: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (found, remedy) = (found.into(), Some(remedy.into()));
        Self { name: name.to_owned(), verdict: Verdict::Degraded, found, remedy }
    }

    pub fn no(name: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (found, remedy) = (found.into(), Some(remedy.into()));
        Self { name: name.to_owned(), verdict: Verdict::No, found, remedy }
    }
}
