//! The catalog: what ncclflow itself asks of a library.
//!
//! Names and parameters as in NCCL's source at the tags v2.16.2-1 to v2.30.7-1 and in the official binaries
//! up to 2.32.3. A function that exists only in some versions names the one that takes its place in the
//! others.

use super::request::{Called, Declared};
use super::{FunctionSpec, Request};
use crate::{
    fields::{
        AskedBy,
        enums::{DATA_TYPE, ENUMS, FUNC, PATTERN, PROXY_OP_STATE, RED_OP, RESULT},
        structs, structs_of, variables_of_dump,
    },
    nccl::ApiFunction,
};

pub(super) const COMM: Declared = ("comm", "ncclComm*", 8);
const COMM_T: Declared = ("comm", "ncclComm_t", 8);
const PLAN: Declared = ("plan", "ncclKernelPlan*", 8);
const PLAN_: Declared = ("plan_", "void*", 8);
const INFO: Declared = ("info", "ncclInfo*", 8);
const JOB: Declared = ("job_", "ncclAsyncJob*", 8);
pub(super) const OP: Declared = ("op", "ncclProxyOp*", 8);
const PROXY_OP: Declared = ("proxyOp", "ncclProxyOp*", 8);
pub(super) const TYPE: Declared = ("type", "int", 4);
pub(super) const PEER: Declared = ("peer", "int", 4);
pub(super) const CONN_INDEX: Declared = ("connIndex", "int", 4);
pub(super) const JUST_INQUIRE: Declared = ("justInquire", "bool*", 8);
const ARGS: Declared = ("args", "ncclProxyArgs*", 8);
const SUB_INDEX: Declared = ("subIndex", "int", 4);
const SUB: Declared = ("sub", "int", 4);
const STEP: Declared = ("step", "int", 4);
const STATE: Declared = ("state", "int", 4);
const S: Declared = ("s", "int", 4);
const STEP_ID: Declared = ("stepId", "int", 4);
const STEP_LO: Declared = ("stepLo", "uint64_t", 8);
const STEP_HI: Declared = ("stepHi", "uint64_t", 8);
const E_STATE: Declared = ("eState", "ncclProfilerEventState_t", 4);

macro_rules! functions {
    ($($called:ident $name:ident($($param:ident),*): $lost:expr $(, or $($other:ident)+)?;)*) => {
        pub(super) const FUNCTIONS: &[FunctionSpec] = &[$(FunctionSpec {
            called: Called::$called,
            alternatives: &[$($(stringify!($other)),+)?],
            ..FunctionSpec::optional(stringify!($name), &[$($param),*], $lost)
        }),*];
    };
}

/// Functions without which nothing can be traced.
const REQUIRED: [&str; 2] = ["ncclProxySaveOp", "SaveProxy"];

/// Functions of calls that not every version has.
const IN_SOME_VERSIONS: [&str; 1] = ["ncclLaunchRma"];

const PLAN_OF_OP: &str = "the plan that a proxy op belongs to";
const POSTED: &str = "the posted ops of a plan at one probe";
const SEND: &str = "when the GPU filled a message";
const RECEIVE: &str = "when a receive was begun";
const SENT: &str = "when a message was sent and when it arrived";
const STOP: &str = "when a step was done";
const OP_START: &str = "when the proxy thread took an op";

functions! {
    FromOtherFiles ncclProxySaveOp(COMM, OP, JUST_INQUIRE): "the planned and the posted proxy ops";
    Somehow SaveProxy(COMM, TYPE, PEER, OP, CONN_INDEX, JUST_INQUIRE): "the peer of each message";
    Somehow ncclLocalOpAppend(COMM, PROXY_OP):
        "proof that an op was queued for the proxy thread, apart from SaveProxy's arguments";
    Somehow ncclProxyOpToArgs(OP, ARGS, SUB_INDEX):
        "which queued op a step belongs to, other than by its connection";

    FromOtherFiles ncclEnqueueCheck(INFO): "the calls of the API: operation, buffers, count, stream";
    FromOtherFiles ncclLaunchKernel(COMM, PLAN):
        "whole plans at one probe: each op needs a probe hit of its own";
    Somehow addProxyOpIfNeeded(COMM, OP): PLAN_OF_OP, or ncclAddProxyOpIfNeeded;
    Somehow ncclAddProxyOpIfNeeded(COMM, OP): PLAN_OF_OP, or addProxyOpIfNeeded;
    Somehow uploadProxyOps(COMM, PLAN): POSTED, or hostStreamPlanTask;
    Somehow hostStreamPlanTask(COMM, PLAN): POSTED, or uploadProxyOps;
    ByPointer hostStreamPlanCallback(PLAN_):
        "replays of CUDA graphs, and plans posted from a stream callback";
    FromOtherFiles ncclLaunchKernelAfter_NoCuda(COMM, PLAN): "plans posted right after their launch";
    Somehow ncclCudaGraphAddDestructor(): "which operations a launch of a CUDA graph replays";
    FromOtherFiles ncclLaunchRma(COMM, PLAN): "one-sided calls: their peers and bytes";
    Somehow ncclGroupEndInternal(): "which calls were made as one group";

    ByPointer ncclCommInitRankFunc(JOB):
        "the moment at which a communicator is ready; it is seen at its first use";
    Somehow commFree(COMM_T):
        "the end of a communicator; a new one at the same address is told by its hash";
    FromOtherFiles ncclCommDestroy(COMM_T): "when the program gives a communicator up";
    FromOtherFiles ncclCommAbort(COMM_T): "when the program aborts a communicator";

    // NCCL calls these for every network step whether a profiler plugin is loaded or not.
    // 2.16 to 2.22: one function for all.
    FromOtherFiles ncclProfilingRecord(ARGS, SUB, STEP, STATE): "the times of steps",
        or ncclProfilerRecordProxyStepEventState ncclProfilerRecordProxyStepEventStates;
    // 2.23: ranges of steps.
    FromOtherFiles ncclProfilerStartSendProxyStepEvents(S, ARGS, STEP_LO, STEP_HI): SEND,
        or ncclProfilerStartSendProxyStepEvent ncclProfilingRecord;
    FromOtherFiles ncclProfilerStartRecvProxyStepEvents(S, ARGS, STEP_LO, STEP_HI): RECEIVE,
        or ncclProfilerStartRecvProxyStepEvent ncclProfilingRecord;
    FromOtherFiles ncclProfilerRecordProxyStepEventStates(S, ARGS, STEP_LO, STEP_HI, E_STATE): SENT,
        or ncclProfilerRecordProxyStepEventState ncclProfilingRecord;
    FromOtherFiles ncclProfilerStopProxyStepEvents(S, ARGS, STEP_LO, STEP_HI): STOP,
        or ncclProfilerStopProxyStepEvent ncclProfilingRecord;
    // 2.24 on: one step at a time.
    FromOtherFiles ncclProfilerStartSendProxyStepEvent(S, ARGS, STEP_ID): SEND,
        or ncclProfilerStartSendProxyStepEvents ncclProfilingRecord;
    FromOtherFiles ncclProfilerStartRecvProxyStepEvent(S, ARGS, STEP_ID): RECEIVE,
        or ncclProfilerStartRecvProxyStepEvents ncclProfilingRecord;
    FromOtherFiles ncclProfilerRecordProxyStepEventState(S, ARGS, STEP_ID, E_STATE): SENT,
        or ncclProfilerRecordProxyStepEventStates ncclProfilingRecord;
    FromOtherFiles ncclProfilerStopProxyStepEvent(S, ARGS, STEP_ID): STOP,
        or ncclProfilerStopProxyStepEvents ncclProfilingRecord;
    // The op as a whole: by direction up to 2.26, in one function from 2.27 on.
    FromOtherFiles ncclProfilerStartSendProxyOpEvent(S, ARGS): OP_START,
        or ncclProfilerStartProxyOpEvent ncclProfilingRecord;
    FromOtherFiles ncclProfilerStartRecvProxyOpEvent(S, ARGS): OP_START,
        or ncclProfilerStartProxyOpEvent ncclProfilingRecord;
    FromOtherFiles ncclProfilerStartProxyOpEvent(S, ARGS): OP_START,
        or ncclProfilerStartSendProxyOpEvent ncclProfilingRecord;
    FromOtherFiles ncclProfilerStopProxyOpEvent(S, ARGS): "when the proxy thread finished an op",
        or ncclProfilingRecord;
    // 2.27 took two parameters out of its middle.
    Somehow ncclProfilerRecordProxyOpEventState(S, ARGS, E_STATE): "progress of an op as a whole",
        or ncclProfilingRecord;
    // These call the hooks. They are polled without end: no probe goes to their entries.
    Somehow sendProxyProgress():
        "steps are traced at the hooks themselves, with more and costlier hits; sizes of sends before 2.20";
    Somehow recvProxyProgress(): "steps are traced at the hooks themselves, with more and costlier hits";
}

/// Returns the functions, structs and enumerations that ncclflow uses.
pub fn nccl_request() -> Request {
    let spec = |spec: &FunctionSpec| FunctionSpec {
        required: REQUIRED.contains(&spec.name),
        in_some_versions: IN_SOME_VERSIONS.contains(&spec.name),
        ..*spec
    };
    Request {
        functions: FUNCTIONS.iter().map(spec).collect(),
        structs: structs_of(&[AskedBy::Tracing, AskedBy::Both]),
        enums: ENUMS.iter().map(|(name, _)| (*name).to_owned()).collect(),
        variables: Vec::new(),
    }
}

/// Returns the structs, enums and variables that reading a process's memory needs (`dump`), and no function.
pub fn nccl_request_of_memory() -> Request {
    let enums = [FUNC, PATTERN, RESULT, PROXY_OP_STATE, DATA_TYPE, RED_OP];
    Request {
        functions: Vec::new(),
        structs: structs_of(&[AskedBy::Both, AskedBy::Dump, AskedBy::Unshipped]),
        enums: enums.map(str::to_owned).into(),
        variables: variables_of_dump(),
    }
}

/// Functions of CUDA's driver (cuda.h) by which graphs are followed. No version has all of them.
const OF_GRAPHS: [&str; 17] = [
    "cuStreamBeginCapture_v2",
    "cuStreamBeginCapture_v2_ptsz",
    "cuStreamBeginCaptureToGraph",
    "cuStreamBeginCaptureToGraph_ptsz",
    "cuStreamEndCapture",
    "cuStreamEndCapture_ptsz",
    "cuGraphInstantiate",
    "cuGraphInstantiate_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphInstantiateWithParams",
    "cuGraphInstantiateWithParams_ptsz",
    "cuGraphExecUpdate",
    "cuGraphExecUpdate_v2",
    "cuGraphLaunch",
    "cuGraphLaunch_ptsz",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
];

/// Returns the exported functions of CUDA's driver that ncclflow uses.
pub fn driver_request() -> Request {
    let spec = |name| FunctionSpec {
        in_some_versions: true,
        ..FunctionSpec::optional(name, &[], "launches of CUDA graphs")
    };
    Request { functions: OF_GRAPHS.into_iter().map(spec).collect(), ..Request::default() }
}

/// Returns [`nccl_request`] and the exported functions whose returns can be probed.
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

/// Says what is lost without the layout of a struct, or the names of an enumeration, of the catalog.
pub fn lost_without_type(name: &str) -> Option<&'static str> {
    let structs = structs().map(|strukt| (strukt.name, strukt.lost_without));
    structs.chain(ENUMS.iter().copied()).find(|(known, _)| *known == name).map(|(_, lost)| lost)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{lost_without_type, nccl_request};

    #[test]
    fn entries_are_unique_and_say_what_is_lost() {
        let request = nccl_request();
        let names: BTreeSet<_> = request.functions.iter().map(|spec| spec.name).collect();
        assert_eq!(names.len(), request.functions.len());
        assert!(request.functions.iter().all(|spec| !spec.lost_without.is_empty()));
        for spec in &request.functions {
            assert!(spec.alternatives.iter().all(|other| names.contains(other)), "{}", spec.name);
        }
        let types: BTreeSet<_> = request.structs.iter().chain(&request.enums).collect();
        assert_eq!(types.len(), request.structs.len() + request.enums.len());
        assert!(types.iter().all(|name| lost_without_type(name).is_some_and(|lost| !lost.is_empty())));
    }
}
