//! Meaning of a library's probes and their records. Libraries for which all of that is equal share their
//! cookies: a hundred virtual environments with one NCCL cost as much as one.
//!
//! The build-id does not tell: anybody can write one into a file.

use crate::kernel::probe::Probe;
use flow::{session::ProbePlace, wire::ProbeKind};
use nccl_library::elf::FileOffset;
use ncclflow_common::{FetchPlan, Walk};

use super::setup::LibraryInUse;

/// Meaning of a library's records. If two are equal, a record of either decodes the same by both.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    probes: Vec<ProbeMeaning>,
    /// Kinds of records and decoders, as a recording has them, and the place of a communicator's identity.
    records: String,
}

#[derive(Debug, PartialEq, Eq)]
struct ProbeMeaning {
    symbol: String,
    offset: FileOffset,
    place: ProbePlace,
    plan: FetchPlan,
    walk: Option<WalkMeaning>,
}

#[derive(Debug, PartialEq, Eq)]
struct WalkMeaning {
    head: FetchPlan,
    parts: Vec<(&'static str, FetchPlan)>,
    walk: Walk,
}

impl Meaning {
    /// Returns `None` if that cannot be determined; nothing is shared then.
    pub(super) fn of(library: &LibraryInUse) -> Option<Self> {
        let probes = &library.probes.probes;
        let parts = |probe: &Probe| probe.walk.iter().flat_map(|walk| walk.parts.clone()).collect::<Vec<_>>();
        let kinds: Vec<(ProbeKind, Vec<ProbeKind>)> = probes
            .iter()
            .map(|probe| (probe.kind.clone(), parts(probe).into_iter().map(|part| part.kind).collect()))
            .collect();
        let decoder = &*library.decoder;
        let records = serde_json::to_string(&(kinds, decoder)).ok()?;
        let meaning_of = |probe: &Probe| ProbeMeaning {
            symbol: probe.symbol.clone(),
            offset: probe.file_offset,
            place: probe.place(),
            plan: probe.plan,
            walk: probe.walk.as_ref().map(|program| WalkMeaning {
                head: program.head,
                parts: program.parts.iter().map(|part| (part.name, part.plan)).collect(),
                walk: program.walk,
            }),
        };
        Some(Self {
            probes: probes.iter().map(meaning_of).collect(),
            records: format!("{records}{:?}", decoder.communicator),
        })
    }
}
