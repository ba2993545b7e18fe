//! Do the witnesses agree with each other? NCCL's proxy and the device emulator share the slots of each
//! connection and nothing else: if one of them lies, no check against it means anything.

use super::Findings;
use super::ops;
use crate::truth::plugin::{PluginTruth, ProxyOp};
use crate::truth::transfer_log::{Transfer, TransferLog};

/// Counts ops. NCCL keeps some from its plugin (`RankTruth::sees_every_p2p_op`, `sees`); those that the
/// plugin has must be found among the device's, in order.
pub fn check(truth: &PluginTruth, log: &TransferLog) -> Findings {
    let mut findings = Findings::default();
    for (member, rank) in &truth.ranks {
        let transfers = log.ranks.get(member).map_or(&[][..], Vec::as_slice);
        let mut moved = ops::moved_by_path(transfers);
        for (path, ran) in ops::run_by_path(rank) {
            let mut moved = moved.remove(&path).unwrap_or_default();
            moved.retain(|transfer| rank.sees(&transfer.func));
            let hidden = path.p2p && !rank.sees_every_p2p_op();
            if ran.len() > moved.len() || !hidden && ran.len() < moved.len() {
                findings.complain(format!("{member} {path}: {} ops ran, {} moved", ran.len(), moved.len()));
            }
            let mut rest = moved.into_iter();
            for (index, op) in ran.into_iter().enumerate() {
                let partner = if hidden { rest.find(|transfer| agrees(op, transfer)) } else { rest.next() };
                findings.compare(partner.is_some_and(|transfer| agrees(op, transfer)), || {
                    let messages = op.n_steps;
                    let device = partner.map(|transfer| (transfer.messages, transfer.wire_bytes));
                    format!(
                        "{member} {path} op {index}: {messages} messages of {:?}, device: {device:?}",
                        op.bytes()
                    )
                });
            }
        }
        for (path, mut moved) in moved {
            moved.retain(|transfer| rank.sees(&transfer.func));
            if !moved.is_empty() && (!path.p2p || rank.sees_every_p2p_op()) {
                findings.complain(format!("{member} {path}: no op ran, {} moved", moved.len()));
            }
        }
    }
    findings
}

fn agrees(op: &ProxyOp, transfer: &Transfer) -> bool {
    if op.api >= 2 && i64::from(op.n_steps) != i64::try_from(transfer.messages).unwrap_or(-1) {
        return false;
    }
    match (op.sizes(), transfer.wire_sizes()) {
        (Some(ran), Some(moved)) => ran == moved,
        _ => op.bytes() == Some(transfer.wire_bytes),
    }
}
