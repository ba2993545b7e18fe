//! Which way data goes.

use serde::{Deserialize, Serialize};

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Direction {
    Recv,
    Send,
}

impl Direction {
    pub fn name(self) -> &'static str {
        match self {
            Self::Recv => "RECV",
            Self::Send => "SEND",
        }
    }
}
