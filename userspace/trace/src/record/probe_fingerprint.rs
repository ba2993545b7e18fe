//! Meaning of a library's probes and their records. Libraries for which all of that is equal share their
//! cookies: a hundred virtual environments with one NCCL cost as much as one.
//!
//! The build-id does not tell: anybody can write one into a file.

use crate::kernel::probe::Probe;
use flow::wire::ProbeKind;

use super::setup::LibraryInUse;

/// Meaning of a library's records. If two are equal, a record of either decodes the same by both.
#[derive(Debug)]
pub(super) struct Meaning {
    probes: Vec<Probe>,
    /// Kinds of records and decoders, as a recording has them, and the place of a communicator's identity.
    records: String,
}

impl Meaning {
    /// Returns `None` if that cannot be determined; nothing is shared then.
    pub(super) fn of<'a>(library: &'a LibraryInUse) -> Option<Self> {
        let probes = &library.probes.probes;
        let kinds = |probe: &'a Probe| {
            let parts = probe.walk.iter().flat_map(|walk| &walk.parts);
            (&probe.kind, parts.map(|part| &part.kind).collect())
        };
        let kinds: Vec<(&ProbeKind, Vec<&ProbeKind>)> = probes.iter().map(kinds).collect();
        let decoder = &*library.decoder;
        let records = serde_json::to_string(&(kinds, decoder)).ok()?;
        Some(Self { probes: probes.clone(), records: format!("{records}{:?}", decoder.communicator) })
    }

    /// Returns where the probes are, and what they read.
    fn code(&self) -> impl Iterator<Item = impl PartialEq> {
        self.probes.iter().map(|probe| {
            let walk = probe.walk.as_ref().map(|program| {
                let parts: Vec<_> = program.parts.iter().map(|part| (part.name, part.plan)).collect();
                (parts, program.walk)
            });
            (&probe.symbol, probe.file_offset, probe.place(), probe.plan, walk)
        })
    }
}

impl PartialEq for Meaning {
    fn eq(&self, other: &Self) -> bool {
        self.records == other.records && self.code().eq(other.code())
    }
}
