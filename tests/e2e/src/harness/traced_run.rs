//! One run of the bed under `ncclflow record`, with everything that can bear witness of it.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "part of tests, which fail by panicking")]

use std::{fs, path::Path};

use super::{bed::Bed, exported, programs, recorder::Recorder, stripped};
use crate::{
    compare,
    tracer::Trace,
    truth::{debug_log::DebugLog, plugin::PluginTruth, transfer_log::TransferLog},
};
use test_support::root;

/// One run of the bed under the tracer.
#[derive(Debug)]
pub struct TracedRun {
    folder: tempfile::TempDir,
    pub n_ranks: u32,
    /// As the bed told them: one for each rank, or one for all.
    pub pids: Vec<u32>,
}

/// What of a run there is to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    Yes,
    /// NCCL has the interface from 2.23.
    No,
}

impl TracedRun {
    /// Attaches to a bed that is already running, lets it go, and waits for both. `None` if the
    /// machine lacks something.
    pub fn new(version: &str, plugin: Plugin, arguments: &[&str]) -> Option<Self> {
        Self::traced(&[], version, plugin, arguments)
    }

    /// With these options of `ncclflow record`.
    pub fn traced(options: &[&str], version: &str, plugin: Plugin, arguments: &[&str]) -> Option<Self> {
        Self::of(&programs::nccl(version)?, options, plugin, arguments)
    }

    /// The same of a copy of the library without symbols and debugging information.
    pub fn of_stripped(options: &[&str], version: &str, plugin: Plugin, arguments: &[&str]) -> Option<Self> {
        let library = programs::nccl(version)?;
        let folder = tempfile::tempdir().unwrap();
        let copy = stripped::copy(&library, folder.path(), &["--strip-all"]).unwrap();
        // The bed itself looks for symbols.
        let symbols = library.display().to_string();
        let all: Vec<&str> = ["--symbols", &symbols].into_iter().chain(arguments.iter().copied()).collect();
        Self::of(&copy, options, plugin, &all)
    }

    fn of(library: &Path, options: &[&str], plugin: Plugin, arguments: &[&str]) -> Option<Self> {
        let (ncclflow, bed) = (programs::ncclflow()?, programs::bed()?);
        let profiler = programs::truth_profiler()?;
        if !root() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::create_dir(folder.path().join("truth")).unwrap();
        fs::create_dir(folder.path().join("log")).unwrap();
        let environment = [
            format!("NCCL_PROFILER_PLUGIN={}", profiler.display()),
            format!("NCCLFLOW_TRUTH_DIR={}", path("truth")),
        ];
        let (transfers, log) = (path("transfers"), path("log/%p"));
        let mut all = vec!["--transfer-log", &transfers, "--debug-file", &log];
        if plugin == Plugin::Yes {
            all.extend(environment.iter().flat_map(|variable| ["--env", variable]));
        }
        all.extend(arguments);
        let mut bed = Bed::start(&bed, library, folder.path(), &all).unwrap();
        let out = folder.path().join("out");
        // All lines are compared.
        let mut recording = vec!["--strict", "--files-limit", "1T"];
        recording.extend(options);
        let recorder = Recorder::start(&ncclflow, &bed.pid_list(), &out, &recording).unwrap();
        bed.go().unwrap();
        let (status, summary) = bed.finish().unwrap();
        assert!(
            status.success() && summary.ok && summary.checked_elements > 0,
            "the job's results changed: {summary:?}"
        );
        // The targets have exited, and that ends the recording.
        let (status, said) = recorder.finish().unwrap();
        assert!(status.success(), "{said}");
        Some(Self { folder, n_ranks: bed.ready.nranks, pids: bed.ready.pids.clone() })
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn trace(&self) -> Trace {
        Trace::read(&self.folder.path().join("out")).unwrap()
    }

    pub fn transfers(&self) -> TransferLog {
        TransferLog::read(&self.folder.path().join("transfers"), self.n_ranks).unwrap()
    }

    pub fn plugin(&self) -> PluginTruth {
        PluginTruth::read(&self.folder.path().join("truth")).unwrap()
    }

    pub fn log(&self) -> DebugLog {
        DebugLog::read_directory(&self.folder.path().join("log")).unwrap()
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
        self.check_export();
    }

    /// An export makes the same files, byte for byte.
    pub fn check_export(&self) {
        exported::check(&programs::ncclflow().unwrap(), &self.folder.path().join("out"));
    }

    /// `flow_rank` holds what the two other files hold.
    pub fn check_aggregates(&self) {
        let mut seen = 0;
        for folder in fs::read_dir(self.folder.path().join("out")).unwrap().map(Result::unwrap) {
            if !folder.path().is_dir() || folder.file_name() == "recording" {
                continue;
            }
            for rank in 0..self.n_ranks {
                let read = |name: String| fs::read_to_string(folder.path().join(name)).unwrap();
                let aggregate: serde_json::Value =
                    serde_json::from_str(&read(format!("flow_rank{rank}.json"))).unwrap();
                let steps = read(format!("flow_steps_rank{rank}.jsonl"));
                let flows = read(format!("proxy_flow_rank{rank}.jsonl"));
                let first: serde_json::Value = serde_json::from_str(flows.lines().next().unwrap()).unwrap();
                assert_eq!(aggregate["rank"], rank);
                assert_eq!(aggregate["meta"], first);
                let all = aggregate["steps"].as_array().unwrap();
                assert_eq!(all.len(), steps.lines().count());
                let grouped: usize = aggregate["ops"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|op| op["steps"].as_array().unwrap().len())
                    .sum();
                assert_eq!(grouped, all.len());
                seen += all.len();
            }
        }
        assert!(seen > 0);
    }
}
