//! Functions that are recognised by their own name, which their code refers to.
//!
//! NCCL's error macros pass `__func__`, so a function that uses them refers to its own name. So does, with
//! the same string, every function that it was inlined into. The callers listed here (NCCL's source, tags
//! v2.16.2-1 to v2.30.7-1) tell the two apart: code that refers to a caller's name too is the caller.
//! Functions that are called through a pointer, or from another source file only, have no caller that they
//! could vanish in.

/// A function that refers to its own name.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) callers: &'static [&'static str],
    /// Most copies that the compiler makes of it.
    pub(super) copies: usize,
    /// The only function that calls it, which must be seen to do so.
    pub(super) called_by: Option<&'static str>,
}

const fn one(name: &'static str, callers: &'static [&'static str]) -> Known {
    Known { name, callers, copies: 1, called_by: None }
}

const PLAN_CALLERS: &[&str] = &[
    "addP2pToPlan",
    "addCollToPlan",
    "addCBDCollToPlan",
    "addProfilerProxyOpIfNeeded",
    "scheduleCollTasksToPlan",
    "scheduleP2pTasksToPlan",
    "ncclLaunchPrepare",
];

pub(super) const KNOWN: &[Known] = &[
    one(
        "ncclProxySaveOp",
        &[
            "addProxyOpIfNeeded",
            "ncclAddProxyOpIfNeeded",
            "addProfilerProxyOpIfNeeded",
            "uploadProxyOps",
            "hostStreamPlanTask",
        ],
    ),
    Known {
        called_by: Some("ncclProxySaveOp"),
        ..one("SaveProxy", &["ncclProxySaveOp", "addProxyOpIfNeeded", "ncclAddProxyOpIfNeeded"])
    },
    // Its callers are the exported API.
    one("ncclEnqueueCheck", &[]),
    one("ncclLaunchKernelAfter_NoCuda", &["doLaunches", "groupLaunch"]),
    one("hostStreamPlanCallback", &[]),
    one("hostStreamPlanTask", &["hostStreamPlanCallback", "ncclLaunchKernelAfter_NoCuda"]),
    one("uploadProxyOps", &["hostStreamPlanTask", "hostStreamPlanCallback", "ncclLaunchKernelAfter_NoCuda"]),
    one("addProxyOpIfNeeded", PLAN_CALLERS),
    // `.constprop` for the callers in its own source file, and the plain one for the others (2.29 and later).
    Known { copies: 2, ..one("ncclAddProxyOpIfNeeded", PLAN_CALLERS) },
    one("ncclGroupEndInternal", &["ncclEnqueueCheck"]),
    // One of the network's transport, one of CollNet's.
    Known { copies: 2, ..one("sendProxyProgress", &[]) },
    Known { copies: 2, ..one("recvProxyProgress", &[]) },
];
