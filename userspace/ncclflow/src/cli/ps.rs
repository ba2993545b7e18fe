//! `ncclflow ps`

use std::{
    io::{IsTerminal as _, Write as _, stdout},
    thread,
    time::Duration,
};

use anyhow::Result;
use clap::Args;

use super::{
    Versioned,
    exit::Exit,
    fleet_args::{FleetArgs, RemoteWords, ask},
    progress::reading,
    quantities::seconds,
    shared_args::{DebugArgs, FilterArgs},
    terminal,
    whom::none_matched,
    write_json_line, write_report,
};
use crate::fleet::Gathered;
use dump::ps::{Lister, PsOptions, PsReport, render};
use inspect::{
    layout_cache::{LayoutCache, default_folder},
    memory::ScanLimits,
};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow ps                             every process that has NCCL mapped
  ncclflow ps --json | jq '.processes[].pid'
  ncclflow ps --user ann --nccl-version 2.27
  ncclflow ps --watch 2                   again and again, with the collectives
                                          that were launched meanwhile
  ncclflow ps --watch 2 --no-comms
  ncclflow ps --hosts node[01-16]         of these hosts, asked by ssh

NCCL is found under any name, in containers, and linked statically (by its version string). docs/OUTPUT.md \
has the JSON's schema. Without root you see your own processes, and how many others there are.")]
pub struct PsArgs {
    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub fleet: FleetArgs,

    /// Do not look for communicators in memory: faster
    #[arg(long)]
    pub no_comms: bool,

    /// List again every TIME (2, 500ms, 1m), until Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = seconds, conflicts_with = "fleet")]
    pub watch: Option<Duration>,

    /// All that was found, as JSON; with --watch an object a line
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub debug: DebugArgs,

    /// Longest time to look through the memory of each process
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = seconds)]
    pub max_seconds: Duration,
}

impl PsArgs {
    /// Returns what ncclflow does on other hosts.
    fn remote_words(&self) -> RemoteWords {
        let mut words = RemoteWords::of(&["ps", "--json"]);
        self.filter.add_to(&mut words);
        words.add_flag("no-comms", self.no_comms);
        words.add("max-seconds", [self.max_seconds.as_secs().max(1)]);
        self.debug.add_to(&mut words);
        words
    }
}

pub(super) fn run(args: &PsArgs) -> Result<Exit> {
    if let Some(fleet) = args.fleet.fleet()? {
        let Gathered { answers, not_read } = ask(&fleet, &args.remote_words())?;
        show(&PsReport { hosts_not_read: not_read, ..dump::ps::merge(answers) }, args)?;
        return Ok(Exit::Done);
    }
    let options = PsOptions {
        filter: args.filter.filter(),
        communicators: !args.no_comms,
        limits: ScanLimits { time: args.max_seconds, ..ScanLimits::default() },
        debug_files: args.debug.apply(),
    };
    // Without a cache everything is resolved anew, which is no failure.
    let cache = default_folder().and_then(|path| LayoutCache::open(&path).ok());
    let mut lister = Lister::new(options, cache);
    loop {
        let report = reading("", |line| lister.list(&mut |progress| line.scan(progress)))?;
        if report.processes.is_empty() && !args.json && !args.filter.filter().is_empty() {
            writeln!(terminal::out(), "{}", none_matched())?;
        } else {
            show(&report, args)?;
        }
        let Some(pause) = args.watch else { return Ok(Exit::Done) };
        thread::sleep(pause);
    }
}

fn show(report: &PsReport, args: &PsArgs) -> Result<()> {
    if args.json && args.watch.is_some() {
        return write_json_line(&mut terminal::out(), &Versioned::of(report));
    }
    write_report(args.json, &Versioned::of(report), |out| {
        let is_terminal = stdout().is_terminal();
        if is_terminal && args.watch.is_some() {
            // Home, and clear to the end of the screen.
            stdout().write_all(b"\x1b[H\x1b[J")?;
        }
        Ok(write!(out, "{}", render(report, terminal::width()))?)
    })
}
