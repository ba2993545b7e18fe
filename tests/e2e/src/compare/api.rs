//! Is every call of the API there, in its order and with its arguments, as NCCL's own log has it?
//!
//! Compared: calls. NCCL prints a line for each call that it takes (`NCCL_DEBUG_SUBSYS=COLL`), with the
//! arguments as they are in `ncclInfo`.

use std::collections::BTreeMap;

use super::Findings;
use crate::api_trace::{ApiLine, ApiTrace};
use crate::truth::debug_log::{ApiCall, DebugLog};

/// Checks every call of every rank.
pub fn check(trace: &ApiTrace, log: &DebugLog) -> Findings {
    let mut findings = Findings::default();
    let with_calls = log.communicators.iter().filter(|logged| !logged.calls.is_empty()).count();
    let traced = trace.ranks.iter().filter(|rank| !rank.lines.is_empty()).count();
    findings.compare(with_calls == traced, || {
        format!("{with_calls} communicators logged calls, {traced} are traced")
    });
    // Threads in the order in which they are met: the two may count in different PID namespaces.
    let mut threads: BTreeMap<u32, u32> = BTreeMap::new();
    for rank in &trace.ranks {
        let whose = format!("{} rank {}", rank.folder, rank.rank);
        let Some(first) = rank.lines.first() else { continue };
        let logged =
            log.communicators.iter().find(|logged| (logged.comm, logged.rank) == (first.comm, rank.rank));
        let Some(logged) = logged else {
            findings
                .complain(format!("{whose}: NCCL's log does not know the communicator {:#x}", first.comm));
            continue;
        };
        let (have, want) = (rank.lines.len(), logged.calls.len());
        findings.compare(have == want, || format!("{whose}: {have} calls, {want} in NCCL's log"));
        for (number, (line, truth)) in rank.lines.iter().zip(&logged.calls).enumerate() {
            let traced = as_logged(line);
            let same = traced
                .as_ref()
                .is_some_and(|traced| *traced == truth.call || in_bytes(traced, line) == truth.call);
            findings.compare(same, || {
                format!("{whose}: call {number} is {traced:?} of {line:?}, logged {:?}", truth.call)
            });
            findings.compare(line.call == Some(number as u64), || {
                format!("{whose}: call {number} is {:?}", line.call)
            });
            let tid = *threads.entry(truth.tid).or_insert(line.tid);
            findings.compare(tid == line.tid, || {
                format!(
                    "{whose}: call {number} on thread {}, thread {} of the log was {tid}",
                    line.tid, truth.tid
                )
            });
        }
        let ordered = rank.lines.windows(2).all(|pair| pair[0].ts_ns < pair[1].ts_ns);
        findings.compare(ordered, || format!("{whose}: not in the order of time"));
    }
    findings
}

/// Checks every call that was recorded by the arguments of the exported functions. What these lines cannot
/// say, they must not say; all else is in NCCL's log, by the address of the communicator.
pub fn check_arguments(trace: &ApiTrace, log: &DebugLog) -> Findings {
    let mut findings = Findings::default();
    findings.compare(trace.ranks.is_empty(), || "there are ranks in the trace".to_owned());
    let mut lines: BTreeMap<(u32, u64), Vec<&ApiLine>> = BTreeMap::new();
    for line in &trace.processes {
        let unknown = (line.rank, line.n_ranks, line.op_count, line.call, line.launched);
        findings.compare(
            line.by_arguments && line.comm_hash.is_none() && unknown == (None, None, None, None, None),
            || format!("{line:?} says what is not known"),
        );
        lines.entry((line.pid, line.comm)).or_default().push(line);
    }
    let logged = log.communicators.iter().filter(|logged| !logged.calls.is_empty());
    let (have, want) = (lines.len(), logged.clone().count());
    findings.compare(have == want, || format!("{have} communicators, {want} in NCCL's log"));
    for logged in logged {
        let whose = format!("communicator {:#x} of process {}", logged.comm, logged.pid);
        let lines = lines.get(&(logged.pid, logged.comm)).map_or(&[][..], Vec::as_slice);
        let (have, want) = (lines.len(), logged.calls.len());
        findings.compare(have == want, || format!("{whose}: {have} calls, {want} in NCCL's log"));
        for (number, (line, truth)) in lines.iter().zip(&logged.calls).enumerate() {
            let of_log = (Some(truth.call.op_count), Some(truth.call.n_ranks));
            let line = ApiLine { op_count: of_log.0, n_ranks: of_log.1, ..(*line).clone() };
            let traced = as_logged(&line);
            let is_same = |traced: &ApiCall| *traced == truth.call || in_bytes(traced, &line) == truth.call;
            findings.compare(traced.as_ref().is_some_and(is_same), || {
                format!("{whose}: call {number} is {traced:?} of {line:?}, logged {:?}", truth.call)
            });
        }
    }
    findings
}

/// The line as NCCL prints the call: what a function has no use for is 0, and a send's buffer
/// stands with the receives'.
fn as_logged(line: &ApiLine) -> Option<ApiCall> {
    let (send, recv) = match line.function.as_str() {
        "Send" => (0, line.sendbuff?),
        "Recv" => (0, line.recvbuff?),
        _ => (line.sendbuff?, line.recvbuff?),
    };
    Some(ApiCall {
        func: line.function.clone(),
        op_count: line.op_count?,
        send_buffer: send,
        recv_buffer: recv,
        count: line.count,
        datatype: datatype_number(line.datatype.as_deref()?)?,
        red_op: match line.redop.as_deref() {
            None | Some("sum") => 0,
            Some("prod") => 1,
            Some("max") => 2,
            Some("min") => 3,
            Some("avg") => 4,
            Some(_) => line.redop_handle?,
        },
        root: line.root.or(line.peer).unwrap_or(0),
        comm: line.comm,
        n_ranks: line.n_ranks?,
        stream: line.stream,
    })
}

/// As 2.21 and earlier print an all-gather or broadcast: they have turned it into bytes by then
/// (src/misc/argcheck.cc).
fn in_bytes(call: &ApiCall, line: &ApiLine) -> ApiCall {
    let call = call.clone();
    match (call.func.as_str(), line.bytes) {
        ("AllGather" | "Broadcast", Some(bytes)) => ApiCall { datatype: 0, count: bytes, ..call },
        _ => call,
    }
}

/// `ncclDataType_t` of nccl.h.
fn datatype_number(name: &str) -> Option<i32> {
    let names = [
        "int8",
        "uint8",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "float8e4m3",
        "float8e5m2",
    ];
    names.iter().position(|known| *known == name).and_then(|number| i32::try_from(number).ok())
}
