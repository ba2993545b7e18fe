//! Records in, files written: decode → model → sinks. Knows nothing of the kernel, so a replay can drive it
//! too.

use std::{collections::HashMap, mem};

use ncclflow_common::LOSS_MARK;

use super::{
    bindings::SharedBindings,
    gaps::Gaps,
    neighbours::Neighbours,
    output::Output,
    processes::{Ended, Traced, TracedProcess},
};
use crate::{
    capture::Binding,
    kernel::stream::ProbeCounts,
    sinks::{LiveStatistics, SessionFiles, Sink as _},
};
use flow::{
    decode::{DecodeError, Event, RecordView},
    model::{ApiOutput, ModelCounters, Node, Sampling},
    schema::HostInfo,
    wire::ProbeKind,
};

/// What a pipeline needs of probes that several processes share.
#[derive(Clone, Debug)]
pub(super) struct Following {
    /// Bindings that come later.
    pub(super) bindings: SharedBindings,
    /// Name of this host. The process ids of records are valid here: we are in the initial PID namespace.
    pub(super) host: String,
}

/// The way from records to files.
#[derive(Debug)]
pub struct Pipeline {
    bindings: Vec<Binding>,
    following: Option<Following>,
    traced: Traced,
    node: Node,
    output: Output,
    undecodable: u64,
    /// The first thing that could not be decoded, for the report.
    first_error: Option<DecodeError>,
    /// By the process id that records carry, which is of the initial PID namespace and need not be ours.
    processes: HashMap<u32, TracedProcess>,
    neighbours: Neighbours,
    ended: Ended,
    /// Processes of shared probes with a first record, which [`Pipeline::take_new_processes`] has not given
    /// out yet.
    untold: Vec<u32>,
    /// Of processes that have ended.
    counters: ModelCounters,
    delivered: ProbeCounts,
    gaps: Gaps,
    /// Time of the latest record.
    last_ns: u64,
}

impl Pipeline {
    /// `bindings` by cookie: all that there will be.
    pub fn new(bindings: Vec<Binding>, files: SessionFiles) -> Self {
        let traced = Traced {
            steps: bindings.iter().any(|binding| matches!(binding.kind, ProbeKind::ProxyStep(_))),
            returns: bindings.iter().any(|binding| matches!(binding.kind, ProbeKind::ApiReturn(_))),
            ..Traced::default()
        };
        Self::with(bindings, None, traced, files)
    }

    /// A pipeline to which bindings come while it runs.
    pub(super) fn following(following: Following, traced: Traced, files: SessionFiles) -> Self {
        Self::with(Vec::new(), Some(following), traced, files)
    }

    fn with(
        bindings: Vec<Binding>,
        following: Option<Following>,
        traced: Traced,
        files: SessionFiles,
    ) -> Self {
        Self {
            bindings,
            following,
            traced,
            node: Node::default(),
            output: Output::new(files, None),
            undecodable: 0,
            first_error: None,
            processes: HashMap::new(),
            neighbours: Neighbours::default(),
            ended: Ended::default(),
            untold: Vec::new(),
            counters: ModelCounters::default(),
            delivered: ProbeCounts::default(),
            gaps: Gaps::default(),
            last_ns: 0,
        }
    }

    /// Keeps these statistics of what passes.
    #[must_use]
    pub fn counting(mut self, live: Option<LiveStatistics>) -> Self {
        self.output.live = live;
        self
    }

    /// A pipeline for what comes after this one: the same bindings, no memory of what came, other files, and
    /// at most `limit` ops or calls in them.
    pub(super) fn renewed(&self, files: SessionFiles, limit: Option<u64>) -> Self {
        let next = Self::with(self.bindings.clone(), self.following.clone(), self.traced, files);
        Self { output: Output::new(next.output.files, limit), ..next }.counting(self.output.live.clone())
    }

    /// Adds the accounts of a pipeline that came after this one.
    pub(super) fn absorb(&mut self, later: &Self) {
        self.delivered.add(&later.delivered);
        self.gaps.append(&later.gaps);
        self.counters += &later.model_counters();
        self.undecodable += later.undecodable;
        if self.first_error.is_none() {
            self.first_error.clone_from(&later.first_error);
        }
    }

    /// As many ops as may be are in the files.
    pub(super) fn is_full(&self) -> bool {
        self.output.is_full()
    }

    /// Ops and calls that were left out, as the files were full.
    pub(super) fn left_out(&self) -> u64 {
        self.output.left_out()
    }

    /// Of which ops messages are measured.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.traced.sampling = sampling;
        self
    }

    /// Takes one record as it came from the kernel.
    pub fn record(&mut self, item: &[u8]) {
        if let Err(error) = self.try_record(item) {
            self.undecodable += 1;
            if let Some(live) = &self.output.live {
                live.lock().undecodable();
            }
            self.first_error.get_or_insert(error);
        }
    }

    fn try_record(&mut self, item: &[u8]) -> Result<(), DecodeError> {
        let mut view = RecordView::new(item)?;
        let header = &mut view.header;
        if header.probe == LOSS_MARK {
            if let Some(process) = self.processes.get_mut(&header.tgid) {
                process.marked = process.marked.saturating_add(header.lost);
                self.node.proxy_ranks.note_process(header.tgid, process.pid(), process.lost_in_all());
            }
            return Ok(());
        }
        let cookie = header.probe;
        if usize::from(cookie) >= self.bindings.len()
            && let Some(following) = &self.following
        {
            following.bindings.update(&mut self.bindings);
        }
        if self.ended.is_another(header.tgid, header.ts_ns) {
            self.close(header.tgid);
        }
        let binding = self.bindings.get(usize::from(cookie)).ok_or(DecodeError::UnknownProbe(cookie))?;
        self.delivered.count(cookie, header.cpu);
        self.gaps.note(header);
        self.last_ns = self.last_ns.max(header.ts_ns);
        let traced = self.traced;
        let process = self.processes.entry(header.tgid).or_insert_with(|| TracedProcess::new(traced));
        let known = (process.pid(), process.lost_in_all());
        if process.host.is_none() {
            process.host = match &self.following {
                None => binding.host.clone(),
                Some(following) => {
                    self.untold.push(header.tgid);
                    Some(HostInfo { host: following.host.as_str().into(), pid: header.tgid })
                }
            };
        }
        process.lost = process.lost.max(header.lost);
        let lost = process.lost_in_all();
        header.lost = lost;
        if self.traced.steps && known != (process.pid(), lost) {
            self.node.proxy_ranks.note_process(header.tgid, process.pid(), lost);
        }
        let event = binding.decoder.decode(&binding.kind, &view)?;
        if let Some(live) = &self.output.live {
            live.lock().event(&event, process.host.as_ref(), lost);
        }
        let (node, output) = (&mut self.node, &mut self.output);
        let TracedProcess { host, session, api, .. } = process;
        match event {
            event @ (Event::ApiLine(_) | Event::ApiEntry(_) | Event::ApiReturn(_)) => {
                let out = &mut |call: ApiOutput| output.push_api(host.as_ref(), &call);
                match event {
                    Event::ApiLine(event) => api.call(*event, node, out),
                    Event::ApiEntry(event) => api.entry(event, out),
                    Event::ApiReturn(event) => api.returned(event, out),
                    _ => {}
                }
            }
            Event::ProxyStep(mut step) => {
                if !session.step(&mut step, node, &mut |record| output.push(host.as_ref(), &record)) {
                    self.neighbours.step(step, &mut self.processes, node, output);
                }
            }
            event => session.apply(event, node, &mut |record| output.push(host.as_ref(), &record)),
        }
        self.neighbours.look_again(&mut self.processes, &mut self.node, &mut self.output);
        Ok(())
    }

    /// The process that had this number has ended, and was seen to have at this moment of the records' clock.
    /// Records from before can still come.
    pub(super) fn process_ended(&mut self, tgid: u32, at_ns: u64) {
        self.ended.note(tgid, at_ns);
    }

    /// All records from before this moment have come: files of processes that ended before are complete.
    pub(super) fn close_ended_before(&mut self, ts_ns: u64) {
        for tgid in self.ended.take_before(ts_ns) {
            self.close(tgid);
        }
    }

    /// Time of the latest record, by the records' clock.
    pub(super) fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Processes have ended, and their files are not closed yet.
    pub(super) fn waits_for_stragglers(&self) -> bool {
        !self.ended.is_empty()
    }

    fn close(&mut self, tgid: u32) {
        self.neighbours.give_up(Some(tgid), &mut self.processes);
        let Some(mut process) = self.processes.remove(&tgid) else { return };
        process.finish(&mut self.node, &mut self.output);
        self.node.proxy_ranks.forget(tgid);
        self.counters += &process.counters();
        if let Some(host) = &process.host {
            self.output.files.close_process(host.pid);
            if let Some(live) = &self.output.live {
                live.lock().process_ended(host, self.last_ns);
            }
        }
    }

    /// Processes of shared probes of which a first record has come since the last time.
    pub(super) fn take_new_processes(&mut self) -> Vec<u32> {
        mem::take(&mut self.untold)
    }

    /// Writes what has gathered.
    pub fn flush(&mut self) {
        self.output.files.flush();
    }

    /// No more records come.
    pub fn finish(&mut self) {
        self.neighbours.give_up(None, &mut self.processes);
        for process in self.processes.values_mut() {
            process.finish(&mut self.node, &mut self.output);
        }
        if let Some(live) = &self.output.live {
            live.lock().numbers_begin_anew();
        }
        self.output.files.flush();
    }

    /// Nothing is written any more.
    pub(super) fn close_files(&mut self) {
        self.output.files.close();
    }

    pub fn files(&self) -> &SessionFiles {
        &self.output.files
    }

    pub fn model_counters(&self) -> ModelCounters {
        let mut counters = self.counters;
        for process in self.processes.values() {
            counters += &process.counters();
        }
        counters
    }

    /// Records that could not be understood, and the first reason.
    pub fn undecodable(&self) -> (u64, Option<&DecodeError>) {
        (self.undecodable, self.first_error.as_ref())
    }

    /// Records that came.
    pub fn delivered(&self) -> &ProbeCounts {
        &self.delivered
    }

    /// Where records are missing among those that came.
    pub fn gaps_mut(&mut self) -> &mut Gaps {
        &mut self.gaps
    }
}
