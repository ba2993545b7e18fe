//! What was measured of an op, against what was planned.

use super::{flow::FlowRecord, transfers::transfers};
use crate::schema::{BytesKind, Outcome};

/// Of an op of which every message has come to its end. Keeps how the messages are laid out, for the op's
/// rows.
pub(super) fn of_whole(record: &mut FlowRecord) -> Outcome {
    let mut agrees = true;
    for index in 0..record.peers.len() {
        let Some(peer) = record.peers.get(index) else { continue };
        let Some(measured) = &peer.measured else { continue };
        let layout: Vec<_> = transfers(record, peer).collect();
        agrees &= layout.iter().zip(&measured.messages).all(|(planned, message)| match message.bytes {
            None => true,
            Some(bytes) if planned.bytes_kind == BytesKind::Exact => bytes == planned.bytes,
            Some(bytes) => bytes <= planned.bytes,
        });
        if let Some(measured) = record.peers.get_mut(index).and_then(|peer| peer.measured.as_mut()) {
            measured.layout = layout;
        }
    }
    if agrees { Outcome::AsPlanned } else { Outcome::OtherBytes }
}
