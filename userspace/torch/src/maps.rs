//! `std::map`, and the one `std::unordered_map` that leads to rings, as libstdc++ lays them out.

use std::collections::HashSet;

use cpython::{Reader, Record};

use crate::Unknown;

/// Offset of the value in a node of the tree.
const NODE_HEAD: u32 = 32;
/// Most process groups; a job has some tens.
pub(crate) const MAX_NODES: u64 = 4096;

const WRONG: Unknown = Unknown::Contradiction("a map's tree does not have the nodes that it should");

/// Tells whether the words at `offset` are a `std::map`'s: an empty one leads to itself, another one to its
/// nodes.
pub(crate) fn is_map(record: &Record, offset: u32) -> bool {
    let head = record.address.wrapping_add(u64::from(offset) + 8);
    let [root, left, right, count] = [16, 24, 32, 40].map(|word| record.u64(offset + word));
    if count == 0 {
        return root == 0 && left == head && right == head;
    }
    let is_node = |at: u64| at >= 4096 && at.is_multiple_of(8) && at != head;
    count <= MAX_NODES && [root, left, right].into_iter().all(is_node)
}

/// Reads the values of the map at `offset`, `size` bytes each, in no order.
pub(crate) fn values(
    reader: &Reader<'_>,
    record: &Record,
    offset: u32,
    size: u32,
) -> Result<Vec<Record>, Unknown> {
    if !is_map(record, offset) {
        return Err(WRONG);
    }
    let count = record.u64(offset + 40);
    let mut known = HashSet::new();
    let (mut level, mut values) = (vec![record.u64(offset + 16)], Vec::new());
    level.retain(|node| *node != 0);
    // Goes level by level: the pieces of one are read together.
    while !level.is_empty() {
        if known.len() as u64 + level.len() as u64 > count || !level.iter().all(|node| known.insert(*node)) {
            return Err(WRONG);
        }
        let pieces: Vec<(u64, usize)> =
            level.iter().map(|node| (*node, (NODE_HEAD + size) as usize)).collect();
        let mut next = Vec::new();
        for (node, bytes) in level.iter().zip(reader.gather(&pieces)?) {
            let mut bytes = bytes.ok_or(Unknown::Unreadable(*node))?;
            let head = Record { address: *node, bytes: bytes.clone() };
            next.extend([head.u64(16), head.u64(24)].into_iter().filter(|child| *child != 0));
            let address = node.checked_add(u64::from(NODE_HEAD)).ok_or(WRONG)?;
            values.push(Record { address, bytes: bytes.split_off(NODE_HEAD as usize) });
        }
        level = next;
    }
    if values.len() as u64 == count { Ok(values) } else { Err(WRONG) }
}

/// Bytes of a `std::unordered_map`.
pub(crate) const TABLE_BYTES: usize = 56;

/// Most backends that keep a ring of their own.
const MAX_BACKENDS: u64 = 16;

/// Returns the first node of a `std::unordered_map`, and how many it has, if `bytes` are one's.
pub(crate) fn table(bytes: &[u8]) -> Option<(u64, u64)> {
    let table = Record { address: 0, bytes: bytes.get(..TABLE_BYTES)?.to_vec() };
    let [buckets, bucket_count, first, count] = [0, 8, 16, 24].map(|word| table.u64(word));
    // The load factor is that which every table begins with.
    let is_table = table.u32(32) == 1.0f32.to_bits()
        && (1..=MAX_BACKENDS).contains(&count)
        && (2..=4096).contains(&bucket_count)
        && buckets >= 4096
        && first >= 4096;
    is_table.then_some((first, count))
}

/// Reads the nodes of a table with `std::string` as its key and a pointer as its value: these pointers, and
/// where each name stands.
pub(crate) fn table_nodes(
    reader: &Reader<'_>,
    first: u64,
    count: u64,
) -> Result<Vec<(Record, u64)>, Unknown> {
    /// Bytes of a node: next, a string, a pointer, and the key's hash.
    const NODE: u32 = 8 + 32 + 8 + 8;
    let (mut at, mut nodes) = (first, Vec::new());
    while at != 0 {
        if nodes.len() as u64 >= count.min(MAX_BACKENDS) {
            return Err(WRONG);
        }
        let node = reader.record(at, NODE)?;
        at = node.u64(0);
        let value = node.u64(40);
        nodes.push((node, value));
    }
    if nodes.len() as u64 == count { Ok(nodes) } else { Err(WRONG) }
}
