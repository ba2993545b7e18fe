//! Launches without proxy ops, in made memory: a plan of the real library's layout, with the arguments that
//! NCCL's source puts there, is read by the fetch plans of the probes, decoded and made a row of.
//!
//! The truth is what is put into the memory, by NCCL's names of the fields (src/scheduler/symmetric_sched.cc,
//! src/ce_coll.cc, src/rma/rma.cc of 2.27 to 2.30; 2.32 by its debugging information). The steps are run by a
//! machine of this test's own. Libraries come from the cache, as in `short_walk.rs`.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use flow::{
    decode::{Decoder, Event, LaunchKernel, PlanFields, ProxyOpFields, RecordView},
    model::{FlowRecord, Node, Rows, Session},
    schema::{HostInfo, LaunchKind, Observed, OpRow, Pointer},
    session::Level,
    wire::ProbeKind,
};
use nccl_library::{
    elf::Image,
    nccl::{Direction, NameTables},
    symbols::{Resolution, nccl_request, resolve},
};
use ncclflow_common::{FetchPlan, RecordHeader, StepOp};
use trace::kernel::probe::{self, Probe, ProbeSet};

use test_support::nccl;

const COMM: u64 = 0x1000_0000;
const PLAN: u64 = 0x2000_0000;
const ARGS: u64 = 0x3000_0000;
const TASKS: u64 = 0x4000_0000;
const PEERS: u64 = 0x5000_0000;
/// Address at which the library is mapped.
const BASE: u64 = 0x7f00_0000_0000;

/// The target's memory, a piece for each address.
#[derive(Default)]
struct Memory(BTreeMap<u64, Vec<u8>>);

impl Memory {
    fn piece(&mut self, at: u64, len: u64) {
        self.0.insert(at, vec![0; usize::try_from(len).unwrap()]);
    }

    fn put(&mut self, at: u64, value: u64, len: u64) {
        let (base, piece) = self.0.range_mut(..=at).next_back().unwrap();
        let from = usize::try_from(at - base).unwrap();
        piece[from..][..usize::try_from(len).unwrap()]
            .copy_from_slice(&value.to_le_bytes()[..usize::try_from(len).unwrap()]);
    }

    fn read(&self, at: u64, len: usize) -> Option<&[u8]> {
        let (base, piece) = self.0.range(..=at).next_back()?;
        piece.get(usize::try_from(at - base).ok()?..)?.get(..len)
    }
}

/// Runs a fetch plan as the kernel side does (common/src/plan.rs says what each step means).
fn run(plan: &FetchPlan, args: &[u64], memory: &Memory) -> Vec<u8> {
    let mut slots = [0u64; 16];
    slots[..args.len()].copy_from_slice(args);
    // What is in the registers of other arguments.
    slots[args.len()..8].fill(0xdead_beef);
    let (mut record, mut faults, mut skip) = (vec![0u8; plan.record_len.into()], 0u64, 0);
    for (number, step) in plan.steps[..usize::try_from(plan.n_steps).unwrap()].iter().enumerate() {
        if skip > 0 {
            skip -= 1;
            continue;
        }
        let is = |op: StepOp| step.op == op as u8;
        let (src, dst, at, len) = (
            slots[usize::from(step.src)],
            usize::from(step.dst),
            usize::from(step.at),
            usize::from(step.len),
        );
        let from = src.wrapping_add(step.imm.cast_unsigned());
        let index = slots[usize::from(step.index)];
        if is(StepOp::Load) || is(StepOp::LoadWords) {
            assert!(is(StepOp::Load) && len <= 8 || dst < 8 && len <= 64, "{step:?}");
            if let Some(bytes) = memory.read(from, len) {
                for (at, word) in bytes.chunks(8).enumerate() {
                    let mut value = [0; 8];
                    value[..word.len()].copy_from_slice(word);
                    slots[dst + at] = u64::from_le_bytes(value);
                }
            } else {
                faults |= 1 << number;
                slots[dst..][..len.div_ceil(8)].fill(0);
            }
        } else if is(StepOp::Scale) {
            slots[dst] = src.wrapping_add(index.wrapping_mul(step.imm.cast_unsigned()));
        } else if is(StepOp::Add) {
            slots[dst] = from;
        } else if is(StepOp::Skip) {
            skip = if src == 0 { step.imm } else { 0 };
        } else if is(StepOp::Emit) || is(StepOp::Copy) || is(StepOp::EmitAndCopy) {
            let mut at = at;
            if !is(StepOp::Copy) {
                record[at..][..8].copy_from_slice(&src.to_le_bytes());
                at += 8;
            }
            if !is(StepOp::Emit) {
                match memory.read(from, len) {
                    Some(bytes) => record[at..][..len].copy_from_slice(bytes),
                    None => faults |= 1 << number,
                }
            }
        } else {
            panic!("{step:?}");
        }
    }
    let header = RecordHeader {
        len: plan.record_len,
        tgid: 10,
        tid: 100,
        ts_ns: 7,
        faults,
        ..RecordHeader::default()
    };
    record[..RecordHeader::SIZE].copy_from_slice(&header.to_bytes());
    record
}

/// A library, its probes, and the memory of a process that uses it.
struct Target {
    resolution: Resolution,
    set: ProbeSet,
    memory: Memory,
    session: Session,
    node: Node,
    rows: Vec<OpRow>,
}

impl Target {
    fn new(version: &str) -> Option<Self> {
        let library = nccl(version)?;
        let resolution = resolve(&Image::open(&library).unwrap(), &nccl_request()).unwrap();
        let set = probe::compile(&resolution, Level::Flow, None);
        let mut target = Self {
            memory: Memory::default(),
            session: Session::default(),
            node: Node::default(),
            rows: Vec::new(),
            resolution,
            set,
        };
        for (at, strukt) in [(COMM, "ncclComm"), (PLAN, "ncclKernelPlan")] {
            target.memory.piece(at, target.size(strukt));
        }
        for (field, value) in [("commHash", 7), ("rank", 1), ("nRanks", 4)] {
            target.put(COMM, "ncclComm", field, value);
        }
        target.put(PLAN, "ncclKernelPlan", "comm", COMM);
        target.put(PLAN, "ncclKernelPlan", "channelMask", 0b1111);
        let reclaim = BASE + 0x1_0000;
        target.put(PLAN, "ncclKernelPlan", "reclaimer.fn", reclaim);
        target.put(PLAN, "ncclKernelPlan", "kernelArgs", ARGS);
        Some(target)
    }

    fn size(&self, strukt: &str) -> u64 {
        self.resolution.layouts.struct_size(strukt).unwrap()
    }

    fn put(&mut self, at: u64, strukt: &str, field: &str, value: u64) {
        let field =
            self.resolution.layouts.field(strukt, field).unwrap_or_else(|| panic!("{strukt}.{field}"));
        self.memory.put(at + field.offset, value, field.size);
    }

    fn probe(&self, function: &str) -> &Probe {
        self.set.probes.iter().find(|probe| probe.function == function).unwrap()
    }

    fn decode(&self, kind: &ProbeKind, record: &[u8]) -> Event {
        let layouts = &self.resolution.layouts;
        let decoder = Decoder {
            op_fields: Some(ProxyOpFields::find(layouts, 0).unwrap()),
            names: NameTables::from_layouts(layouts).or_as_declared(),
            plan_fields: PlanFields::from_layouts(layouts, self.resolution.nccl_version),
            op_work: None,
            symmetric_kernels: LaunchKernel::all(&self.resolution.symmetric_kernels),
            communicator: None,
        };
        decoder.decode(kind, &RecordView::new(record).unwrap()).unwrap()
    }

    fn apply(&mut self, event: Event) {
        let mut out = Vec::new();
        self.session.apply(event, &mut self.node, &mut |record: FlowRecord| out.push(record));
        let host = HostInfo { pid: 10, host: "host".into() };
        self.rows.extend(out.iter().map(|record| Rows::default().op(record, &host).row));
    }

    /// Hits the probe at the launch. Whether its record has no more than an ordinary launch's is in the
    /// answer.
    fn launch(&mut self) {
        let probe = self.probe("ncclLaunchKernelAfter_NoCuda");
        let record = run(&probe.plan, &[COMM, PLAN], &self.memory);
        let event = self.decode(&probe.kind, &record);
        self.apply(event);
    }

    /// Hits the probe at the launch of one-sided calls, with these nodes of the two lists.
    fn one_sided(&mut self, tasks: [&[u64]; 2]) {
        let probe = self.probe("ncclLaunchRma");
        let program = probe.walk.as_ref().unwrap();
        let mut events = Vec::new();
        for (queue, tasks) in program.walk.queues.iter().zip(tasks) {
            let part = &program.parts[usize::try_from(queue.plan).unwrap()];
            for (number, task) in (0..).zip(tasks) {
                // The words of a node's plan: its address and its number.
                let record = run_node(&part.plan, *task, number, &self.memory);
                events.push(self.decode(&part.kind, &record));
            }
        }
        let mut record = run(&probe.plan, &[COMM, PLAN], &self.memory);
        let at = usize::from(program.walk.nodes_at);
        for (list, tasks) in tasks.iter().enumerate() {
            record[at + 8 * list..][..8].copy_from_slice(&u64::try_from(tasks.len()).unwrap().to_le_bytes());
        }
        events.push(self.decode(&probe.kind, &record));
        for event in events {
            self.apply(event);
        }
    }
}

fn run_node(plan: &FetchPlan, address: u64, number: u64, memory: &Memory) -> Vec<u8> {
    // A node's plan has all its other words free and 0: none is an argument.
    run(plan, &[address, number, 0, 0, 0, 0, 0, 0], memory)
}

/// The kernel that the library's symbols name so, at the address at which it is mapped.
fn kernel(target: &Target, name: &str) -> u64 {
    let kernels = &target.resolution.symmetric_kernels;
    let kernel =
        kernels.iter().find(|kernel| kernel.name.as_str() == name).unwrap_or_else(|| panic!("{name}"));
    (BASE + 0x1_0000).wrapping_add_signed(kernel.from_reclaim)
}

fn symmetric(target: &mut Target, kernel_name: &str, counts: &[u64]) {
    target.put(PLAN, "ncclKernelPlan", "isSymColl", 1);
    let at = kernel(target, kernel_name);
    target.put(PLAN, "ncclKernelPlan", "kernelFn", at);
    if target.resolution.layouts.struct_size("ncclSymDevArgs").is_some() {
        let size = target.size("ncclSymDevArgs");
        target.memory.piece(ARGS, size);
        target.put(PLAN, "ncclKernelPlan", "kernelArgsSize", size);
        for (field, value) in [("rootRank", 3), ("nElts", counts[0]), ("input", 0xa000), ("output", 0xb000)] {
            target.put(ARGS, "ncclSymDevArgs", field, value);
        }
        return;
    }
    // ncclSymkDevWorkArgs::calcArgsSize for five channels: the ranges end at no multiple of 16.
    let aligned = |bytes: u64| bytes.next_multiple_of(16);
    let works =
        aligned(target.size("ncclSymkDevWorkArgs")) + aligned(5 * target.size("ncclSymkChannelWorkRange"));
    let work = target.size("ncclSymkDevWork");
    let size = works + work * u64::try_from(counts.len()).unwrap();
    target.memory.piece(ARGS, size);
    target.put(ARGS, "ncclSymkDevWorkArgs", "nMaxChannels", 5);
    target.put(PLAN, "ncclKernelPlan", "kernelArgsSize", size);
    target.put(PLAN, "ncclKernelPlan", "workBytes", 9 << 10);
    for (number, count) in (0..).zip(counts) {
        let at = ARGS + works + number * work;
        let fields = [
            ("nElts", *count),
            ("inputWin", 0x77_0000),
            ("inputOff", 0x40),
            ("outputOff", 0xb000),
            ("rootRank", 3),
        ];
        for (field, value) in fields {
            target.put(at, "ncclSymkDevWork", field, value);
        }
    }
}

const WITH_SYMMETRIC: [&str; 3] = ["2.27.5-cu12", "2.28.9-cu13", "2.32.3-cu12"];

#[test]
fn a_kernel_on_symmetric_memory_is_told_with_its_call() {
    for version in WITH_SYMMETRIC {
        let Some(mut target) = Target::new(version) else { continue };
        symmetric(&mut target, "AllReduce_AGxLL_R_sum_bf16", &[1000]);
        target.launch();
        let [row] = target.rows.as_slice() else { panic!("{version}: {:?}", target.rows) };
        assert_eq!(row.launch, Some(LaunchKind::Symmetric), "{version}");
        assert_eq!(row.kernel.as_deref(), Some("AllReduce_AGxLL_R_sum_bf16"), "{version}");
        assert_eq!((row.coll.as_deref(), row.coll_api.as_deref()), (Some("AllReduce"), Some("AllReduce")));
        assert_eq!((row.dtype.as_deref(), row.red_op.as_deref()), (Some("bfloat16"), Some("sum")));
        assert_eq!(
            (row.count, row.bytes, row.calls),
            (Some(1000), Some(2000), Observed::Known(1)),
            "{version}"
        );
        assert_eq!((row.rank, row.n_ranks, row.root, row.posted, row.needed), (1, 4, 3, false, false));
        // 2.27 gives addresses; later a buffer in a window has an offset, and one in none its address.
        if version.starts_with("2.27") {
            assert_eq!((row.send_buffer, row.recv_buffer), (Some(Pointer(0xa000)), Some(Pointer(0xb000))));
        } else {
            assert_eq!(
                (row.send_window, row.send_offset),
                (Some(Pointer(0x77_0000)), Some(0x40)),
                "{version}"
            );
            assert_eq!((row.recv_window, row.recv_buffer), (None, Some(Pointer(0xb000))), "{version}");
        }
        assert!(row.seq % 2 == 1, "NCCL does not count it among the collectives");
        let counted = target.session.counters().plans;
        assert_eq!((counted.plans, counted.symmetric, counted.untold, counted.empty), (1, 1, 0, 0));
    }
}

#[test]
fn several_calls_in_one_launch_are_counted_and_none_is_made_up() {
    for version in ["2.28.9-cu13", "2.32.3-cu12"] {
        let Some(mut target) = Target::new(version) else { continue };
        symmetric(&mut target, "AllGather_LL", &[100, 200, 300]);
        target.launch();
        let [row] = target.rows.as_slice() else { panic!("{version}: {:?}", target.rows) };
        assert_eq!((row.coll.as_deref(), row.calls), (Some("AllGather"), Observed::Known(3)), "{version}");
        assert_eq!((row.count, row.bytes, row.bytes_at_most), (None, None, Some(9 << 10)), "{version}");
        assert_eq!((row.send_window, row.recv_buffer), (None, None), "{version}");
    }
}

/// A kernel that no symbol names, as in a stripped library.
#[test]
fn a_launch_of_which_nothing_can_be_told_is_counted() {
    for version in WITH_SYMMETRIC {
        let Some(mut target) = Target::new(version) else { continue };
        symmetric(&mut target, "AllGather_LL", &[100]);
        target.resolution.symmetric_kernels.clear();
        target.launch();
        let [row] = target.rows.as_slice() else { panic!("{version}: {:?}", target.rows) };
        assert_eq!(
            (row.launch, row.kernel.as_ref(), row.coll.as_ref()),
            (Some(LaunchKind::Symmetric), None, None)
        );
        let counted = target.session.counters().plans;
        assert_eq!((counted.symmetric, counted.untold), (1, 1), "{version}");
        // A plan with nothing in it, and no flag.
        target.put(PLAN, "ncclKernelPlan", "isSymColl", 0);
        target.launch();
        assert_eq!((target.rows.len(), target.session.counters().plans.empty), (1, 1), "{version}");
    }
}

#[test]
fn copies_by_copy_engines_are_told() {
    for version in ["2.28.9-cu13", "2.32.3-cu12"] {
        let Some(mut target) = Target::new(version) else { continue };
        let functions = &target.resolution.layouts.enums["ncclFunc_t"].values;
        let all_to_all =
            functions.iter().find(|(name, _)| name == "ncclFuncAlltoAll").unwrap().1.cast_unsigned();
        target.put(PLAN, "ncclKernelPlan", "isCeColl", 1);
        target.memory.piece(ARGS, 96);
        for (field, value) in [
            ("func", all_to_all),
            ("rootRank", 0xffff_ffff),
            ("nElts", 300),
            ("eltSize", 4),
            ("sendBuff", 0xa000),
            ("recvBuff", 0xb000),
            ("sendWin", 0xc000),
        ] {
            target.put(ARGS, "ncclCeCollArgs", field, value);
        }
        if target.resolution.layouts.field("ncclCeCollArgs", "datatype").is_some() {
            target.put(ARGS, "ncclCeCollArgs", "datatype", 7); // ncclFloat32
        }
        target.launch();
        let [row] = target.rows.as_slice() else { panic!("{version}: {:?}", target.rows) };
        assert_eq!(
            (row.launch, row.coll.as_deref()),
            (Some(LaunchKind::CopyEngine), Some("AlltoAll")),
            "{version}"
        );
        assert_eq!((row.count, row.bytes, row.root), (Some(300), Some(1200), -1), "{version}");
        assert_eq!(row.dtype.as_deref(), version.starts_with("2.32").then_some("float32"), "{version}");
        assert_eq!((row.send_buffer, row.recv_buffer), (Some(Pointer(0xa000)), Some(Pointer(0xb000))));
        assert_eq!((row.send_window, row.recv_window), (Some(Pointer(0xc000)), None));
        assert_eq!(target.session.counters().plans.copy_engine, 1);
    }
}

#[test]
fn one_sided_calls_are_told_with_their_peers_before_nccl_takes_them_out() {
    let Some(mut target) = Target::new("2.32.3-cu12") else { return };
    let functions = target.resolution.layouts.enums["ncclFunc_t"].values.clone();
    let function = |name: &str| functions.iter().find(|(known, _)| known == name).unwrap().1.cast_unsigned();
    target.put(PLAN, "ncclKernelPlan", "isRma", 1);
    let size = target.size("ncclTaskRma");
    let [put, signal, wait] = [0, 1, 2].map(|number| TASKS + 0x1000 * number);
    target.memory.piece(PEERS, 64);
    for (at, peer) in (0..).zip([2u64, 0, 3]) {
        target.memory.put(PEERS + 4 * at, peer, 4);
    }
    for (task, name, peer, bytes) in [
        (put, "ncclFuncPutSignal", 2, 4096),
        (signal, "ncclFuncSignal", 3, 0),
        (wait, "ncclFuncWaitSignal", 0, 0),
    ] {
        target.memory.piece(task, size);
        target.put(task, "ncclTaskRma", "func", function(name));
        target.put(task, "ncclTaskRma", "peer", peer);
        target.put(task, "ncclTaskRma", "bytes", bytes);
    }
    for (field, value) in [
        ("count", 1024),
        ("datatype", 7),
        ("srcBuff", 0xa000),
        ("srcWinHost", 0xc000),
        ("srcWinOffset", 0x20),
        ("peerWinHost", 0xd000),
        ("peerWinOffset", 0x30),
    ] {
        target.put(put, "ncclTaskRma", field, value);
    }
    target.put(wait, "ncclTaskRma", "peers", PEERS);
    target.put(wait, "ncclTaskRma", "npeers", 3);
    target.one_sided([&[put, signal], &[wait]]);
    // The launch itself comes next, and its calls have been taken out.
    target.memory.piece(ARGS, 64);
    target.launch();
    let told: Vec<_> = target
        .rows
        .iter()
        .map(|row| (row.launch.unwrap(), row.coll.as_deref().unwrap(), row.bytes, row.root))
        .collect();
    assert_eq!(
        told,
        [
            (LaunchKind::OneSidedByProxy, "PutSignal", Some(4096), 2),
            (LaunchKind::OneSidedByProxy, "Signal", Some(0), 3),
            (LaunchKind::OneSidedByCopy, "WaitSignal", Some(0), -1),
        ]
    );
    let put = &target.rows[0];
    assert_eq!((put.count, put.dtype.as_deref()), (Some(1024), Some("float32")));
    assert_eq!(
        (put.send_buffer, put.send_window, put.send_offset),
        (Some(Pointer(0xa000)), Some(Pointer(0xc000)), Some(0x20))
    );
    assert_eq!((put.recv_window, put.recv_offset), (Some(Pointer(0xd000)), Some(0x30)));
    let peers = |row: &OpRow| row.peers.iter().map(|peer| (peer.op, peer.peer)).collect::<Vec<_>>();
    assert_eq!(peers(put), [(Direction::Send, 2)]);
    assert_eq!(peers(&target.rows[2]), [(Direction::Recv, 2), (Direction::Recv, 0), (Direction::Recv, 3)]);
    let counted = target.session.counters().plans;
    assert_eq!((counted.plans, counted.one_sided, counted.untold, counted.incomplete), (1, 1, 0, 0));
}

/// An ordinary launch's record is as before, but for zeros: nothing behind the flags is read.
#[test]
fn an_ordinary_launch_pays_one_small_read() {
    for version in WITH_SYMMETRIC {
        let Some(mut target) = Target::new(version) else { continue };
        target.put(PLAN, "ncclKernelPlan", "workStorageType", 1);
        target.put(PLAN, "ncclKernelPlan", "isHostCbEnq", 1);
        // The arguments are nowhere: whoever reads them gets a fault.
        let probe = target.probe("ncclLaunchKernelAfter_NoCuda");
        let record = run(&probe.plan, &[COMM, PLAN], &target.memory);
        assert_eq!(RecordHeader::from_bytes(&record).unwrap().faults, 0, "{version}");
        let short = probe.walk.as_ref().unwrap().walk.short.record_len[2];
        assert!(
            short < probe.plan.record_len && record[short.into()..].iter().all(|byte| *byte == 0),
            "{version}"
        );
    }
}
