//! Prints what the witnesses of a run say: `witnesses TRUTH_DIR LOG_DIR [TRANSFER_FILE RANKS]`.

use std::path::Path;

use anyhow::{Context as _, Result};
use ncclflow_e2e::compare;
use ncclflow_e2e::truth::debug_log::DebugLog;
use ncclflow_e2e::truth::plugin::{PluginTruth, ProxyOp};
use ncclflow_e2e::truth::transfer_log::TransferLog;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let truth = PluginTruth::read(Path::new(arguments.first().context("no truth directory")?))?;
    let log = DebugLog::read_directory(Path::new(arguments.get(1).context("no log directory")?))?;
    for (member, rank) in &truth.ranks {
        let messages: i64 = rank.ops.iter().map(|op| i64::from(op.n_steps)).sum();
        let steps: usize = rank.ops.iter().map(|op| op.steps.len()).sum();
        let bytes: Option<u64> = rank.ops.iter().map(ProxyOp::bytes).sum();
        println!(
            "{member}: v{}, {} collectives, {} p2p calls, {} proxy ops, {messages} planned and {steps} run steps, \
             {bytes:?} bytes both ways",
            rank.api,
            rank.colls.len(),
            rank.p2ps.len(),
            rank.ops.len()
        );
        for op in rank.ops.iter().filter(|op| op.stop.is_none()) {
            println!(
                "  in flight: channel {} {} peer {} {:?}",
                op.channel,
                op.direction,
                op.peer,
                op.progress()
            );
        }
        match log.member_or_alike(*member, rank.n_ranks.unwrap_or(-1)) {
            Some(logged) => println!(
                "  log: {} rings, {} trees, {} connections, {} calls",
                logged.rings.len(),
                logged.trees.len(),
                logged.connections.len(),
                logged.calls.len()
            ),
            None => println!("  log: nothing"),
        }
    }
    println!("orphans: {}, unattributed connections: {}", truth.orphans.len(), log.unattributed.len());
    if let [_, _, file, ranks, ..] = &arguments[..] {
        let transfers = TransferLog::read(Path::new(file), ranks.parse()?)?;
        println!("plugin against device: {}", compare::witnesses(&truth, &transfers));
    }
    Ok(())
}
