//! A check: one requirement of tracing, and the verdict on it.

use serde::Serialize;

/// What a check means for tracing, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Tracing works, but for what [`Check::found`] names.
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

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: String,
    pub verdict: Verdict,
    /// What was found; if the verdict is not ok, also what does not work.
    pub found: String,
    /// What the user can do.
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
