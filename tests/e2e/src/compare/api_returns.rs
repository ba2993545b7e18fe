//! Is every return there, with the result that the program got, in the time that the program measured?
//!
//! Compared: calls of exported functions. The program's own times enclose the call, so the
//! tracer's must lie inside.

use std::collections::BTreeMap;

use super::Findings;
use crate::api_trace::ApiTrace;
use crate::truth::call_log::Call;

/// A traced call.
#[derive(Debug)]
struct Traced {
    function: Option<String>,
    begin_ns: u64,
    host_ns: Option<u64>,
    result: Option<String>,
}

impl Traced {
    fn is_inside(&self, call: &Call) -> bool {
        let end_ns = self.host_ns.map(|host_ns| self.begin_ns + host_ns);
        self.begin_ns >= call.begin_ns && end_ns.is_some_and(|end_ns| end_ns <= call.end_ns)
    }
}

/// Checks all calls of `log` that began after `since_ns` against the trace.
pub fn check(trace: &ApiTrace, log: &[Call], since_ns: u64) -> Findings {
    let mut findings = Findings::default();
    // By process and order of time; every rank of the bed has a thread of its own, or a process.
    let mut traced: BTreeMap<(u32, u32), Vec<Traced>> = BTreeMap::new();
    let ranks = trace.ranks.iter().flat_map(|rank| &rank.lines);
    for line in ranks.chain(&trace.processes) {
        traced.entry((line.pid, line.tid)).or_default().push(Traced {
            function: line.called.clone(),
            begin_ns: line.ts_ns,
            host_ns: line.host_ns,
            result: line.result.clone(),
        });
    }
    for line in &trace.others {
        traced.entry((line.pid, line.tid)).or_default().push(Traced {
            function: Some(line.function.clone()),
            begin_ns: line.ts_ns,
            host_ns: line.host_ns,
            result: line.result.clone(),
        });
    }
    let mut logged: BTreeMap<(u32, u32), Vec<&Call>> = BTreeMap::new();
    // ncclGroupStart only counts, and is not probed.
    for call in log.iter().filter(|call| call.begin_ns > since_ns && call.function != "ncclGroupStart") {
        logged.entry((call.pid, call.tid)).or_default().push(call);
    }
    findings.compare(traced.len() == logged.len(), || {
        format!("{} threads are traced, {} made calls", traced.len(), logged.len())
    });
    let mut traced: Vec<Vec<Traced>> = traced.into_values().collect();
    for calls in &mut traced {
        calls.sort_by_key(|call| call.begin_ns);
    }
    for logged in logged.values() {
        // The thread that fits best: the two may count threads in different PID namespaces.
        let fitting = |traced: &&Vec<Traced>| {
            traced.iter().zip(logged).filter(|(traced, call)| traced.is_inside(call)).count()
        };
        let Some(traced) = traced.iter().max_by_key(fitting) else { continue };
        findings.compare(traced.len() == logged.len(), || {
            format!("{} calls are traced, {} were made", traced.len(), logged.len())
        });
        for (traced, call) in traced.iter().zip(logged) {
            let function = if call.function == "ncclBcast" { "ncclBroadcast" } else { &call.function };
            findings
                .compare(traced.function.as_deref() == Some(function), || format!("{traced:?} is {call:?}"));
            findings.compare(traced.result.as_deref() == result_name(call.code), || {
                format!("{traced:?} is {call:?}")
            });
            findings.compare(traced.is_inside(call), || format!("{traced:?} is not inside {call:?}"));
        }
    }
    findings
}

/// `ncclResult_t` of nccl.h.
fn result_name(code: i32) -> Option<&'static str> {
    let names = [
        "ncclSuccess",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "ncclRemoteError",
        "ncclInProgress",
    ];
    names.get(usize::try_from(code).ok()?).copied()
}
