//! Records in, files written: decode → model → sinks. Knows nothing of the kernel, so a replay can drive it too.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::{
    decode::{DecodeError, Decoder, Event, RecordView},
    model::{ApiOutput, ApiSession, FlowRecord, ModelCounters, Session},
    probe::ProbeKind,
    sink::{HostInfo, SessionFiles},
};

/// What the records of one cookie mean, and whose they are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Binding {
    pub kind: ProbeKind,
    pub decoder: Decoder,
    pub host: HostInfo,
    /// Records that came.
    #[serde(skip)]
    pub delivered: u64,
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
    hosts: HashMap<u32, HostInfo>,
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
            hosts: HashMap::new(),
        }
    }

    /// Takes one record as it came from the kernel.
    pub fn record(&mut self, item: &[u8]) {
        let decoded = RecordView::new(item).and_then(|view| {
            let cookie = view.header.probe;
            let binding =
                self.bindings.get_mut(usize::from(cookie)).ok_or(DecodeError::UnknownProbe(cookie))?;
            binding.delivered += 1;
            self.hosts.entry(view.header.tgid).or_insert_with(|| binding.host.clone());
            binding.decoder.decode(&binding.kind, &view)
        });
        match decoded {
            Ok(event @ (Event::ApiLine(_) | Event::ApiEntry(_) | Event::ApiReturn(_))) => {
                let Self { api, files, hosts, .. } = self;
                let out = &mut |output: ApiOutput| push_api(files, hosts, &output);
                match event {
                    Event::ApiLine(event) => api.call(*event, out),
                    Event::ApiEntry(event) => api.entry(event, out),
                    Event::ApiReturn(event) => api.returned(event, out),
                    _ => {}
                }
            }
            Ok(event) => {
                let Self { session, files, hosts, .. } = self;
                session.apply(event, &mut |record| push(files, hosts, &record));
            }
            Err(error) => {
                self.undecodable += 1;
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
        let Self { session, api, files, hosts, .. } = self;
        session.finish(&mut |record| push(files, hosts, &record));
        api.finish(&mut |output| push_api(files, hosts, &output));
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

    /// Records that came for a cookie.
    pub fn delivered(&self, cookie: u32) -> u64 {
        let binding = usize::try_from(cookie).ok().and_then(|cookie| self.bindings.get(cookie));
        binding.map_or(0, |binding| binding.delivered)
    }
}

fn push(files: &mut SessionFiles, hosts: &HashMap<u32, HostInfo>, record: &FlowRecord) {
    // A record of the model always stems from one of the kernel, whose process is known.
    if let Some(host) = record.origin().and_then(|origin| hosts.get(&origin.tgid)) {
        files.push(record, host);
    }
}

fn push_api(files: &mut SessionFiles, hosts: &HashMap<u32, HostInfo>, output: &ApiOutput) {
    let origin = match output {
        ApiOutput::Call(record) => &record.event.origin,
        ApiOutput::Other(call) => &call.origin,
    };
    if let Some(host) = hosts.get(&origin.tgid) {
        files.push_api(output, host);
    }
}
