//! One run of the bed under `ncclflow record`, with everything that can bear witness of it.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "part of tests, which fail by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    rows::{list, read_json, read_lines},
    stripped,
    world::{DEBUG_LOG, PLUGIN_LOG, TRANSFER_LOG, World},
};
use crate::{
    compare,
    tracer::Trace,
    truth::{debug_log::DebugLog, plugin::PluginTruth, transfer_log::TransferLog},
};

/// One run of the bed under the tracer.
#[derive(Debug)]
pub struct TracedRun {
    world: World,
}

/// What of a run there is to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    Yes,
    /// NCCL has the interface from 2.23.
    No,
}

impl TracedRun {
    /// Attaches with these options of `ncclflow record` to a bed that is already running, lets it go, and waits for
    /// both. `None` if the machine lacks something.
    pub fn new(options: &str, version: &str, plugin: Plugin, workload: &str) -> Option<Self> {
        Some(Self::of(World::start(version, &Self::words(plugin, workload))?, options))
    }

    /// The same of a copy of the library without symbols and debugging information.
    pub fn of_stripped(options: &str, version: &str, plugin: Plugin, workload: &str) -> Option<Self> {
        let copy = |library: &Path, folder: &Path| stripped::copy(library, folder, &["--strip-all"]);
        Some(Self::of(World::of_copy(version, copy, &Self::words(plugin, workload))?, options))
    }

    fn words(plugin: Plugin, workload: &str) -> String {
        let witness = if plugin == Plugin::Yes { PLUGIN_LOG } else { "" };
        format!("{TRANSFER_LOG} {DEBUG_LOG} {witness} {workload}")
    }

    fn of(mut world: World, options: &str) -> Self {
        // All lines are compared.
        world.record_all(&format!("--strict --files-limit 1T {options}"));
        Self { world }
    }

    pub fn folder(&self) -> &Path {
        self.world.folder.path()
    }

    pub fn out(&self) -> PathBuf {
        self.world.out()
    }

    /// As the bed told them: one for each rank, or one for all.
    pub fn pids(&self) -> &[u32] {
        &self.world.bed.ready.pids
    }

    pub fn session(&self) -> Value {
        self.world.session()
    }

    pub fn trace(&self) -> Trace {
        Trace::read(&self.out()).unwrap()
    }

    pub fn transfers(&self) -> TransferLog {
        TransferLog::read(&self.world.path("transfers"), self.world.bed.ready.nranks).unwrap()
    }

    pub fn plugin(&self) -> PluginTruth {
        PluginTruth::read(&self.world.path("truth")).unwrap()
    }

    pub fn log(&self) -> DebugLog {
        self.world.log()
    }

    /// Every check that the run has a witness for.
    pub fn check(&self, plugin: Plugin) {
        let (trace, transfers) = (self.trace(), self.transfers());
        compare::identity(&trace).assert_clean("identity");
        compare::symmetry(&trace).assert_clean("symmetry");
        compare::topology(&trace, &self.log()).assert_clean("topology");
        compare::against_transfers(&trace, &transfers).assert_clean("transfers");
        if plugin == Plugin::Yes {
            let truth = self.plugin();
            compare::witnesses(&truth, &transfers).assert_clean("the witnesses agree with each other");
            compare::against_plugin(&trace, &truth).assert_clean("plugin");
        }
        self.check_aggregates();
        self.world.check_export();
    }

    /// `flow_rank` holds what the two other files hold.
    fn check_aggregates(&self) {
        let mut seen = 0;
        for folder in fs::read_dir(self.out()).unwrap().map(|entry| entry.unwrap().path()) {
            if !folder.is_dir() || folder.ends_with("recording") {
                continue;
            }
            for rank in 0..self.world.bed.ready.nranks {
                let aggregate = read_json(&folder.join(format!("flow_rank{rank}.json")));
                let steps = read_lines(&folder.join(format!("flow_steps_rank{rank}.jsonl")));
                let flows = read_lines(&folder.join(format!("proxy_flow_rank{rank}.jsonl")));
                assert_eq!((&aggregate["rank"], &aggregate["meta"]), (&rank.into(), &flows[0]));
                let all = list(&aggregate["steps"]).len();
                let grouped: usize = list(&aggregate["ops"]).iter().map(|op| list(&op["steps"]).len()).sum();
                assert_eq!((all, grouped), (steps.len(), all));
                seen += all;
            }
        }
        assert!(seen > 0);
    }
}
