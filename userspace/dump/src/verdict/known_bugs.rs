//! Hangs that are bugs of NCCL: by build, function and what the rank has in flight. A bug is named only where
//! all that is known of it fits.

use serde::{Deserialize, Serialize};

use super::{Case, State, Verdict};
use crate::{OpReport, ProcessReport, ProxyListState, RankReport};
use inspect::threads::Thread;
use nccl_library::{
    elf::Machine,
    nccl::{Direction, NcclVersion},
};

/// A bug of NCCL that a verdict names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KnownBug {
    /// Where it was reported: `nccl#2353`.
    pub issue: String,
    /// The first version without it; null if there is none yet.
    pub fixed_in: Option<String>,
}

impl Verdict {
    /// Says to which version to go, if that ends the trouble.
    pub(super) fn update(&self) -> Option<String> {
        let KnownBug { issue, fixed_in } = self.known_bug.as_ref()?;
        Some(format!("update NCCL to {} or later ({issue})", fixed_in.as_ref()?))
    }
}

/// An entry of the table.
struct Bug {
    /// The first is NCCL's own report, if there is one.
    issues: &'static str,
    /// Versions that have it: from the first one on, and before the second.
    versions: [Option<&'static str>; 2],
    processor: Option<Machine>,
    /// What fits has no other explanation; else the bug is named only where no rank is waited for.
    is_sure: bool,
    /// Tells by a rank and its process's threads that stand still.
    fits: fn(&RankReport, &[&Thread]) -> bool,
    /// What is the matter, with what is seen of it.
    what: &'static str,
    remedy: &'static str,
}

const BUGS: [Bug; 6] = [
    // Slots that are given back by a weak compare-exchange get lost (src/proxy.cc, ncclProxyGetPostedOps),
    // until the launching thread waits for one while none is in use.
    Bug {
        issues: "nccl#2353, also marin#7344 and sglang#33289",
        versions: [None, Some("2.29.3")],
        processor: Some(Machine::Aarch64),
        is_sure: true,
        fits: |rank, threads| {
            let waits = ["ncclLocalOpAppend", "SaveProxy"];
            let mut functions = threads.iter().filter_map(|thread| thread.nccl_function.as_deref());
            functions.any(|function| waits.contains(&function))
                && rank.proxy.state == ProxyListState::Read
                && rank.proxy.ops.is_empty()
        },
        what: "it waits for a slot for a proxy op, and none is in flight: slots were lost",
        remedy: "update NCCL, or build it with GCC 10 or later",
    },
    // The descriptor of a memory handle goes over a Unix socket, and the answer never comes.
    Bug {
        issues: "nccl#2379, also sglang#36943",
        versions: [Some("2.29.0"), None],
        processor: None,
        is_sure: false,
        fits: |_, threads| {
            threads.iter().any(|thread| {
                thread.nccl_function.as_deref() == Some("ncclIpcSocketRecvMsg")
                    && (is_set_up(thread) || thread.nccl_api.as_deref() == Some("ncclCommWindowRegister"))
            })
        },
        what: "it waits without an end for the descriptor of a memory handle, of which the message was lost",
        remedy: "set NCCL_CUMEM_ENABLE=0, or do without symmetric memory",
    },
    Bug {
        issues: "pytorch#149153",
        versions: [Some("2.25.1"), Some("2.26.2")],
        processor: None,
        is_sure: false,
        fits: |_, threads| threads.iter().any(|thread| thread.nccl_api.as_deref() == Some("ncclCommAbort")),
        what: "ncclCommAbort does not come back",
        remedy: "update NCCL",
    },
    // The proxy sets the size of each slot that was filled to -1, also of an op that the GPU is through with:
    // LL's flags are in the data. The GPU has then said of the next op, whose slot it is, that its registered
    // buffer may be written, and does not say it again (src/transport/net.cc, recvProxyProgress).
    Bug {
        issues: "nccl#2389",
        versions: [Some("2.24.0"), None],
        processor: None,
        is_sure: true,
        fits: |rank, _| {
            // Its GPU says so before it fills a slot of the same op.
            let fills = |receive: &OpReport, send: &OpReport| {
                let which = |op: &OpReport| (op.op_count, op.channel, op.p2p);
                send.direction == Direction::Send
                    && send.gpu.is_some_and(|filled| filled > 0)
                    && which(send) == which(receive)
            };
            let ops = &rank.proxy.ops;
            let mut waits = ops.iter().filter(|op| op.gpu_ready == Some(false) && !op.p2p);
            waits.any(|receive| ops.iter().any(|send| fills(receive, send)))
        },
        what: "its GPU is in the op and its proxy does not know that the registered buffer may be written: the \
               flag was erased",
        remedy: "set NCCL_LOCAL_REGISTER=0 and NCCL_GRAPH_REGISTER=0",
    },
    // Ranks exchange keys in a ring over their network adapters. A message that does not arrive is never
    // missed (src/transport/net_ib/gin.cc, ncclGinIbAllGather).
    Bug {
        issues: "nccl#2318, also nccl#2203",
        versions: [Some("2.28.0"), None],
        processor: None,
        is_sure: false,
        fits: |_, threads| {
            // A thread of the library's own makes it, where the call is of a group.
            let exchanges =
                |function: Option<&str>| function.is_some_and(|name| name.contains("GinIbAllGather"));
            threads.iter().any(|thread| {
                let mut frames = thread.frames.iter().map(|frame| frame.function.as_deref());
                exchanges(thread.nccl_function.as_deref()) || frames.any(exchanges)
            })
        },
        what: "it exchanges keys over its network adapters for GPU-initiated networking, and a message does not \
               arrive",
        remedy: "see that the adapters of neighbouring ranks reach each other, also two of one host; else set \
                 NCCL_CROSS_NIC=0",
    },
    // The driver forms the group of GPUs for NVLink SHARP, and does not come back.
    Bug {
        issues: "nccl#2385, also torchcomms#2773",
        versions: [Some("2.17.0"), None],
        processor: None,
        is_sure: false,
        fits: |_, threads| {
            threads.iter().filter(|thread| is_set_up(thread)).any(|thread| {
                let is_nvls = |function: &str| function.to_ascii_lowercase().contains("nvls");
                // Without frames the innermost function of NCCL says that it waits in none for other ranks.
                let inside = thread.frames.first().and_then(|frame| frame.module.as_deref());
                inside.is_none_or(|module| module.starts_with("libcuda.so"))
                    && thread.nccl_function.as_deref().is_some_and(is_nvls)
            })
        },
        what: "it sets up NVLink SHARP, in the driver, which forms a group of all GPUs of the host (as \
               cuMulticastBindMem does)",
        remedy: "set NCCL_NVLS_ENABLE=0, and look at the Fabric Manager and the NVSwitches",
    },
];

/// Tells whether a thread makes a communicator.
fn is_set_up(thread: &Thread) -> bool {
    thread.nccl_api.as_deref().is_some_and(|api| api.starts_with("ncclCommInit") || api == "ncclCommSplit")
}

impl Bug {
    fn is_in(&self, version: NcclVersion, processor: Option<Machine>) -> bool {
        let [first, fixed] = self.versions.map(|version| version.and_then(|version| version.parse().ok()));
        first.is_none_or(|first: NcclVersion| version >= first)
            && fixed.is_none_or(|fixed: NcclVersion| version < fixed)
            && self.processor.is_none_or(|own| processor == Some(own))
    }
}

/// Adds to a verdict on a communicator that stands still the bug that explains it, if one is known.
pub(super) fn add(case: &Case<'_>, verdict: &mut Verdict) {
    let stands = case.ranks.values().all(|rank| rank.motion.is_still());
    if !stands || !matches!(verdict.state, State::Stuck | State::Unknown) {
        return;
    }
    let found = case.ranks.values().find_map(|rank| {
        let process =
            case.process_of(rank).filter(|process| process.communicators == 1 || is_pending(rank))?;
        let bug = bug_of(rank, process).filter(|bug| bug.is_sure || verdict.culprits.is_empty())?;
        Some((rank, process, bug))
    });
    let Some((rank, process, bug)) = found else { return };
    let fixed = bug.versions[1]
        .map_or_else(|| "no version without it is known".to_owned(), |in_| format!("fixed in {in_}"));
    let processor = bug.processor.map(|processor| format!(" on {processor}")).unwrap_or_default();
    let version = rank.nccl_version.as_deref().unwrap_or_default();
    verdict.evidence.push(format!(
        "Known: {}: NCCL {version}{processor}, rank {} (process {}): {}; {fixed}: {}",
        bug.issues, rank.rank, process.pid, bug.what, bug.remedy
    ));
    let issue = bug.issues.split(',').next().unwrap_or_default().to_owned();
    verdict.known_bug = Some(KnownBug { issue, fixed_in: bug.versions[1].map(str::to_owned) });
}

/// Tells whether a call goes on for the rank's communicator, of several of its process.
fn is_pending(rank: &RankReport) -> bool {
    rank.set_up.is_some()
        || rank.pending.as_ref().is_some_and(|pending| pending.in_group == Some(true) || pending.plans > 0)
}

fn bug_of(rank: &RankReport, process: &ProcessReport) -> Option<&'static Bug> {
    let version = rank.version()?;
    // Of several libraries it is not known which one the rank is of, if their versions are the same.
    let mut processors = process
        .libraries
        .iter()
        .filter(|library| library.version == rank.nccl_version)
        .map(|library| library.processor);
    let processor = processors.next().flatten();
    let stand: Vec<_> = process.threads.iter().filter(|thread| !thread.passes).collect();
    BUGS.iter().find(|bug| bug.is_in(version, processor) && (bug.fits)(rank, &stand))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        LibraryReport,
        verdict::{
            judge,
            tests::made::{check, op, over_nvlink, rank, waiting},
        },
    };
    use inspect::threads::NamedFrame;

    /// Judges four ranks of which these have a thread that stands in a function, called from the API.
    fn judged(
        ranks: &mut [RankReport],
        build: (&str, Machine),
        numbers: &[u32],
        place: (&str, &str),
    ) -> Verdict {
        judged_in(ranks, build, numbers, &thread(place))
    }

    fn thread((api, function): (&str, &str)) -> Thread {
        Thread {
            nccl_api: Some(api.to_owned()),
            nccl_function: Some(function.to_owned()),
            is_running: true,
            ..Thread::default()
        }
    }

    fn judged_in(
        ranks: &mut [RankReport],
        (version, processor): (&str, Machine),
        numbers: &[u32],
        thread: &Thread,
    ) -> Verdict {
        let library = LibraryReport {
            version: Some(version.to_owned()),
            processor: Some(processor),
            ..LibraryReport::default()
        };
        for rank in ranks.iter_mut() {
            rank.nccl_version = Some(version.to_owned());
        }
        let processes = numbers.iter().map(|number| ProcessReport {
            pid: 100 + number,
            communicators: 1,
            libraries: vec![library.clone()],
            threads: vec![thread.clone()],
            ..ProcessReport::default()
        });
        judge(ranks, &processes.collect::<Vec<_>>())
    }

    const ALL: &[u32] = &[0, 1, 2, 3];

    fn issue(verdict: &Verdict) -> Option<&str> {
        verdict.known_bug.as_ref().map(|bug| bug.issue.as_str())
    }

    #[test]
    fn lost_slots_of_proxy_ops_are_known_on_arm_only_and_where_no_op_is_in_flight() {
        let there = ("ncclAllReduce", "ncclLocalOpAppend");
        let made = || [waiting(0), waiting(1), rank(2, 4, Vec::new()), waiting(3)];
        let verdict = judged(&mut made(), ("2.28.9", Machine::Aarch64), &[2], there);
        let said = "Known: nccl#2353, also marin#7344 and sglang#33289: NCCL 2.28.9 on aarch64, rank 2 (process 102)";
        check(&verdict, State::Stuck, &[2], &[0, 1, 3], said);
        let known = KnownBug { issue: "nccl#2353".to_owned(), fixed_in: Some("2.29.3".to_owned()) };
        assert_eq!(verdict.known_bug, Some(known));
        let none = |mut ranks: [RankReport; 4], build, number| {
            issue(&judged(&mut ranks, build, &[number], there)).is_none()
        };
        assert!(none(made(), ("2.28.9", Machine::X86_64), 2), "another processor");
        assert!(none(made(), ("2.29.3", Machine::Aarch64), 2), "the first version without it");
        assert!(none(made(), ("2.28.9", Machine::Aarch64), 0), "ops in flight use the slots");
        let mut moving = made();
        moving[0].motion.steps_moved = true;
        assert!(none(moving, ("2.28.9", Machine::Aarch64), 2), "it goes on");
        let verdict =
            judged(&mut made(), ("2.28.9", Machine::Aarch64), &[2], ("ncclAllReduce", "ncclLaunchKernel"));
        assert_eq!(issue(&verdict), None, "another function");
    }

    #[test]
    fn a_lost_descriptor_of_a_memory_handle_is_known() {
        let there = ("ncclCommWindowRegister", "ncclIpcSocketRecvMsg");
        let made = || [0, 1, 2, 3].map(|number| over_nvlink(number, 5, None));
        let verdict = judged(&mut made(), ("2.29.7", Machine::X86_64), ALL, there);
        assert_eq!(verdict.known_bug.unwrap(), KnownBug { issue: "nccl#2379".to_owned(), fixed_in: None });
        let verdict = judged(&mut made(), ("2.28.9", Machine::X86_64), ALL, there);
        assert_eq!(issue(&verdict), None, "before the versions that it was seen in");
        let verdict =
            judged(&mut made(), ("2.29.7", Machine::X86_64), ALL, ("ncclAllReduce", "ncclIpcSocketRecvMsg"));
        assert_eq!(issue(&verdict), None, "another call");
    }

    /// Rank 2's GPU has filled slots for rank 3, so that it is in the op; its receive waits for the flag.
    #[test]
    fn an_erased_flag_of_a_registered_buffer_is_known_where_the_gpu_is_in_the_op() {
        let erased = |ready: Option<bool>, filled: Option<u64>| {
            let mut receive = op(Direction::Recv, 1, 4);
            (receive.posted, receive.gpu_ready) = (0, ready);
            let send = OpReport { gpu: filled, ..op(Direction::Send, 3, 4) };
            [waiting(0), waiting(1), rank(2, 5, vec![receive, send]), waiting(3)]
        };
        let on = |mut ranks: [RankReport; 4], version| {
            let elsewhere = ("ncclAllReduce", "ncclLaunchKernel");
            issue(&judged(&mut ranks, (version, Machine::X86_64), &[2], elsewhere)).map(str::to_owned)
        };
        assert_eq!(on(erased(Some(false), Some(4)), "2.31.2").as_deref(), Some("nccl#2389"));
        assert_eq!(on(erased(Some(false), Some(4)), "2.23.4"), None, "before the versions that have it");
        assert_eq!(on(erased(Some(false), Some(0)), "2.31.2"), None, "the GPU has not come to the op");
        assert_eq!(on(erased(Some(false), None), "2.31.2"), None, "nothing is known of the GPU");
        assert_eq!(on(erased(None, Some(4)), "2.31.2"), None, "a buffer that is not registered");
    }

    #[test]
    fn a_group_for_nvlink_sharp_that_is_not_formed_is_known() {
        let made = || [0, 1, 2, 3].map(|number| over_nvlink(number, 0, None));
        let stands = |module: &str, function: &str| {
            let frame = NamedFrame { module: Some(module.to_owned()), ..NamedFrame::default() };
            let thread = Thread { frames: vec![frame], ..thread(("ncclCommInitRankConfig", function)) };
            judged_in(&mut made(), ("2.31.2", Machine::X86_64), ALL, &thread)
        };
        assert_eq!(issue(&stands("libcuda.so.580.95.05", "ncclNvlsSetup")), Some("nccl#2385"));
        assert_eq!(issue(&stands("libcuda.so.580.95.05", "ncclTransportP2pSetup")), None, "another stage");
        assert_eq!(issue(&stands("libnccl.so.2", "ncclNvlsSetup")), None, "it waits for other ranks");
    }

    #[test]
    fn keys_of_network_adapters_that_do_not_arrive_are_known() {
        let made = || [0, 1, 2, 3].map(|number| over_nvlink(number, 5, None));
        let on = |version, place| judged(&mut made(), (version, Machine::X86_64), ALL, place);
        let exchanges = ("ncclDevCommCreate", "ncclGinIbAllGather");
        assert_eq!(issue(&on("2.30.4", exchanges)), Some("nccl#2318"));
        // In a sample of a function that it calls.
        let frame = NamedFrame { function: Some("ncclGinIbAllGather".to_owned()), ..NamedFrame::default() };
        let below = Thread { frames: vec![frame], ..thread(("ncclDevCommCreate", "ncclIbTest")) };
        let verdict = judged_in(&mut made(), ("2.30.4", Machine::X86_64), ALL, &below);
        assert_eq!(issue(&verdict), Some("nccl#2318"));
        let waits = on("2.30.4", ("ncclDevCommCreate", "bootstrapAllGather"));
        assert_eq!(issue(&waits), None, "it waits for other ranks");
        assert_eq!(issue(&on("2.27.7", exchanges)), None, "before there was any");
    }

    #[test]
    fn an_abort_that_does_not_come_back_is_known_in_the_versions_that_have_it() {
        let there = ("ncclCommAbort", "commReclaim");
        let made = || [0, 1, 2, 3].map(|number| over_nvlink(number, 5, None));
        for (version, known) in [("2.24.3", false), ("2.25.1", true), ("2.26.2", false)] {
            let verdict = judged(&mut made(), (version, Machine::X86_64), ALL, there);
            assert_eq!(issue(&verdict), known.then_some("pytorch#149153"), "{version}");
        }
        // It waits for a rank that does not abort, as in any version.
        let mut late = made();
        late[2] = over_nvlink(2, 4, None);
        assert_eq!(issue(&judged(&mut late, ("2.25.1", Machine::X86_64), ALL, there)), None);
    }
}
