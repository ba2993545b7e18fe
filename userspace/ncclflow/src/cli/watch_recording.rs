//! `ncclflow watch --level`: a recording beside the watch, by `ncclflow record` in a process of its own. What
//! becomes of it changes nothing in the watch.

use std::{
    env,
    ffi::OsString,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum as _};
use flow::session::Level;
use inspect::gpu;
use rustix::process::{Pid, Signal, kill_process};

use super::quantities::{seconds, size_from};

/// Beginning of the names of variables that are options.
const VARIABLES: &str = "NCCLFLOW_";
/// Time within which it ends: probes are detached.
const ENDS_WITHIN: Duration = Duration::from_mins(2);
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, Args)]
pub struct RecordingArgs {
    /// Also record, with probes, as `ncclflow record` does; needs -o
    ///
    /// Without it no probe is placed.
    #[arg(help_heading = "Recording", long, value_enum, requires = "output")]
    pub level: Option<Level>,

    /// New or empty folder to record to
    #[arg(help_heading = "Recording", short, long, value_name = "DIR", requires = "level")]
    pub output: Option<PathBuf>,

    /// A new window every TIME
    #[arg(help_heading = "Recording", hide_short_help = true, long, value_name = "TIME", default_value = "5m", value_parser = seconds, requires = "level")]
    pub rotate: Duration,

    /// Most that DIR may take on the disk; the oldest windows go
    ///
    /// K, M, G, T; without a letter, MiB.
    #[arg(help_heading = "Recording", hide_short_help = true, long, value_name = "SIZE", default_value = "20G", value_parser = size_from(1 << 20, 1 << 20), requires = "level")]
    pub max_size: u64,
}

impl RecordingArgs {
    /// Starts the recording of these processes, if one is wanted; of all, where none is named.
    pub(super) fn start(&self, pids: &[u32]) -> Result<Option<Recording>> {
        let Some((level, output)) = self.level.zip(self.output.as_ref()) else { return Ok(None) };
        let level = level.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let mut words: Vec<OsString> =
            ["record", "--ends-with-parent", "--compress", "--level", &level, "-o"]
                .map(OsString::from)
                .into();
        words.push(output.into());
        words.extend(["--rotate".into(), format!("{}ms", self.rotate.as_millis()).into()]);
        words.extend(["--max-size".into(), format!("{}K", self.max_size / 1024).into()]);
        if pids.is_empty() {
            words.push("--all".into());
        }
        words.extend(pids.iter().flat_map(|pid| ["-p".into(), pid.to_string().into()]));
        let own = env::current_exe().context("finding our own program")?;
        // What it says goes where we say ours.
        let mut child = Command::new(own);
        // Options that variables give are those of the watch, and so is the service's own socket.
        let is_ours = |name: &OsString| {
            let name = name.to_string_lossy();
            (name.starts_with(VARIABLES) && name != gpu::LIBRARY_VARIABLE)
                || watch::SERVICE_VARIABLES.contains(&name.as_ref())
        };
        for (name, _) in env::vars_os().filter(|(name, _)| is_ours(name)) {
            child.env_remove(name);
        }
        let child = child.args(words).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Some(Recording { child: child.context("starting a recording")?, ended: None }))
    }
}

/// A running recording. Ended when dropped.
#[derive(Debug)]
pub(super) struct Recording {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Recording {
    /// Tells once that it has ended by itself.
    pub(super) fn look(&mut self) -> Option<String> {
        if self.ended.is_some() {
            return None;
        }
        self.ended = self.child.try_wait().ok().flatten();
        self.ended.map(|status| format!("the recording has ended ({status}): nothing is recorded any more"))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.ended.is_some() {
            return;
        }
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + ENDS_WITHIN;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(PAUSE);
        }
    }
}
