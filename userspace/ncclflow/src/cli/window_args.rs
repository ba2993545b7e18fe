//! Parts of a recording that have folders of their own.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::args::seconds;
use crate::record::WindowOptions;

#[derive(Clone, Debug, Default, Args)]
pub struct WindowArgs {
    /// Record only while FILE exists: each time a window with a folder of its own; several in one run
    #[arg(help_heading = "Windows", long, value_name = "FILE")]
    pub window_flag: Option<PathBuf>,

    /// Close a window when it has N ops (lines of proxy_flow, or calls), and do not open one
    /// again before FILE has gone
    #[arg(help_heading = "Windows", long, value_name = "N", requires = "window_flag", value_parser = clap::value_parser!(u64).range(1..))]
    pub window_max_ops: Option<u64>,

    /// Close a window after SECS, and do not open one again before FILE has gone
    #[arg(help_heading = "Windows", long, value_name = "SECS", requires = "window_flag", value_parser = seconds)]
    pub window_max_secs: Option<Duration>,

    /// Record window after window: a new one every SECS, and whenever SIGUSR1 comes
    #[arg(help_heading = "Windows", long, value_name = "SECS", conflicts_with = "window_flag", value_parser = seconds)]
    pub rotate: Option<Duration>,
}

impl WindowArgs {
    /// As the library takes it; `None`: the recording is one.
    pub fn options(&self) -> Option<WindowOptions> {
        let max_duration = self.window_max_secs.or(self.rotate);
        (self.window_flag.is_some() || self.rotate.is_some()).then(|| WindowOptions {
            flag: self.window_flag.clone(),
            max_ops: self.window_max_ops,
            max_duration,
        })
    }
}
