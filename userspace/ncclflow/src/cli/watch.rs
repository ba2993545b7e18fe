//! `ncclflow watch`

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Write as _, stdout},
    net::SocketAddr,
    path::PathBuf,
    sync::mpsc::{self, Receiver, SyncSender},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use flow::text::{age, ago, column_widths, counted, cut_right, joined, number, plain};
use inspect::{
    gpu::{self, GpuSamples},
    privileges,
    process::denied_remedy,
    resolver::{self, Unseen},
};
use rustix::thread::CapabilitySet;
use trace::{
    health::{Health, Subject},
    record::StopHandle,
};
use watch::{
    AlertKind, Book, Budget, CommState, Event, EventType, JobView, Observer, OwnState, Settings, WatchOptions,
};

use crate::views::metrics::{MetricsServer, Watched, WatchedMetrics};

use super::{
    exit::Exit,
    quantities::{each, seconds, size_from},
    record_groups::metrics_address,
    shared_args::{DebugArgs, LookedAtArgs},
    signals::{self, with_signals},
    terminal, top,
    watch_recording::{Recording, RecordingArgs},
    whom::one_is_there,
    write_json_line,
};

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  ncclflow watch                          every job of this host: a line a
                                          minute, and alerts
  ncclflow watch -p $(pgrep -d, -f train.py) --table
  ncclflow watch --all --metrics 9690 --dump-to /var/lib/ncclflow/dumps
                                          a service: metrics, and a dump at
                                          each alert
  ncclflow watch --all --level flow -o /var/tmp/flows
                                          it also records, with probes

Without --level it places no probe and writes nothing into a process: NCCL's counters are read from \
memory. docs/WATCH.md has the alerts. Needs root, or CAP_SYS_PTRACE.")]
#[command(after_long_help = "\
More examples:
  ncclflow watch --all --json | jq 'select(.event == \"begin\")'
  ncclflow watch --all --exec /etc/ncclflow/alert
                                          a program of yours that has each
                                          alert as JSON on its standard input

Alerts: hang, gone, slow, slower, error, blind; docs/WATCH.md says when each begins and ends. The watch \
ends with Ctrl-C, or when all processes of -p have ended.

Each option can be given by a variable: NCCLFLOW_METRICS=9690 is --metrics 9690.")]
pub struct WatchArgs {
    #[command(flatten)]
    pub whom: LookedAtArgs,

    /// Time between two readings
    #[arg(short, long, hide_short_help = true, value_name = "TIME", default_value = "1s", value_parser = seconds)]
    pub interval: Duration,

    /// Time until the end [default: until Ctrl-C]
    ///
    /// Without it, the watch ends with Ctrl-C, or when all processes of -p have ended.
    #[arg(short, long, value_name = "TIME", value_parser = seconds)]
    pub duration: Option<Duration>,

    /// Print events as JSON, a line each
    #[arg(long, conflicts_with = "table")]
    pub json: bool,

    /// Print a table of all ranks at each reading
    #[arg(long)]
    pub table: bool,

    /// Serve metrics for Prometheus: 9690, or 10.0.0.5:9690
    ///
    /// At http://ADDR/metrics (docs/METRICS.md). A port alone is of this host alone.
    #[arg(long, value_name = "ADDR", value_parser = metrics_address)]
    pub metrics: Option<SocketAddr>,

    /// Keep a dump of the job at each alert in this folder
    #[arg(long, value_name = "DIR")]
    pub dump_to: Option<PathBuf>,

    /// Most dumps in the folder; the oldest go
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 50, requires = "dump_to")]
    pub max_dumps: usize,

    /// Most bytes of all dumps
    ///
    /// K, M, G, T; without a letter, MiB.
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size_from(1 << 20, 1 << 20), requires = "dump_to")]
    pub max_dump_size: u64,

    /// Run this program at the beginning and the end of each alert
    ///
    /// It has the event as JSON on its standard input. A path, without arguments, that only root may write
    /// to.
    #[arg(long, value_name = "PROGRAM")]
    pub exec: Option<PathBuf>,

    /// Longest time that the program may run
    #[arg(hide_short_help = true, long, value_name = "TIME", default_value = "30s", value_parser = seconds, requires = "exec")]
    pub exec_timeout: Duration,

    /// Shortest time for which a communicator stands before that is a hang
    ///
    /// Five iterations, if that is longer.
    #[arg(hide_short_help = true, long, value_name = "TIME", default_value = "10s", value_parser = seconds)]
    pub hang_after: Duration,

    /// Time after which waiting for a rank that is busy elsewhere is a hang
    ///
    /// It saves a checkpoint, evaluates, compiles or loads data.
    #[arg(hide_short_help = true, long, value_name = "TIME", default_value = "9m", value_parser = seconds)]
    pub waiting_limit: Duration,

    /// Do not ask the GPUs' driver once a second what they do
    #[arg(long, hide_short_help = true)]
    pub no_gpus: bool,

    #[command(flatten)]
    pub recording: RecordingArgs,

    #[command(flatten)]
    pub debug: DebugArgs,
}

pub(super) fn run(args: &WatchArgs) -> Result<Exit> {
    if let Some(what) = gpu::not_known().filter(|_| !args.no_gpus) {
        tell!("{what}");
    }
    let gpus = (!args.no_gpus).then(GpuSamples::start).transpose().context("starting a thread")?;
    let gpus = gpus.unwrap_or_default();
    let options = WatchOptions {
        choice: args.whom.choice(),
        interval: args.interval,
        settings: Settings {
            least: args.hang_after,
            waiting_limit: args.waiting_limit,
            ..Settings::default()
        },
        debug_files: args.debug.apply(),
        gpus: gpus.clone(),
        dump_to: args
            .dump_to
            .clone()
            .map(|path| (path, Budget { dumps: args.max_dumps.max(1), bytes: args.max_dump_size })),
        exec: args.exec.clone().map(|program| (program, args.exec_timeout)),
    };
    let health = Health::of(Subject::Watching);
    let metrics = args.metrics.map(|address| -> Result<(WatchedMetrics, MetricsServer)> {
        let metrics = WatchedMetrics::new(gpus);
        let server = MetricsServer::start(address, metrics.clone(), &health)?;
        tell!("metrics at http://{}/metrics", server.address);
        Ok((metrics, server))
    });
    let (metrics, server) = metrics.transpose()?.unzip();
    if args.recording.level.is_some() && !args.whom.is_given() {
        bail!("--level sets probes: say in which processes, by -p PID or --all");
    }
    let recorded = each(&args.whom.pids);
    one_is_there(&recorded)?;
    let is_denied = |pid: &u32| matches!(resolver::look(*pid), Err(Unseen::Denied));
    if !recorded.is_empty() && recorded.iter().all(is_denied) {
        bail!("cannot inspect {}: {}", counted(recorded.len(), "process"), denied_remedy());
    }
    let recording = args.recording.start(&recorded)?;
    let args = args.clone();
    let work = move |stop: &StopHandle| {
        let ends = args.duration.map(|duration| Instant::now() + duration);
        let (output, is_ready, launched) = (Output::start()?, false, BTreeMap::new());
        let mut shown = Shown {
            args: &args,
            stop,
            health: &health,
            output,
            ends,
            metrics,
            recording,
            is_ready,
            launched,
        };
        let watched = watch::watch(options, &mut shown);
        health.end_recording();
        if watched.is_ok() && !shown.is_over() {
            tell!("{}", top::ENDED);
        }
        watched
    };
    with_signals(work, || {})?;
    drop(server);
    Ok(Exit::Done)
}

/// Most writes that wait for who reads standard output, and time that the end waits for that.
const WAITING: usize = 1024;
const AT_END: Duration = Duration::from_secs(2);

/// Standard output, written by a thread: the loop waits for no reader.
struct Output {
    /// `None` at the end.
    writes: Option<SyncSender<Vec<u8>>>,
    /// Disconnected when the thread has written all.
    written: Receiver<()>,
    /// Writes that found no room since the last that did.
    left_out: u64,
}

impl Output {
    fn start() -> Result<Self> {
        let (writes, taken) = mpsc::sync_channel::<Vec<u8>>(WAITING);
        let (done, written) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name("ncclflow-out".to_owned());
        thread.spawn(move || {
            let _done = done;
            privileges::keep_only(CapabilitySet::empty());
            for bytes in taken {
                // Nobody may be there to read it.
                let _ = stdout().write_all(&bytes).and_then(|()| stdout().flush());
            }
        })?;
        Ok(Self { writes: Some(writes), written, left_out: 0 })
    }

    fn write(&mut self, bytes: Vec<u8>) {
        let is_taken = self.writes.as_ref().is_some_and(|writes| writes.try_send(bytes).is_ok());
        if !is_taken {
            self.left_out += 1;
        } else if self.left_out > 0 {
            tell!("{} writes to standard output are left out: nobody read them", self.left_out);
            self.left_out = 0;
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.writes = None;
        let _ = self.written.recv_timeout(AT_END);
    }
}

/// Shows what the loop tells.
struct Shown<'a> {
    args: &'a WatchArgs,
    stop: &'a StopHandle,
    health: &'a Health,
    output: Output,
    ends: Option<Instant>,
    metrics: Option<WatchedMetrics>,
    recording: Option<Recording>,
    is_ready: bool,
    /// Collectives launched at the reading before, and when that was, by communicator and rank.
    launched: BTreeMap<(String, u32, u32), (u64, Duration)>,
}

impl Observer for Shown<'_> {
    fn event(&mut self, event: &Event) {
        if self.args.json {
            let mut line = Vec::new();
            if write_json_line(&mut line, event).is_ok() {
                self.output.write(line);
            }
            return;
        }
        if event.body.event == EventType::Status && self.args.table {
            return;
        }
        tell!("{}", line(event));
    }

    fn reading(&mut self, book: &Book, own: &OwnState, now: Duration) {
        if !self.is_ready {
            self.is_ready = true;
            self.health.begin_recording();
            tell!("watching {}{}", counted(own.processes, "process"), signals::end(self.args.duration));
        }
        let sight = own.sight;
        let blind = sight.problem().filter(|_| sight.is_blind() && own.processes == 0);
        self.health.set_sight(sight.denied, blind);
        if let Some(metrics) = &self.metrics {
            metrics.put(Watched::of(book, own, now));
        }
        if self.args.table {
            self.table(book, now);
        }
    }

    fn lost(&mut self) -> Option<String> {
        self.recording.as_mut()?.look()
    }

    fn wait(&mut self, longest: Duration) -> bool {
        self.health.pass();
        if !self.is_over() {
            thread::sleep(longest);
        }
        self.is_over()
    }
}

impl Shown<'_> {
    /// Tells whether the end was asked for, or is due.
    fn is_over(&self) -> bool {
        self.stop.is_stopped() || self.ends.is_some_and(|ends| Instant::now() >= ends)
    }

    fn table(&mut self, book: &Book, now: Duration) {
        const HEADINGS: [&str; 9] =
            ["JOB", "COMM", "NAME", "RANK", "PID", "GPU", "COLL/S", "BEHIND", "MOVED"];
        let (mut lines, mut launched) = (vec![HEADINGS.map(str::to_owned)], BTreeMap::new());
        for JobView { job, open, comms, .. } in book.view() {
            let open: Vec<&str> = open.into_iter().map(AlertKind::name).collect();
            let name = if open.is_empty() { job.name } else { format!("{} [{}]", job.name, open.join(",")) };
            for comm in comms {
                self.rows(&name, comm, now, &mut lines, &mut launched);
            }
        }
        self.launched = launched;
        // From the upper left corner on, and nothing below.
        let mut text = if stdout().is_terminal() { "\x1b[H\x1b[J".to_owned() } else { String::new() };
        let widths = column_widths(&lines);
        // A column that says nothing, as NAME of communicators without one, takes no room.
        let says =
            |column: usize| lines.iter().skip(1).any(|line| line.get(column).is_some_and(|cell| cell != "-"));
        let said: Vec<bool> = (0..HEADINGS.len()).map(|column| lines.len() == 1 || says(column)).collect();
        for line in &lines {
            let cells = line.iter().zip(&widths).zip(&said).filter(|(_, says)| **says);
            let cells = cells.map(|((cell, width), _)| format!("{:<width$}", plain(cell)));
            text.push_str(&cut_right(joined(cells, "  ").trim_end(), terminal::width()));
            text.push('\n');
        }
        text.push('\n');
        self.output.write(text.into_bytes());
    }

    fn rows(
        &self,
        job: &str,
        comm: &CommState,
        now: Duration,
        lines: &mut Vec<[String; 9]>,
        launched: &mut BTreeMap<(String, u32, u32), (u64, Duration)>,
    ) {
        let most = comm.launched();
        let dash = || "-".to_owned();
        for rank in comm.here() {
            let pid = rank.process.key.pid;
            let key = (comm.key.hash.clone(), rank.info.rank, pid);
            let count = rank.counts.launched();
            let before = self.launched.get(&key);
            let rate = count.zip(before).map_or_else(dash, |(count, (before, at))| {
                let seconds = now.saturating_sub(*at).as_secs_f64();
                #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
                let rate = count.saturating_sub(*before) as f64 / seconds.max(1e-3);
                number(rate)
            });
            if let Some(count) = count {
                launched.insert(key, (count, now));
            }
            lines.push([
                job.to_owned(),
                comm.key.hash.clone(),
                comm.name.clone().unwrap_or_else(dash),
                format!("{}/{}", rank.info.rank, comm.key.n_ranks),
                pid.to_string(),
                rank.info.gpu.map_or_else(dash, |gpu| gpu.to_string()),
                rate,
                count.map_or_else(dash, |count| most.saturating_sub(count).to_string()),
                moved(comm.was_seen_to_move, comm.stands_for(now)),
            ]);
        }
    }
}

/// Writes how long ago a communicator moved, which stands for so long: of one that was not seen to move, that it
/// is longer ago.
fn moved(was_seen: bool, stands: Duration) -> String {
    match (was_seen, stands.as_secs()) {
        (true, _) => ago(stands.as_secs_f64()),
        (false, 0) => "-".to_owned(),
        (false, seconds) => format!(">{}", age(seconds)),
    }
}

/// Writes an event as a line for people.
fn line(event: &Event) -> String {
    let body = &event.body;
    let job = body.job.as_ref().map_or_else(String::new, |job| {
        format!(
            "job {} ({}, {}, {}): ",
            job.name,
            job.user,
            counted(job.pids.len(), "process"),
            counted(job.communicators, "communicator")
        )
    });
    let kind = body.kind.map_or_else(String::new, |kind| format!("{} ", kind.name().to_uppercase()));
    let what = match body.event {
        EventType::Begin => format!("{kind}begins: "),
        EventType::End => format!("{kind}ends: "),
        EventType::Status => String::new(),
        EventType::Notice => "ncclflow: ".to_owned(),
    };
    let next = body.next.as_ref().map_or_else(String::new, |next| format!(" Next: {next}."));
    let dump = event.dump.as_ref().map_or_else(String::new, |dump| format!(" Dump: {dump}"));
    let stop = if next.is_empty() || body.sentence.ends_with('.') { "" } else { "." };
    format!("{job}{what}{}{stop}{next}{dump}", body.sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_seen_to_move_did_so_longer_ago_than_it_is_watched() {
        let shown = |was_seen, seconds| moved(was_seen, Duration::from_secs(seconds));
        assert_eq!([shown(true, 1), shown(true, 65)], ["now", "65s"]);
        assert_eq!([shown(false, 0), shown(false, 5), shown(false, 65)], ["-", ">5s", ">1m05s"]);
    }
}
