//! What the records of a probe mean.

use std::sync::Arc;

use flow::{decode::Decoder, schema::HostInfo, wire::ProbeKind};
use serde::{Deserialize, Serialize};

/// What the records of one cookie mean, and whose they are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Binding {
    pub kind: ProbeKind,
    /// That of its library.
    pub decoder: Arc<Decoder>,
    /// Nothing of parts of a walk, which serve all processes of a library, and of probes that several
    /// processes share.
    pub host: Option<HostInfo>,
}
