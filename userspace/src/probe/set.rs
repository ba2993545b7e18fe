//! All probes of one library, and those that it does not allow.

use serde::Serialize;

use super::{
    api_probes::{api_entry, api_line, api_return},
    lookup::Compiled,
    op_probes::{api_call, proxy_op, proxy_peer},
    plan_builder::FinishedPlan,
    spans::ProbeKind,
    step_probes::{era, proxy_step},
};
use crate::{
    elf::FileOffset,
    nccl::{ApiFunction, ApiKind},
    symbols::{Function, Resolution},
};

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Calls of the API: one probe hit each.
    Api,
    /// Ops, as they are planned and posted.
    Flow,
    /// And every message of the network proxy, as it happens.
    Steps,
}

/// Where in its function a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbePlace {
    /// One trap a hit.
    Entry,
    /// One trap more at the entry, to divert the return, unless a probe is there anyway.
    Return,
}

impl Probe {
    pub fn place(&self) -> ProbePlace {
        match self.kind {
            ProbeKind::ApiReturn(_) => ProbePlace::Return,
            _ => ProbePlace::Entry,
        }
    }
}

/// One probe of one library.
#[derive(Clone, Debug)]
pub struct Probe {
    /// NCCL's name of the function.
    pub function: String,
    /// The symbol that is probed, clone suffix and all.
    pub symbol: String,
    pub file_offset: FileOffset,
    pub kind: ProbeKind,
    pub plan: FinishedPlan,
}

/// A probe that this library does not allow.
#[derive(Clone, Debug, Serialize)]
pub struct MissingProbe {
    pub function: String,
    pub why: String,
    pub lost: String,
}

/// All probes of one library.
#[derive(Clone, Debug, Default)]
pub struct ProbeSet {
    pub probes: Vec<Probe>,
    pub missing: Vec<MissingProbe>,
}

/// Compiles the probes that a level needs.
pub fn compile(resolution: &Resolution, level: Level) -> ProbeSet {
    let mut set = ProbeSet::default();
    if level == Level::Api {
        add(
            &mut set,
            resolution,
            "ncclEnqueueCheck",
            "the calls of the API: nothing can be recorded",
            |function| api_line(resolution, function),
        );
        return set;
    }
    let layouts = &resolution.layouts;
    add(&mut set, resolution, "ncclProxySaveOp", "every proxy op: nothing can be recorded", |function| {
        proxy_op(resolution, function)
    });
    add(&mut set, resolution, "SaveProxy", "the peers and transports of every op", |function| {
        proxy_peer(resolution, function)
    });
    if layouts.field("ncclProxyOp", "task").is_none() {
        add(
            &mut set,
            resolution,
            "ncclEnqueueCheck",
            "the API function, count and data type of ops",
            |function| api_call(resolution, function),
        );
    }
    if level == Level::Steps {
        for &(name, hook) in era(resolution) {
            add(&mut set, resolution, name, "measured times and sizes of messages", |function| {
                proxy_step(resolution, function, hook)
            });
        }
    }
    set
}

/// Adds the probes of `--returns`: at the return of every exported function that the library has, and at the entry of those
/// that do not come through `ncclEnqueueCheck`.
pub fn add_api_returns(set: &mut ProbeSet, resolution: &Resolution) {
    for function in ApiFunction::all() {
        let name = function.name();
        // No version has all of them.
        if resolution.functions(name).is_empty() {
            continue;
        }
        if function.kind() == ApiKind::Manages {
            add(set, resolution, name, "how long it takes", |_| api_entry(resolution.machine, function));
        }
        add(set, resolution, name, "its result, and how long it takes", |_| {
            api_return(resolution.machine, function)
        });
    }
}

fn add(
    set: &mut ProbeSet,
    resolution: &Resolution,
    name: &str,
    lost: &str,
    compile: impl Fn(&Function) -> Compiled,
) {
    let mut missing = |why: String| {
        set.missing.push(MissingProbe { function: name.to_owned(), why, lost: lost.to_owned() });
    };
    let functions = resolution.functions(name);
    if functions.is_empty() {
        missing("the library has no such symbol".to_owned());
    }
    for function in functions {
        match compile(function) {
            Ok((plan, kind)) => set.probes.push(Probe {
                function: name.to_owned(),
                symbol: function.symbol.clone(),
                file_offset: function.file_offset,
                kind,
                plan,
            }),
            Err(lack) => missing(lack.to_string()),
        }
    }
}
