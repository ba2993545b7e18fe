//! Scratch: a trace made from the transfer log, to run the checks on real sizes.
use ncclflow_e2e::truth::{debug_log::DebugLog, plugin::PluginTruth, transfer_log::TransferLog};
use ncclflow_e2e::{communicator::Member, compare, direction::Direction, tracer::*};
use std::collections::*;
use std::path::Path;
fn main() -> anyhow::Result<()> {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let d = Path::new(&a[0]);
    let n: u32 = a[1].parse()?;
    let version: u32 = a[2].parse()?;
    let truth = PluginTruth::read(&d.join("truth"))?;
    let log = DebugLog::read_directory(&d.join("log"))?;
    let tl = TransferLog::read(&d.join("transfers"), n)?;
    let mut trace = Trace::default();
    for (m, ts) in &tl.ranks {
        let logged = log.member_or_alike(*m, n as i32).unwrap();
        let mut colls: BTreeSet<(u64, u64)> = BTreeSet::new();
        let mut p2ps: BTreeSet<(u64, u64, Direction, i32)> = BTreeSet::new();
        for t in ts {
            if t.is_p2p() {
                p2ps.insert((t.launch, t.op, t.direction, t.peer));
            } else {
                colls.insert((t.launch, t.op));
            }
        }
        let cs: HashMap<_, _> = colls.iter().zip(0u64..).map(|(k, v)| (*k, v * 2)).collect();
        let ps: HashMap<_, _> = p2ps.iter().zip(0u64..).map(|(k, v)| (*k, v * 2 + 1)).collect();
        let mut flows: BTreeMap<(u64, u32), ProxyFlow> = BTreeMap::new();
        let mut steps = vec![];
        // the root of a rooted call, from the api calls in the log: k-th call, no groups
        for t in ts.iter() {
            let p2p = t.is_p2p();
            let seq = if p2p { ps[&(t.launch, t.op, t.direction, t.peer)] } else { cs[&(t.launch, t.op)] };
            let slice = if !p2p
                && t.algo == "RING"
                && t.proto == "SIMPLE"
                && matches!(t.func.as_str(), "AllReduce" | "AllGather" | "ReduceScatter")
            {
                2
            } else {
                1
            };
            let pattern = match (t.func.as_str(), t.algo.as_str()) {
                ("AllReduce", "RING") => "RING_TWICE",
                ("AllReduce", _) => "TREE_UP_DOWN",
                ("AllGather" | "ReduceScatter", _) => "RING",
                ("Broadcast", _) => {
                    if version >= 229 {
                        "RING"
                    } else {
                        "PIPELINE_FROM"
                    }
                }
                ("Reduce", _) => "PIPELINE_TO",
                (_, _) => {
                    if t.direction == Direction::Send {
                        "SEND"
                    } else {
                        "RECV"
                    }
                }
            };
            let root = if pattern.starts_with("PIPELINE") {
                logged
                    .calls
                    .iter()
                    .filter(|c| !matches!(c.func.as_str(), "Send" | "Recv"))
                    .nth((seq / 2) as usize)
                    .map_or(0, |c| c.root)
            } else {
                0
            };
            let ring = logged.rings.get(&t.channel);
            flows.entry((seq, t.channel)).or_insert(ProxyFlow {
                op_count: seq,
                rank: m.rank,
                channel: t.channel,
                nsteps: t.messages * slice,
                slice_steps: slice as u32,
                pattern: pattern.into(),
                protocol: t.proto.clone(),
                ring_prev: ring.map_or(0, |r| r.prev),
                ring_next: ring.map_or(0, |r| r.next),
                coll: Some(if p2p {
                    if t.direction == Direction::Send { "Send".into() } else { "Recv".into() }
                } else if t.func == "Broadcast" && version >= 229 {
                    "AllGatherV".into()
                } else {
                    t.func.clone()
                }),
                root,
                n_ranks: n as i32,
                comm_hash: m.comm_hash,
                seq,
                posted: true,
                count: None,
            });
            if let Some(w) = t.wire_sizes() {
                for (i, b) in w.into_iter().enumerate() {
                    steps.push(FlowStep {
                        op_count: seq,
                        rank: m.rank,
                        channel: t.channel,
                        step: i as u64 * slice,
                        direction: t.direction,
                        peer: t.peer,
                        bytes: b,
                        pattern: pattern.into(),
                        protocol: t.proto.clone(),
                        slots: slice,
                        bytes_kind: BytesKind::Exact,
                        comm_hash: m.comm_hash,
                        seq,
                        posted: true,
                    });
                }
            }
        }
        trace.take(m.rank, flows.into_values().collect(), steps).ok();
    }
    println!("  identity   {}", compare::identity(&trace));
    println!("  plugin     {}", compare::against_plugin(&trace, &truth));
    println!("  topology   {}", compare::topology(&trace, &log));
    println!("  symmetry   {}", compare::symmetry(&trace));
    println!("  transfers  {}", compare::against_transfers(&trace, &tl));
    let mut sizes = BTreeMap::new();
    for (m, r) in &truth.ranks {
        match compare::sums::vector_bytes(m, &trace.ranks[&Member { ..*m }], r) {
            Ok(s) => sizes.extend(s),
            Err(e) => println!("  {e}"),
        }
    }
    println!("  sums       {}", compare::ring_all_reduce_sums(&trace, &|h, s| sizes.get(&(h, s)).copied()));
    println!("  witnesses  {}", compare::witnesses(&truth, &tl));
    Ok(())
}
