//! `ncclflow record`

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};

use super::{
    Versioned,
    exit::Exit,
    quantities::each,
    record_args::RecordArgs,
    record_console::Console,
    signals::with_signals,
    terminal,
    whom::{may_trace, none_matched, one_is_there},
    write_json,
};
use crate::views::metrics::{Exposition, MetricsServer};
use flow::{
    schema::CommunicatorReport,
    session::{
        CallSource, FilesReport, FilesState, Level, ProbePlace, ProbeReport, SessionReport, SessionState,
    },
    text,
};
use inspect::{
    clock::realtime_offset_ns,
    gpu::{self, GpuSamples},
};
use nccl_library::nccl::ApiFunction;
use recording::sinks::LiveStatistics;
use rustix::process::{Signal, set_parent_process_death_signal};
use trace::{
    health::Health,
    record::{Outcome, StopHandle, record},
};

pub(super) fn run(args: &RecordArgs, started: Instant) -> Result<Exit> {
    if args.ends_with_parent {
        set_parent_process_death_signal(Some(Signal::TERM)).context("PR_SET_PDEATHSIG")?;
    }
    may_trace()?;
    one_is_there(&each(&args.pids))?;
    let output = (!args.no_files).then(|| args.output.clone().unwrap_or_else(default_output));
    let live = args.metrics.map(|_| LiveStatistics::default());
    let wants_gpus = !args.no_gpus && (output.is_some() || live.is_some());
    let gpus = wants_gpus.then(GpuSamples::start).transpose().context("starting a thread")?;
    if let Some(what) = gpu::not_known().filter(|_| wants_gpus && !args.quiet) {
        tell!("{what}");
    }
    let options = args.options(started, output.clone(), live.clone(), gpus.clone());
    let serve = |(address, live)| {
        let exposition =
            Exposition::new(live, gpus.unwrap_or_default(), realtime_offset_ns).with_health(&options.health);
        serve(address, exposition, &options.health, args.quiet)
    };
    let metrics = args.metrics.zip(live).map(serve).transpose()?;
    let mut console = Console::new(args, output.clone());
    let work = move |stop: &StopHandle| record(&options, stop, &mut |notice| console.say(&notice));
    let outcome = with_signals(work, || {})?;
    drop(metrics);
    if !args.quiet {
        summarize(&outcome, output.as_deref(), args);
        if outcome.report.targets.is_empty() {
            tell!("{}", none_matched());
        }
    }
    if args.json {
        write_json(&mut terminal::out(), &Versioned::session(&outcome.report))?;
    }
    Ok(if matches!(outcome.report.state, SessionState::WriteFailed | SessionState::Failed) {
        Exit::Failed
    } else if args.strict && (!outcome.report.loss.is_zero() || is_in_the_dark(args, &outcome.report)) {
        Exit::Findings
    } else {
        Exit::Done
    })
}

/// Tells whether processes were not traced, so that what is missing cannot be counted: of the node, those that cannot
/// be seen; of those that were asked for, any.
fn is_in_the_dark(args: &RecordArgs, report: &SessionReport) -> bool {
    let lacks_one =
        || !report.passed_over.is_empty() || report.targets.iter().any(|target| target.untraced.is_some());
    report.processes_denied > 0 || report.processes_hidden || !args.pids.is_empty() && lacks_one()
}

/// Serves metrics. The server starts before anything is attached: if the address is taken, the recording does
/// not begin.
fn serve(address: SocketAddr, exposition: Exposition, health: &Health, quiet: bool) -> Result<MetricsServer> {
    let server = MetricsServer::start(address, exposition, health)?;
    if !quiet {
        let to_all =
            if server.address.ip().is_loopback() { "" } else { ", for whoever reaches this address" };
        tell!("metrics at http://{}/metrics{to_all}", server.address);
    }
    Ok(server)
}

fn default_output() -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    PathBuf::from(format!("ncclflow-{now}"))
}

/// Counts calls that were seen by the arguments of exported functions.
fn calls_by_arguments(report: &SessionReport) -> u64 {
    let is_so = |probe: &&ProbeReport| {
        let library = report.libraries.get(probe.library);
        library.is_some_and(|library| library.calls == Some(CallSource::ExportedFunctions))
            && probe.at == ProbePlace::Entry
            && ApiFunction::try_from(probe.function.clone()).is_ok_and(ApiFunction::communicates)
    };
    report.probes.iter().filter(is_so).map(|probe| probe.delivered).sum()
}

/// Tells which part of the recording the files have, and how the rest is made.
fn tell_files(files: &FilesReport, report: &SessionReport, output: &Path) {
    let why = match files.state {
        FilesState::Limit => "end at their limit (--files-limit, or half of --max-size)",
        FilesState::Stopped => "end where a second signal arrived",
        FilesState::Removed => "were removed (--max-size)",
        FilesState::Failed => "could not be made to the end",
        FilesState::Complete | FilesState::None | FilesState::Unknown => return,
    };
    let records = report.recording.map_or(0, |recording| recording.records);
    tell!(
        "the .jsonl and flow_rank files {why}: {} of {records} records; all of them: ncclflow export {} -f jsonl -o NEW",
        files.records,
        output.display()
    );
}

/// What was seen, of a rank or of several: each operation once, whatever channels it has. `check` and
/// `report` count alike.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    calls: u64,
    collectives: u64,
    sends_receives: u64,
    launches: u64,
    messages: u64,
    on_channels: u64,
}

impl Seen {
    pub(super) fn of<'c>(ranks: impl IntoIterator<Item = &'c CommunicatorReport>) -> Self {
        ranks.into_iter().fold(Self::default(), |all, rank| Self {
            calls: all.calls + rank.api_lines,
            collectives: all.collectives + rank.collectives,
            sends_receives: all.sends_receives + rank.sends_receives,
            launches: all.launches + rank.launches,
            messages: all.messages + rank.flow_steps_lines,
            on_channels: all.on_channels + rank.proxy_flow_lines,
        })
    }

    pub(super) fn told(self, level: Option<Level>, is_verbose: bool) -> String {
        if level == Some(Level::Api) {
            return text::counted(self.calls, "call");
        }
        let launches = text::counted(self.launches, "launch");
        let all = [
            (self.calls, text::counted(self.calls, "call")),
            (self.collectives, text::counted(self.collectives, "collective")),
            (self.sends_receives, format!("{} sends and receives", self.sends_receives)),
            (self.launches, format!("{launches} without proxy operations")),
            (self.messages, text::counted(self.messages, "message")),
        ];
        let mut told: Vec<String> =
            all.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect();
        if told.is_empty() {
            told.push("no operation".to_owned());
        }
        if is_verbose {
            told.push(format!("{} operations × channels", self.on_channels));
        }
        told.join(", ")
    }
}

/// Says why no operation was seen.
fn nothing_seen(report: &SessionReport, window_flag: Option<&Path>) -> String {
    let model = &report.model;
    if let Some(flag) = window_flag {
        return format!("no window was opened: the file `{}` was not there in this time", flag.display());
    }
    if model.unjoined_steps + model.orphan_peers + model.unplanned_posts > 0 {
        return "no NCCL operation began in this time, and messages of earlier ones moved: record for longer than an \
                operation takes"
            .to_owned();
    }
    "no NCCL operation was seen in this time; `ncclflow dump` says whether the processes wait".to_owned()
}

/// `output` is `None` if nothing was written.
fn summarize(outcome: &Outcome, output: Option<&Path>, args: &RecordArgs) {
    let (report, is_verbose) = (&outcome.report, args.verbose);
    // Else it is said that no process was chosen.
    let has_targets = !report.targets.is_empty();
    for rank in &report.communicators {
        if rank.proxy_flow_lines + rank.flow_steps_lines + rank.api_lines + rank.lost_lines == 0 {
            // The files end before its first op.
            continue;
        }
        let seen = Seen::of([rank]).told(report.level, is_verbose);
        tell!("{} rank {}/{} (process {}): {seen}", rank.folder, rank.rank, rank.n_ranks, rank.pid);
    }
    let by_arguments = calls_by_arguments(report);
    if by_arguments > 0 {
        tell!(
            "{by_arguments} calls of libraries whose struct layouts are not known, which have neither \
             communicator nor rank: processes/api_*.jsonl"
        );
    }
    if !report.windows.is_empty() {
        let removed = report.max_size.as_ref().map_or(0, |max_size| max_size.windows_removed);
        let removed =
            if removed > 0 { format!("; {removed} older ones were removed") } else { String::new() };
        let noun = if report.windows.len() == 1 { "window" } else { "windows" };
        tell!("{} {noun}{removed}", report.windows.len());
    } else if report.communicators.is_empty()
        && by_arguments == 0
        && output.is_some()
        && report.model.plans.empty == 0
        && has_targets
    {
        tell!("{}", nothing_seen(report, args.window.window_flag.as_deref()));
    }
    if let (Some(files), Some(output)) = (&report.files, output) {
        tell_files(files, report, output);
    }
    let loss = &report.loss;
    tell!(
        "lost: {} records, {} lines; undecodable: {} records",
        loss.records_lost + loss.records_dropped + loss.records_not_recorded,
        loss.lines_lost,
        loss.records_undecodable
    );
    for lost in text::counts([
        (loss.records_lost, "records found the kernel's buffer full: --buffer-size"),
        (
            loss.records_dropped,
            "records were dropped, as writing the recording did not keep up: --queue-size",
        ),
        (loss.lines_over_max_size, "lines found no room in the folder: --max-size"),
        (
            loss.aggregates_over_max_size,
            "flow_rank files found no room in the folder: `ncclflow export -f jsonl` makes them where there is",
        ),
        (
            loss.windows_late,
            "windows were opened late, as there was no room for them: --max-size, or the disk",
        ),
        (loss.records_unaccounted, "hits unaccounted for"),
        (loss.records_not_recorded, "records are not in the recording: it could not be written"),
    ]) {
        tell!("  {lost}");
    }
    let model = &report.model;
    let cut: Vec<String> = text::counts([
        (model.unplanned_posts, "operations × channels of which the plan was not seen"),
        (model.unposted, "operations × channels that were not seen being queued for the network"),
        (model.unfinished, "operations × channels with messages on their way"),
        (model.orphan_peers, "peers whose operation was not seen"),
        (model.unjoined_steps, "steps of messages whose operation was not seen"),
    ])
    .collect();
    if !cut.is_empty() {
        tell!("cut off by the beginning or the end of the recording: {}", cut.join(", "));
    }
    let nothing_known: Vec<String> = text::counts([
        (model.plans.untold, "kernels on symmetric memory that the library's symbols do not name"),
        (model.plans.empty, "launches of a kind that ncclflow does not know"),
        (
            model.graphs.unknown,
            "launches of CUDA graphs captured before the recording, or not seen to be made",
        ),
        (model.graphs.left_out, "replays of operations beyond those that have lines"),
    ])
    .collect();
    if !nothing_known.is_empty() {
        tell!("launched, and no more is known of them: {}", nothing_known.join(", "));
    }
    if model.proxy_not_known > 0 {
        tell!(
            "not measured: {} operations × channels whose messages another process sends, \
             through another GPU of the node (PXN). Record that process too: its rank is `proxyRank` of \
             the operation's peer; -p takes several processes, --all takes all",
            model.proxy_not_known
        );
    }
    if model.foreign_messages > 0 {
        tell!(
            "{} messages were sent on behalf of other processes (PXN) that were not recorded, or that \
             queued them before the recording began",
            model.foreign_messages
        );
    }
    if model.left_out.ops > 0 {
        tell!(
            "left out by --steps-every, --channels or --min-bytes: {} operations × channels with {} \
             messages",
            model.left_out.ops,
            model.left_out.messages
        );
    }
    if let Some(first) = &report.first_undecodable {
        tell!("the first undecodable record: {first}");
    }
    let left_out = outcome.flow_ranks.left_out;
    if left_out > 0 {
        tell!("flow_rank*.json was not written for {left_out} ranks with very many messages");
    }
}
