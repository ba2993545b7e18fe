//! What the probes of a library collect, and what their records mean. Libraries of which all of that is equal share
//! their cookies: a hundred virtual environments with one NCCL cost those of one.
//!
//! A build-id does not say so: anybody can write one into a file.

use crate::kernel::probe::{Probe, ProbePlace};
use flow::wire::ProbeKind;
use nccl_library::elf::FileOffset;
use ncclflow_common::{FetchPlan, Walk};

use super::setup::LibraryInUse;

/// Equal for two libraries if a record of the one, decoded as one of the other, says the same.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    probes: Vec<ProbeMeaning>,
    /// Kinds of records, and decoders, as a recording has them, and where a communicator says who it is.
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
    /// `None`: it cannot be said, and nothing is shared.
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
