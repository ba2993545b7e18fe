//! What later records need of segments that are removed: the session, the bindings, and the blocks that last.

use std::{collections::VecDeque, io, mem};

use flow::recording::{BlockAbout, BlockHeader, BlockKind, HEADER_BYTES, append_block};

use super::{Event, PREAMBLE, preamble, reader, segments};
use crate::sinks::OutputDir;

/// Blocks of segments, as they stand there.
#[derive(Debug)]
pub(super) struct WhatLasts {
    session: Vec<u8>,
    bindings: Vec<u8>,
    lasting: VecDeque<LastingBlock>,
    bytes: usize,
    /// Most bytes of blocks that last; of more, the oldest are left out.
    limit: usize,
}

#[derive(Debug)]
struct LastingBlock {
    bytes: Vec<u8>,
    records: u32,
}

impl WhatLasts {
    /// Of the segment with this number, and of what lasted of those before it. What cannot be read is left
    /// out.
    pub(super) fn of(folder: &OutputDir, before: Option<u32>, number: u32, limit: usize) -> Self {
        let mut new =
            Self { session: Vec::new(), bindings: Vec::new(), lasting: VecDeque::new(), bytes: 0, limit };
        for segment in before.into_iter().chain([number]) {
            let (session, bindings) = (mem::take(&mut new.session), mem::take(&mut new.bindings));
            // What was read until then is kept.
            let _ = new.read(folder, segment);
            // The bindings of a segment begin with those of the one before it, unless no records came or it cannot be
            // read.
            if new.session.is_empty() {
                new.session = session;
            }
            if new.bindings.len() < bindings.len() {
                new.bindings = bindings;
            }
        }
        new
    }

    fn read(&mut self, folder: &OutputDir, number: u32) -> io::Result<()> {
        let file = folder.open_file(&segments::name(number))?;
        let mut at = PREAMBLE as u64;
        let mut bytes = [0; HEADER_BYTES];
        while reader::read_at(&file, &mut bytes, at)? == HEADER_BYTES {
            let header = BlockHeader::from_bytes(&bytes);
            let Some((header, rest)) = header.and_then(|header| Some((header, header.rest_bytes()?))) else {
                break;
            };
            let is_wanted = match header.kind {
                BlockKind::Session | BlockKind::Bindings => true,
                BlockKind::Records => header.is_lasting,
                BlockKind::Event | BlockKind::End | BlockKind::Unknown(_) => false,
            };
            if is_wanted {
                let mut block = vec![0; HEADER_BYTES + rest];
                if reader::read_at(&file, &mut block, at)? < block.len() {
                    break;
                }
                self.take(&header, block);
            }
            at += (HEADER_BYTES + rest) as u64;
        }
        Ok(())
    }

    fn take(&mut self, header: &BlockHeader, mut block: Vec<u8>) {
        match header.kind {
            BlockKind::Session => self.session = block,
            BlockKind::Bindings => self.bindings.append(&mut block),
            _ => {
                self.bytes += block.len();
                self.lasting.push_back(LastingBlock { bytes: block, records: header.records });
                while self.bytes > self.limit
                    && let Some(oldest) = self.lasting.pop_front()
                {
                    self.bytes -= oldest.bytes.len();
                }
            }
        }
    }

    /// Records in the blocks.
    pub(super) fn records(&self) -> u64 {
        self.lasting.iter().map(|block| u64::from(block.records)).sum()
    }

    /// A segment of these, which says what was removed. An error if there is no session, without which it
    /// could not be read.
    pub(super) fn to_segment(&self, removed: &Event) -> io::Result<Vec<u8>> {
        if self.session.is_empty() {
            return Err(io::Error::other("the oldest segment of the recording cannot be read"));
        }
        let mut segment = preamble();
        segment.extend_from_slice(&self.session);
        let removed = serde_json::to_vec(removed)?;
        append_block(&mut segment, &BlockAbout::json(BlockKind::Event), &removed)?;
        segment.extend_from_slice(&self.bindings);
        for block in &self.lasting {
            segment.extend_from_slice(&block.bytes);
        }
        // Between these and the next segment, too, records are missing.
        append_block(&mut segment, &BlockAbout::json(BlockKind::Event), &removed)?;
        Ok(segment)
    }
}
