//! Processes that records come from. Each has a model of its own; all models give their rows to one output.
//!
//! A pidfd holds each process; when it ends, the recording gets the time. A record with the same process ID
//! and a later time belongs to another process. After a second of silence the model of the old process is
//! finished. Lists keep running processes and the latest 1,000 that have ended, and count the rest.

use foldhash::HashMap;

use crate::sinks::{LiveStatistics, SessionFiles, Sink};
use flow::{
    decode::StackEvent,
    model::{
        ApiOutput, ApiSession, FlowRecord, ModelCounters, Node, Rows, Sampling, Session, other_call_row,
    },
    schema::{GpuRow, HostInfo, LaunchThreadRow, StackRow},
    session::WindowIterations,
};

/// Traced events that the model has to know of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traced {
    /// Messages, with `--level steps`.
    pub steps: bool,
    /// Returns of the API's functions.
    pub returns: bool,
    /// Ops whose messages are measured.
    pub sampling: Sampling,
}

#[derive(Debug, Default)]
pub(crate) struct TracedProcess {
    /// Known from the first record of a probe.
    pub host: Option<HostInfo>,
    /// Records of this process that the kernel lost until now.
    pub lost: u64,
    /// Records that were dropped after that, by loss marks.
    pub marked: u64,
    pub session: Session,
    pub api: ApiSession,
    pub stacks: LastStacks,
}

/// Most threads whose last stack is kept.
const MAX_STACKS: usize = 4096;

/// The last call stack of each thread, with the time of its hit.
#[derive(Debug, Default)]
pub(crate) struct LastStacks(HashMap<u32, (u64, u64)>);

impl LastStacks {
    pub(super) fn note(&mut self, stack: &StackEvent) {
        if self.0.len() >= MAX_STACKS {
            self.0.clear();
        }
        self.0.insert(stack.origin.tid, (stack.origin.ts_ns, stack.id));
    }

    /// Returns the stack of a hit on this thread at this time.
    pub(super) fn of(&self, tid: u32, ts_ns: u64) -> Option<u64> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&tid).filter(|(at, _)| *at == ts_ns).map(|(_, id)| *id)
    }
}

impl TracedProcess {
    pub(super) fn new(traced: Traced) -> Self {
        let session = Session::new(traced.steps).sampling(traced.sampling);
        Self { session, api: ApiSession::new(traced.returns), ..Self::default() }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.host.as_ref().map(|host| host.pid)
    }

    pub(crate) fn lost_in_all(&self) -> u64 {
        self.lost.saturating_add(self.marked)
    }

    /// Gives out what is still open as it is: no more records of the process come.
    pub(super) fn finish(&mut self, node: &mut Node, output: &mut Output) {
        let lost = self.lost_in_all();
        let Self { host, session, api, .. } = self;
        session.finish(|_| lost, node, &mut |record| output.push(host.as_ref(), &record));
        api.finish(node, &mut |call| output.push_api(host.as_ref(), &call));
        if let (Some(live), Some(host)) = (&output.live, host) {
            live.lock().lost(host, lost);
        }
    }

    pub(super) fn counters(&self) -> ModelCounters {
        let mut counters = self.session.counters();
        counters += &self.api.counters();
        counters
    }
}

/// The files, and the limits of what goes into them.
#[derive(Debug, Default)]
pub struct Output {
    pub files: SessionFiles,
    rows: Rows,
    /// Ops on a channel, or calls of the API, that may still be written.
    pub room: Option<u64>,
    /// Bytes of all files after which nothing more is written.
    pub limit_bytes: Option<u64>,
    /// The limit was reached when an op came, or the folder had no room for it.
    is_over_limit: bool,
    /// Iterations of the window. Files contain only these.
    pub iterations: Option<WindowIterations>,
    /// Ops or calls that came when there was no room.
    pub left_out: u64,
    /// Ops on a channel, and calls of the API, that went to the files.
    pub ops: u64,
    pub calls: u64,
    /// Statistics of everything that passes, whether there is room for it or not.
    pub live: Option<LiveStatistics>,
}

impl Output {
    pub fn new(files: SessionFiles) -> Self {
        Self { files, ..Self::default() }
    }

    /// Lays an op out to rows once, for all sinks.
    pub fn push(&mut self, host: Option<&HostInfo>, record: &FlowRecord) {
        // A record of the model always stems from one of the kernel, whose process is known.
        let Some(host) = host else { return };
        let ts_ns = record.origin().map_or(0, |origin| origin.ts_ns);
        let (rows, mut sinks) = self.rows_and_sinks(host.pid, ts_ns, false);
        let op = rows.op(record, host);
        sinks.iter_mut().flatten().for_each(|sink| sink.op(&op));
        if sinks.iter().flatten().any(|sink| sink.wants_message_sums(&op)) {
            let sums = rows.message_sums(record, &op);
            let takers = sinks.iter_mut().flatten().filter(|sink| sink.wants_message_sums(&op));
            takers.for_each(|sink| sink.message_sums(&op, &sums));
        }
        if sinks.iter().flatten().any(|sink| sink.wants_messages(&op)) {
            rows.messages(record, &op, |messages| {
                let takers = sinks.iter_mut().flatten().filter(|sink| sink.wants_messages(&op));
                takers.for_each(|sink| sink.messages(&op, messages));
            });
        }
    }

    pub(crate) fn push_api(&mut self, host: Option<&HostInfo>, output: &ApiOutput) {
        let Some(host) = host else { return };
        let ts_ns = match output {
            ApiOutput::Call(record) => record.event.origin.ts_ns,
            ApiOutput::Other(call) => call.origin.ts_ns,
        };
        let (rows, sinks) = self.rows_and_sinks(host.pid, ts_ns, true);
        match output {
            ApiOutput::Call(record) => {
                let call = rows.call(record, host);
                sinks.into_iter().flatten().for_each(|sink| sink.call(&call));
            }
            ApiOutput::Other(call) => {
                let row = other_call_row(call, host);
                sinks.into_iter().flatten().for_each(|sink| sink.other_call(&row));
            }
        }
    }

    /// Writes a call stack that ops or calls name, or will name.
    pub fn push_stack(&mut self, stack: &StackRow) {
        if !self.is_over_limit
            && let Some(sink) = self.files.sink()
        {
            sink.stack(stack);
        }
    }

    /// Writes a GPU's activity.
    pub(crate) fn push_gpu(&mut self, row: &GpuRow) {
        if !self.is_over_limit
            && let Some(sink) = self.files.sink()
        {
            sink.gpu(row);
        }
    }

    /// Passes on the processor time of a thread that launches.
    pub(crate) fn push_launch_thread(&mut self, row: &LaunchThreadRow) {
        if !self.is_over_limit
            && let Some(sink) = self.files.sink()
        {
            sink.launch_thread(row);
        }
    }

    /// Returns the next op's or call's sinks. Statistics take everything, files only what there is room for.
    fn rows_and_sinks(
        &mut self,
        pid: u32,
        ts_ns: u64,
        is_call: bool,
    ) -> (&mut Rows, [Option<&mut dyn Sink>; 2]) {
        if let Some(iterations) = &mut self.iterations
            && !iterations.take(pid, ts_ns)
        {
            iterations.ops_outside += 1;
            return (&mut self.rows, [self.live.as_mut().map(|live| live as &mut dyn Sink), None]);
        }
        self.is_over_limit = self.is_over_limit
            || self.limit_bytes.is_some_and(|limit| self.files.bytes_in_all() >= limit)
            || !self.files.has_room();
        let has_room = !self.is_out_of_room() && !self.is_over_limit;
        match &mut self.room {
            Some(room) if has_room => *room -= 1,
            Some(0) => self.left_out += 1,
            _ => {}
        }
        let count = if is_call { &mut self.calls } else { &mut self.ops };
        *count += u64::from(has_room);
        let live = self.live.as_mut().map(|live| live as &mut dyn Sink);
        (&mut self.rows, [live, if has_room { self.files.sink() } else { None }])
    }

    /// Tells whether there is no room for further ops or calls.
    pub fn is_out_of_room(&self) -> bool {
        self.room == Some(0)
    }

    /// Tells whether the files have reached their limit of bytes, or the folder's, and more would have come.
    pub fn is_over_limit(&self) -> bool {
        self.is_over_limit
    }
}
