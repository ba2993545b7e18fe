//! What ncclflow itself asks of a library.
//!
//! Names and parameters as in NCCL's source at the tags v2.16.2-1 to v2.30.7-1 and in the official binaries
//! up to 2.32.3. A function that exists only in some versions names the one that takes its place in the
//! others.

use super::{FunctionSpec, Request};
use crate::{
    fields::{STRUCTS, enums::ENUMS},
    nccl::ApiFunction,
};

/// Functions, structs and enumerations that ncclflow uses.
pub fn nccl_request() -> Request {
    let mut functions = proxy_functions();
    functions.extend(launch_functions());
    functions.extend(communicator_functions());
    functions.extend(step_hooks());
    Request {
        functions,
        structs: STRUCTS.iter().map(|strukt| strukt.name.to_owned()).collect(),
        enums: ENUMS.iter().map(|enumeration| enumeration.name.to_owned()).collect(),
    }
}

/// [`nccl_request`], and the exported functions whose returns can be probed.
pub fn nccl_request_with_api() -> Request {
    let mut request = nccl_request();
    for function in ApiFunction::all() {
        let name = function.name();
        if request.functions.iter().all(|spec| spec.name != name) {
            let spec = FunctionSpec::optional(name, &[], "its result, and how long it takes");
            request.functions.push(FunctionSpec { in_some_versions: true, ..spec });
        }
    }
    request
}

/// What is lost without the layout of a struct, or the names of an enumeration, of the catalog.
pub fn lost_without_type(name: &str) -> Option<&'static str> {
    let of_struct = STRUCTS.iter().find(|strukt| strukt.name == name).and_then(|strukt| strukt.lost_without);
    of_struct.or_else(|| ENUMS.iter().find(|known| known.name == name).map(|known| known.lost_without))
}

fn proxy_functions() -> Vec<FunctionSpec> {
    vec![
        FunctionSpec::required(
            "ncclProxySaveOp",
            &["comm", "op", "justInquire"],
            "the planned and the posted proxy ops",
        ),
        FunctionSpec::required(
            "SaveProxy",
            &["comm", "type", "peer", "op", "connIndex", "justInquire"],
            "the peer of each message",
        ),
        FunctionSpec::optional(
            "ncclLocalOpAppend",
            &["comm", "proxyOp"],
            "proof that an op was queued for the proxy thread, apart from SaveProxy's arguments",
        ),
        FunctionSpec::optional(
            "ncclProxyOpToArgs",
            &["op", "args", "subIndex"],
            "which queued op a step belongs to, other than by its connection",
        ),
    ]
}

fn launch_functions() -> Vec<FunctionSpec> {
    vec![
        FunctionSpec::optional(
            "ncclEnqueueCheck",
            &["info"],
            "the calls of the API: operation, buffers, count, stream",
        ),
        FunctionSpec::optional(
            "ncclLaunchKernel",
            &["comm", "plan"],
            "whole plans at one probe: each op needs a probe hit of its own",
        ),
        FunctionSpec::optional("addProxyOpIfNeeded", &["comm", "op"], "the plan that a proxy op belongs to")
            .or(&["ncclAddProxyOpIfNeeded"]),
        FunctionSpec::optional(
            "ncclAddProxyOpIfNeeded",
            &["comm", "op"],
            "the plan that a proxy op belongs to",
        )
        .or(&["addProxyOpIfNeeded"]),
        FunctionSpec::optional("uploadProxyOps", &["comm", "plan"], "the posted ops of a plan at one probe")
            .or(&["hostStreamPlanTask"]),
        FunctionSpec::optional(
            "hostStreamPlanTask",
            &["comm", "plan"],
            "the posted ops of a plan at one probe",
        )
        .or(&["uploadProxyOps"]),
        FunctionSpec::optional(
            "hostStreamPlanCallback",
            &["plan_"],
            "replays of CUDA graphs, and plans posted from a stream callback",
        ),
        FunctionSpec::optional(
            "ncclLaunchKernelAfter_NoCuda",
            &["comm", "plan"],
            "plans posted right after their launch",
        ),
        FunctionSpec::optional("ncclGroupEndInternal", &[], "which calls were made as one group"),
    ]
}

fn communicator_functions() -> Vec<FunctionSpec> {
    vec![
        FunctionSpec::optional(
            "ncclCommInitRankFunc",
            &["job_"],
            "the moment at which a communicator is ready; it is seen at its first use",
        ),
        FunctionSpec::optional(
            "commFree",
            &["comm"],
            "the end of a communicator; a new one at the same address is told by its hash",
        ),
        FunctionSpec::optional("ncclCommDestroy", &["comm"], "when the program gives a communicator up"),
        FunctionSpec::optional("ncclCommAbort", &["comm"], "when the program aborts a communicator"),
    ]
}

/// NCCL calls these for every network step whether a profiler plugin is loaded or not.
fn step_hooks() -> Vec<FunctionSpec> {
    let one = |name, params: &[&'static str], lost, others: &[&'static str]| {
        FunctionSpec::optional(name, params, lost).or(others)
    };
    let send = "when the GPU filled a message";
    let receive = "when a receive was begun";
    let state = "when a message was sent and when it arrived";
    let stop = "when a step was done";
    let op_start = "when the proxy thread took an op";
    let op_stop = "when the proxy thread finished an op";
    let op_state = "progress of an op as a whole";
    let fewer = "steps are traced at the hooks themselves, with more and costlier hits";
    let fewer_and_no_sizes =
        "steps are traced at the hooks themselves, with more and costlier hits; sizes of sends before 2.20";
    let many = ["s", "args", "stepLo", "stepHi"];
    vec![
        // 2.16 to 2.22: one function for all.
        one(
            "ncclProfilingRecord",
            &["args", "sub", "step", "state"],
            "the times of steps",
            &["ncclProfilerRecordProxyStepEventState", "ncclProfilerRecordProxyStepEventStates"],
        ),
        // 2.23: ranges of steps.
        one(
            "ncclProfilerStartSendProxyStepEvents",
            &many,
            send,
            &["ncclProfilerStartSendProxyStepEvent", "ncclProfilingRecord"],
        ),
        one(
            "ncclProfilerStartRecvProxyStepEvents",
            &many,
            receive,
            &["ncclProfilerStartRecvProxyStepEvent", "ncclProfilingRecord"],
        ),
        one(
            "ncclProfilerRecordProxyStepEventStates",
            &["s", "args", "stepLo", "stepHi", "eState"],
            state,
            &["ncclProfilerRecordProxyStepEventState", "ncclProfilingRecord"],
        ),
        one(
            "ncclProfilerStopProxyStepEvents",
            &many,
            stop,
            &["ncclProfilerStopProxyStepEvent", "ncclProfilingRecord"],
        ),
        // 2.24 on: one step at a time.
        one(
            "ncclProfilerStartSendProxyStepEvent",
            &["s", "args", "stepId"],
            send,
            &["ncclProfilerStartSendProxyStepEvents", "ncclProfilingRecord"],
        ),
        one(
            "ncclProfilerStartRecvProxyStepEvent",
            &["s", "args", "stepId"],
            receive,
            &["ncclProfilerStartRecvProxyStepEvents", "ncclProfilingRecord"],
        ),
        one(
            "ncclProfilerRecordProxyStepEventState",
            &["s", "args", "stepId", "eState"],
            state,
            &["ncclProfilerRecordProxyStepEventStates", "ncclProfilingRecord"],
        ),
        one(
            "ncclProfilerStopProxyStepEvent",
            &["s", "args", "stepId"],
            stop,
            &["ncclProfilerStopProxyStepEvents", "ncclProfilingRecord"],
        ),
        // The op as a whole: by direction up to 2.26, in one function from 2.27 on.
        one(
            "ncclProfilerStartSendProxyOpEvent",
            &["s", "args"],
            op_start,
            &["ncclProfilerStartProxyOpEvent", "ncclProfilingRecord"],
        ),
        one(
            "ncclProfilerStartRecvProxyOpEvent",
            &["s", "args"],
            op_start,
            &["ncclProfilerStartProxyOpEvent", "ncclProfilingRecord"],
        ),
        one(
            "ncclProfilerStartProxyOpEvent",
            &["s", "args"],
            op_start,
            &["ncclProfilerStartSendProxyOpEvent", "ncclProfilingRecord"],
        ),
        one("ncclProfilerStopProxyOpEvent", &["s", "args"], op_stop, &["ncclProfilingRecord"]),
        one(
            "ncclProfilerRecordProxyOpEventState",
            &["s", "args", "eState"],
            op_state,
            &["ncclProfilingRecord"],
        ),
        // These call the hooks. They are polled without end: no probe goes to their entries.
        FunctionSpec::optional("sendProxyProgress", &[], fewer_and_no_sizes),
        FunctionSpec::optional("recvProxyProgress", &[], fewer),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{lost_without_type, nccl_request};

    #[test]
    fn entries_are_unique_and_say_what_is_lost() {
        let request = nccl_request();
        let names: BTreeSet<_> = request.functions.iter().map(|spec| &*spec.name).collect();
        assert_eq!(names.len(), request.functions.len());
        assert!(request.functions.iter().all(|spec| !spec.lost_without.is_empty()));
        for spec in &request.functions {
            assert!(spec.alternatives.iter().all(|other| names.contains(&**other)), "{}", spec.name);
        }
        let types: BTreeSet<_> = request.structs.iter().chain(&request.enums).collect();
        assert_eq!(types.len(), request.structs.len() + request.enums.len());
        assert!(types.iter().all(|name| lost_without_type(name).is_some_and(|lost| !lost.is_empty())));
    }
}
