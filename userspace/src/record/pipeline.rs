//! Records in, files written: decode → model → sinks. Knows nothing of the kernel, so a replay can drive it too.

use std::{collections::HashMap, sync::MutexGuard};

use ncclflow_common::LOSS_MARK;
use serde::{Deserialize, Serialize};

use super::gaps::Gaps;
use crate::{
    decode::{DecodeError, Decoder, Event, RecordView},
    live::{LiveStatistics, Tally},
    model::{ApiOutput, ApiSession, FlowRecord, ModelCounters, Session},
    probe::ProbeKind,
    sink::{HostInfo, SessionFiles},
    stream::Account,
};

/// What the records of one cookie mean, and whose they are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Binding {
    pub kind: ProbeKind,
    pub decoder: Decoder,
    /// Nothing of parts of a walk, which serve all processes of a library.
    pub host: Option<HostInfo>,
}

/// A process that records came from.
#[derive(Debug, Default)]
struct Origins {
    /// Not known before the first record of a probe.
    host: Option<HostInfo>,
    /// Of its records, those that the kernel lost until now.
    lost: u64,
    /// Those that were dropped after that, as marks say.
    marked: u64,
}

/// The way from records to files.
#[derive(Debug)]
pub struct Pipeline {
    bindings: Vec<Binding>,
    session: Session,
    api: ApiSession,
    files: SessionFiles,
    undecodable: u64,
    /// The first thing that could not be decoded, for the report.
    first_error: Option<DecodeError>,
    /// By the process id that records carry, which is of the initial PID namespace and need not be ours.
    processes: HashMap<u32, Origins>,
    delivered: Account,
    gaps: Gaps,
    /// Counts along.
    live: Option<LiveStatistics>,
}

impl Pipeline {
    /// `bindings` by cookie.
    pub fn new(bindings: Vec<Binding>, files: SessionFiles) -> Self {
        let measures_steps = bindings.iter().any(|binding| matches!(binding.kind, ProbeKind::ProxyStep(_)));
        let traces_returns = bindings.iter().any(|binding| matches!(binding.kind, ProbeKind::ApiReturn(_)));
        Self {
            bindings,
            session: Session::new(measures_steps),
            api: ApiSession::new(traces_returns),
            files,
            undecodable: 0,
            first_error: None,
            processes: HashMap::new(),
            delivered: Account::default(),
            gaps: Gaps::default(),
            live: None,
        }
    }

    /// Keeps these statistics of what passes.
    #[must_use]
    pub fn counting(mut self, live: Option<LiveStatistics>) -> Self {
        self.live = live;
        self
    }

    /// Takes one record as it came from the kernel.
    pub fn record(&mut self, item: &[u8]) {
        let decoded = RecordView::new(item).and_then(|mut view| {
            let header = &mut view.header;
            if header.probe == LOSS_MARK {
                if let Some(process) = self.processes.get_mut(&header.tgid) {
                    process.marked = process.marked.saturating_add(header.lost);
                }
                return Ok(None);
            }
            let cookie = header.probe;
            let binding = self.bindings.get(usize::from(cookie)).ok_or(DecodeError::UnknownProbe(cookie))?;
            self.delivered.count(cookie, header.cpu);
            self.gaps.note(header);
            let process = self.processes.entry(header.tgid).or_default();
            if process.host.is_none() {
                process.host.clone_from(&binding.host);
            }
            process.lost = process.lost.max(header.lost);
            header.lost = process.lost_in_all();
            binding.decoder.decode(&binding.kind, &view).map(Some)
        });
        let mut tally = self.live.as_ref().map(LiveStatistics::lock);
        if let (Some(tally), Ok(Some(event)), Ok(view)) = (&mut tally, &decoded, RecordView::new(item)) {
            let process = self.processes.get(&view.header.tgid);
            let lost = process.map_or(0, Origins::lost_in_all);
            tally.event(event, process.and_then(|process| process.host.as_ref()), lost);
        }
        match decoded {
            Ok(Some(event @ (Event::ApiLine(_) | Event::ApiEntry(_) | Event::ApiReturn(_)))) => {
                let Self { api, files, processes, .. } = self;
                let out = &mut |output: ApiOutput| push_api(files, processes, &mut tally, &output);
                match event {
                    Event::ApiLine(event) => api.call(*event, out),
                    Event::ApiEntry(event) => api.entry(event, out),
                    Event::ApiReturn(event) => api.returned(event, out),
                    _ => {}
                }
            }
            Ok(Some(event)) => {
                let Self { session, files, processes, .. } = self;
                session.apply(event, &mut |record| push(files, processes, &mut tally, &record));
            }
            Ok(None) => {}
            Err(error) => {
                self.undecodable += 1;
                if let Some(tally) = &mut tally {
                    tally.undecodable();
                }
                self.first_error.get_or_insert(error);
            }
        }
    }

    /// Writes what has gathered.
    pub fn flush(&mut self) {
        self.files.flush();
    }

    /// No more records come.
    pub fn finish(&mut self) {
        let Self { session, api, files, processes, live, .. } = self;
        let mut tally = live.as_ref().map(LiveStatistics::lock);
        if let Some(tally) = &mut tally {
            for process in processes.values() {
                process.host.iter().for_each(|host| tally.lost(host, process.lost_in_all()));
            }
        }
        let lost = |tgid| processes.get(&tgid).map_or(0, Origins::lost_in_all);
        session.finish(lost, &mut |record| push(files, processes, &mut tally, &record));
        api.finish(&mut |output| push_api(files, processes, &mut tally, &output));
        files.flush();
    }

    pub fn files(&self) -> &SessionFiles {
        &self.files
    }

    pub fn model_counters(&self) -> ModelCounters {
        let counters = self.session.counters();
        let (unreturned_calls, uncalled_returns) = self.api.unmatched();
        let refused = counters.refused + self.api.refused();
        ModelCounters { refused, unreturned_calls, uncalled_returns, ..counters }
    }

    /// Records that could not be understood, and the first reason.
    pub fn undecodable(&self) -> (u64, Option<&DecodeError>) {
        (self.undecodable, self.first_error.as_ref())
    }

    /// Records that came.
    pub fn delivered(&self) -> &Account {
        &self.delivered
    }

    /// Where records are missing among those that came.
    pub fn gaps_mut(&mut self) -> &mut Gaps {
        &mut self.gaps
    }
}

impl Origins {
    fn lost_in_all(&self) -> u64 {
        self.lost.saturating_add(self.marked)
    }
}

/// The statistics, while they are added to; nothing, if nobody wants them.
type Counting<'a> = Option<MutexGuard<'a, Tally>>;

fn push(
    files: &mut SessionFiles,
    processes: &HashMap<u32, Origins>,
    tally: &mut Counting<'_>,
    record: &FlowRecord,
) {
    // A record of the model always stems from one of the kernel, whose process is known.
    let process = record.origin().and_then(|origin| processes.get(&origin.tgid));
    if let Some(host) = process.and_then(|process| process.host.as_ref()) {
        files.push(record, host);
        if let Some(tally) = tally {
            tally.flow(record, host);
        }
    }
}

fn push_api(
    files: &mut SessionFiles,
    processes: &HashMap<u32, Origins>,
    tally: &mut Counting<'_>,
    output: &ApiOutput,
) {
    let origin = match output {
        ApiOutput::Call(record) => &record.event.origin,
        ApiOutput::Other(call) => &call.origin,
    };
    if let Some(host) = processes.get(&origin.tgid).and_then(|process| process.host.as_ref()) {
        files.push_api(output, host);
        if let Some(tally) = tally {
            tally.api(output, host);
        }
    }
}
