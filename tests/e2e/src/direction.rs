//! Which way data flows, seen from the rank that says it.

use std::fmt;

use serde::Deserialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub enum Direction {
    #[serde(rename = "SEND", alias = "send")]
    Send,
    #[serde(rename = "RECV", alias = "recv", alias = "receive")]
    Recv,
}

impl Direction {
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Send => Self::Recv,
            Self::Recv => Self::Send,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Send => "SEND",
            Self::Recv => "RECV",
        })
    }
}
