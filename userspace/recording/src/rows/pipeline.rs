//! Records in, files written: decode → model → sinks. Independent of the kernel, so that a replay can drive
//! it too.

use flow::{
    decode::{DecodeError, Event, RecordView},
    model::{ModelCounters, Node},
    recording::{self, Binding, Session},
    schema::HostInfo,
    wire::ProbeKind,
};
use foldhash::HashMap;
use ncclflow_common::{LOSS_MARK, RecordHeader};

use super::{
    bindings::SharedBindings,
    model_budget::ModelBudget,
    processes::{Output, Traced, TracedProcess},
    pxn::PxnPeers,
};
use crate::{format::Item, sinks::SessionFiles};

/// Time for which records of an ended process can still come: they wait in the kernel for the drain, which
/// pauses at most [`trace::kernel::stream::MAX_PAUSE`].
pub const STRAGGLE_NS: u64 = 1_000_000_000;

/// Most ended processes that are waited for while no record tells the time.
const MAX_ENDED: usize = 4096;

/// Extra state of a pipeline for probes that several processes share.
#[derive(Clone, Debug)]
pub struct Following {
    /// Bindings that come later.
    pub bindings: SharedBindings,
    /// Name of this host. The process ids of records are valid here: we are in the initial PID namespace.
    pub host: String,
}

/// The way from records to files.
#[derive(Debug, Default)]
pub struct Pipeline {
    bindings: Vec<Binding>,
    pub following: Option<Following>,
    pub traced: Traced,
    node: Node,
    pub output: Output,
    /// Records of messages are skipped, and ops do not wait for them.
    without_messages: bool,
    /// Records that could not be decoded.
    pub undecodable: u64,
    /// The first error of decoding, and whose record it was.
    pub first_error: Option<String>,
    /// Processes by the id that records carry, which is of the initial PID namespace and need not be ours.
    processes: HashMap<u32, TracedProcess>,
    pxn_peers: PxnPeers,
    /// When processes were seen to have ended, by the records' clock. Records of them can still come.
    pub ended_ns: HashMap<u32, u64>,
    /// Counters of processes that have ended.
    counters: ModelCounters,
    /// Time of the latest record.
    pub last_ns: u64,
    /// Latest process end that was told.
    told_ns: u64,
    pub budget: ModelBudget,
}

impl Pipeline {
    /// `bindings` are sorted by cookie.
    pub fn new(bindings: Vec<Binding>, files: SessionFiles) -> Self {
        let traced = Traced {
            steps: bindings.iter().any(|binding| matches!(binding.kind, ProbeKind::ProxyStep(_))),
            returns: bindings.iter().any(|binding| matches!(binding.kind, ProbeKind::ApiReturn(_))),
            ..Traced::default()
        };
        Self { bindings, traced, output: Output::new(files), ..Self::default() }
    }

    /// Returns a pipeline for reading a recording.
    pub fn reading(session: &Session, files: SessionFiles) -> Self {
        let Session { steps, returns, sampling, .. } = *session;
        let host = session.host.clone();
        Self {
            traced: Traced { steps, returns, sampling },
            following: host.map(|host| Following { bindings: SharedBindings::default(), host }),
            ..Self::new(Vec::new(), files)
        }
    }

    /// Returns one that gives out ops and calls at once, without messages.
    pub fn reading_ops(session: &Session, files: SessionFiles) -> Self {
        let mut pipeline = Self::reading(session, files);
        (pipeline.traced.steps, pipeline.without_messages) = (false, true);
        pipeline
    }

    /// Takes an item that was read from a recording.
    pub fn take(&mut self, item: Item<'_>) {
        match item {
            Item::Bindings(new) => self.bindings.extend_from_slice(new),
            Item::Record(record) => self.record(record),
            Item::Gap => self.processes.values_mut().for_each(|process| process.session.passed_over()),
            Item::Event(recording::Event::ProcessEnded { tgid, at_ns }) => {
                self.process_ended(tgid, at_ns);
            }
            Item::Event(recording::Event::RecordsLost { lost }) => {
                for lost in lost {
                    self.mark_lost(lost.tgid, lost.records);
                }
            }
            Item::Event(recording::Event::RecordsRemoved(_)) => {
                // It is not known how many belong to which process; ops that have begun lack some.
                let known: Vec<u32> = self.processes.keys().copied().collect();
                for tgid in known {
                    self.mark_lost(tgid, 1);
                }
            }
            Item::Event(recording::Event::Stacks { stacks }) => {
                for row in &stacks {
                    self.output.push_stack(row);
                }
            }
            Item::Event(recording::Event::Gpus { rows }) => {
                for row in &rows {
                    self.output.push_gpu(row);
                }
            }
            Item::Event(recording::Event::LaunchThreads { rows }) => {
                for row in &rows {
                    self.output.push_launch_thread(row);
                }
            }
            Item::Event(_) | Item::End(_) => {}
        }
    }

    /// Notes that the process was seen to have ended. Records of it can still come.
    pub fn process_ended(&mut self, tgid: u32, at_ns: u64) {
        self.ended_ns.insert(tgid, at_ns);
        self.told_ns = self.told_ns.max(at_ns);
    }

    /// Notes that records of a process are missing before those that come.
    fn mark_lost(&mut self, tgid: u32, records: u64) {
        let Some(process) = self.processes.get_mut(&tgid) else { return };
        process.marked = process.marked.saturating_add(records);
        self.node.proxy_ranks.note_process(tgid, process.pid(), process.lost_in_all());
    }

    pub fn record(&mut self, item: &[u8]) {
        if let Err(error) = self.try_record(item) {
            self.undecodable += 1;
            if let Some(live) = &self.output.live {
                live.lock().undecodable();
            }
            let whose = RecordView::new(item).ok().map(|view| view.header);
            self.first_error.get_or_insert_with(|| match whose {
                Some(RecordHeader { tgid, probe, .. }) => {
                    format!("{error} (probe {probe}, process {tgid})")
                }
                None => error.to_string(),
            });
        }
    }

    fn try_record(&mut self, item: &[u8]) -> Result<(), DecodeError> {
        let mut view = RecordView::new(item)?;
        let header = &mut view.header;
        if header.probe == LOSS_MARK {
            let (tgid, lost) = (header.tgid, header.lost);
            self.mark_lost(tgid, lost);
            return Ok(());
        }
        let cookie = header.probe;
        if usize::from(cookie) >= self.bindings.len()
            && let Some(following) = &self.following
        {
            following.bindings.update(&mut self.bindings);
        }
        if self.ended_ns.get(&header.tgid).is_some_and(|ended_ns| header.ts_ns > *ended_ns) {
            // The record belongs to a later process with the same number.
            self.ended_ns.remove(&header.tgid);
            self.close(header.tgid);
        }
        let binding = self.bindings.get(usize::from(cookie)).ok_or(DecodeError::UnknownProbe(cookie))?;
        self.last_ns = self.last_ns.max(header.ts_ns);
        let traced = self.traced;
        let process = self.processes.entry(header.tgid).or_insert_with(|| TracedProcess::new(traced));
        let known = (process.pid(), process.lost_in_all());
        if process.host.is_none() {
            process.host = match &self.following {
                None => binding.host.clone(),
                Some(following) => Some(HostInfo { host: following.host.as_str().into(), pid: header.tgid }),
            };
        }
        process.lost = process.lost.max(header.lost);
        let lost = process.lost_in_all();
        header.lost = lost;
        if self.traced.steps && known != (process.pid(), lost) {
            self.node.proxy_ranks.note_process(header.tgid, process.pid(), lost);
        }
        if self.without_messages && matches!(binding.kind, ProbeKind::ProxyStep(_) | ProbeKind::SendSize(_)) {
            return Ok(());
        }
        let (tgid, tid, ts_ns) = (header.tgid, header.tid, header.ts_ns);
        view.stack = process.stacks.of(tid, ts_ns);
        let event = binding.decoder.decode(&binding.kind, &view)?;
        if let Event::Stack(stack) = &event {
            process.stacks.note(stack);
            return Ok(());
        }
        if let Some(live) = &self.output.live {
            live.lock().event(&event, process.host.as_ref(), lost);
        }
        let (node, output) = (&mut self.node, &mut self.output);
        let TracedProcess { host, session, api, .. } = process;
        match event {
            Event::ApiLine(call) => {
                session.called(&call.origin, node, &mut |record| output.push(host.as_ref(), &record));
                api.call(*call, node, &mut |call| output.push_api(host.as_ref(), &call));
            }
            Event::ApiEntry(entry) => api.entry(entry, &mut |call| output.push_api(host.as_ref(), &call)),
            Event::ApiReturn(returned) => {
                api.returned(returned, node, &mut |call| output.push_api(host.as_ref(), &call));
            }
            Event::ProxyStep(mut step) => {
                if !session.step(&mut step, node, &mut |record| output.push(host.as_ref(), &record)) {
                    self.pxn_peers.step(step, &mut self.processes, node, output);
                }
            }
            event => {
                session.apply(event, node, &mut |record| output.push(host.as_ref(), &record));
                api.take_joined(tgid, node, &mut |call| output.push_api(host.as_ref(), &call));
            }
        }
        self.pxn_peers.look_again(&mut self.processes, &mut self.node, &mut self.output);
        if self.budget.is_due() {
            self.weigh(tgid);
        }
        Ok(())
    }

    /// Weighs a process's model; the largest begins anew if there is too much.
    fn weigh(&mut self, tgid: u32) {
        let Some(process) = self.processes.get(&tgid) else { return };
        let held = process.session.held_bytes() + process.api.held_bytes();
        let Some(over) = self.budget.weigh(tgid, held) else { return };
        self.pxn_peers.give_up(Some(over), &mut self.processes);
        let Some(mut process) = self.processes.remove(&over) else { return };
        process.finish(&mut self.node, &mut self.output);
        self.counters += &process.counters();
        let TracedProcess { host, lost, marked, .. } = process;
        let anew = TracedProcess { host, lost, marked, ..TracedProcess::new(self.traced) };
        self.processes.insert(over, anew);
    }

    /// Completes the files of processes that ended so long before the latest record that all theirs have
    /// come.
    pub fn close_ended(&mut self) {
        let mut latest_ns = self.last_ns;
        if self.ended_ns.len() > MAX_ENDED {
            // Most of them had no records, so that none tells the time.
            latest_ns = latest_ns.max(self.told_ns);
        }
        self.close_ended_before(latest_ns.saturating_sub(STRAGGLE_NS));
    }

    /// Completes the files of processes that ended before this time: all earlier records have come.
    pub fn close_ended_before(&mut self, ts_ns: u64) {
        let mut ended: Vec<_> = self.ended_ns.extract_if(|_, ended_ns| *ended_ns < ts_ns).collect();
        ended.sort_unstable_by_key(|(tgid, ended_ns)| (*ended_ns, *tgid));
        for (tgid, _) in ended {
            self.close(tgid);
        }
    }

    /// Tells whether ops first seen before this time still wait for messages.
    pub(crate) fn waits_for_ops_before(&self, ts_ns: u64) -> bool {
        self.processes.values().any(|process| process.session.waits_for_ops_before(ts_ns))
    }

    fn close(&mut self, tgid: u32) {
        self.pxn_peers.give_up(Some(tgid), &mut self.processes);
        self.budget.forget(tgid);
        let Some(mut process) = self.processes.remove(&tgid) else { return };
        process.finish(&mut self.node, &mut self.output);
        self.node.proxy_ranks.forget(tgid);
        self.counters += &process.counters();
        if let Some(host) = &process.host {
            if let Some(sink) = self.output.files.sink() {
                sink.close_process(host.pid);
            }
            if let Some(live) = &self.output.live {
                live.lock().process_ended(host, self.last_ns);
            }
        }
    }

    pub fn finish(&mut self) {
        self.pxn_peers.give_up(None, &mut self.processes);
        // In one order, so that the same recording gives the same bytes each time.
        let mut processes: Vec<_> = self.processes.iter_mut().collect();
        processes.sort_unstable_by_key(|(tgid, _)| **tgid);
        for (_, process) in processes {
            process.finish(&mut self.node, &mut self.output);
        }
        if let Some(live) = &self.output.live {
            live.lock().numbers_begin_anew();
        }
        if let Some(sink) = self.output.files.sink() {
            sink.flush();
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_ended_without_a_record_are_forgotten() {
        let mut pipeline = Pipeline::new(Vec::new(), SessionFiles::nowhere());
        for number in 0..100_000_u32 {
            let ended =
                recording::Event::ProcessEnded { tgid: number, at_ns: u64::from(number) * 10_000_000 };
            pipeline.take(Item::Event(ended));
            pipeline.close_ended();
        }
        assert!(pipeline.ended_ns.len() <= MAX_ENDED + 1, "{}", pipeline.ended_ns.len());
    }
}
