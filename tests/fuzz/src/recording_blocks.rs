//! A segment of a recording without compression and checksums, which a fuzzer cannot make: what it changes is what a reader gets to see.
//! Bytes are: blocks one after the other, each its kind, its flags, lengths of index and body, first and last time, index, body.

use flow::recording::{Block, BlockAbout, BlockHeader, BlockKind, HEADER_BYTES, append_block};

/// Magic and version of a segment.
const PREAMBLE: &[u8] = b"ncclflow rec\x01\0\0\0";

const HEAD: usize = 26;

/// Blocks of an input at most: each can hold 64 MiB of records in a few bytes, which is slow, and nothing new.
const MAX_BLOCKS: usize = 64;

/// Kinds by their numbers in the file.
const KINDS: [BlockKind; 7] = [
    BlockKind::Unknown(0),
    BlockKind::Session,
    BlockKind::Bindings,
    BlockKind::Records,
    BlockKind::Event,
    BlockKind::End,
    BlockKind::Unknown(6),
];

/// The segment of an input. What is left of it when a block is not whole is a block of what there is.
pub fn segment(mut input: &[u8]) -> Vec<u8> {
    let mut bytes = PREAMBLE.to_vec();
    for _ in 0..MAX_BLOCKS {
        let Some((head, rest)) = input.split_at_checked(HEAD) else { break };
        let length =
            |at: usize| head.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_le_bytes(*b));
        let time =
            |at: usize| head.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u64::from_le_bytes(*b));
        let (index, rest) = rest.split_at((length(2) as usize).min(rest.len()));
        let (body, rest) = rest.split_at((length(6) as usize).min(rest.len()));
        let about = BlockAbout {
            kind: KINDS.get(usize::from(head[0])).copied().unwrap_or(BlockKind::Unknown(u16::from(head[0]))),
            is_lasting: head[1] & 1 != 0,
            records: 0,
            first_ns: time(10),
            last_ns: time(18),
            index,
        };
        // One that is too large is left out.
        let _ = append_block(&mut bytes, &about, body);
        input = rest;
    }
    bytes
}

/// The input of a segment: a seed.
pub fn input_of(segment: &[u8]) -> Vec<u8> {
    let (mut input, mut rest) = (Vec::new(), segment.get(PREAMBLE.len()..).unwrap_or_default());
    while let Some(header) = BlockHeader::from_bytes(rest)
        && let Some(len) = header.rest_bytes()
        && let Some(content) = rest.get(HEADER_BYTES..HEADER_BYTES + len)
        && let Some(block) = Block::checked(header, content)
    {
        let mut body = Vec::new();
        if block.inflate(&mut body).is_none() {
            break;
        }
        let number = KINDS.iter().position(|kind| *kind == header.kind).unwrap_or(0);
        input.push(u8::try_from(number).unwrap_or(0));
        input.push(u8::from(header.is_lasting));
        for length in [block.index.len(), body.len()] {
            input.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        }
        input.extend_from_slice(&header.first_ns.to_le_bytes());
        input.extend_from_slice(&header.last_ns.to_le_bytes());
        input.extend_from_slice(block.index);
        input.extend_from_slice(&body);
        rest = rest.get(HEADER_BYTES + len..).unwrap_or_default();
    }
    input
}
