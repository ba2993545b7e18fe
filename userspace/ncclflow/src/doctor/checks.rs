//! A check: one requirement of tracing, and the verdict on it.

use serde::Serialize;

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

/// A check that has no name yet.
pub(super) struct Finding(Verdict, String, Option<String>);

pub(super) fn ok(found: impl Into<String>) -> Finding {
    Finding(Verdict::Ok, found.into(), None)
}

pub(super) fn degraded(found: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding(Verdict::Degraded, found.into(), Some(remedy.into()))
}

pub(super) fn no(found: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding(Verdict::No, found.into(), Some(remedy.into()))
}

impl Finding {
    pub(super) fn named(self, name: impl Into<String>) -> Check {
        let Self(verdict, found, remedy) = self;
        Check { name: name.into(), verdict, found, remedy }
    }
}
