//! Parts of removed segments that later records need: the session, the bindings, and the blocks that last.

use std::{collections::VecDeque, fs::File, io, mem};

use flow::recording::{
    Block, BlockAbout, BlockHeader, BlockKind, BoundCookies, Event, HEADER_BYTES, append_block,
};

use super::{PREAMBLE, preamble, reader, segments};
use crate::{resource_exhaustion, sinks::OutputDir};

/// Lasting blocks of segments, as they stand there.
#[derive(Clone, Debug, Default)]
pub(super) struct WhatLasts {
    session: Vec<u8>,
    bindings: Vec<u8>,
    /// Number of cookies that have bindings, from the first on.
    bound: usize,
    lasting: VecDeque<LastingBlock>,
    bytes: usize,
    /// Number of records in blocks that last but are left out, as there was no room.
    pub(super) left_out: u64,
}

#[derive(Clone, Debug)]
struct LastingBlock {
    bytes: Vec<u8>,
    records: u32,
}

impl WhatLasts {
    /// Adds what lasts of the segment with this number, which comes after those added before. Blocks that
    /// cannot be read are left out. If lasting blocks have more bytes than `limit`, the oldest are left out.
    ///
    /// # Errors
    /// If there is no descriptor to read the segment by. Then nothing was added.
    pub(super) fn add(&mut self, folder: &OutputDir, number: u32, limit: usize) -> io::Result<()> {
        let file = match folder.open_file(&segments::name(number)) {
            Err(error) if resource_exhaustion::is_of_host(&error) => return Err(error),
            file => file.ok(),
        };
        let before =
            (mem::take(&mut self.session), mem::take(&mut self.bindings), mem::take(&mut self.bound));
        // An error only ends the reading: what was read before it is kept.
        let _ = file.map(|file| self.read(&file, limit));
        // The bindings of a segment begin with those of the one before it, unless no records came or it
        // cannot be read.
        let (session, bindings, bound) = before;
        if self.session.is_empty() {
            self.session = session;
        }
        if self.bound < bound {
            (self.bindings, self.bound) = (bindings, bound);
        }
        Ok(())
    }

    fn read(&mut self, file: &File, limit: usize) -> io::Result<()> {
        let mut at = PREAMBLE as u64;
        let mut bytes = [0; HEADER_BYTES];
        while reader::read_at(file, &mut bytes, at)? == HEADER_BYTES {
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
                if reader::read_at(file, &mut block, at)? < block.len() {
                    break;
                }
                self.take(header, block, limit);
            }
            at += (HEADER_BYTES + rest) as u64;
        }
        Ok(())
    }

    fn take(&mut self, header: BlockHeader, mut block: Vec<u8>, limit: usize) {
        match header.kind {
            BlockKind::Session => self.session = block,
            BlockKind::Bindings => {
                self.bound = self.bound.max(bound_by(header, &block));
                self.bindings.append(&mut block);
            }
            _ => {
                self.bytes += block.len();
                self.lasting.push_back(LastingBlock { bytes: block, records: header.records });
                while self.bytes > limit
                    && let Some(oldest) = self.lasting.pop_front()
                {
                    self.bytes -= oldest.bytes.len();
                    self.left_out += u64::from(oldest.records);
                }
            }
        }
    }

    /// Returns the number of records in the blocks.
    pub(super) fn records(&self) -> u64 {
        self.lasting.iter().map(|block| u64::from(block.records)).sum()
    }

    /// Makes a segment of these, which says what was removed. Fails if there is no session, without which the
    /// segment could not be read.
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
        // Records are missing between these and the next segment, too.
        append_block(&mut segment, &BlockAbout::json(BlockKind::Event), &removed)?;
        Ok(segment)
    }
}

/// Returns the cookie behind the last of this block of bindings; 0 if it cannot be read.
fn bound_by(header: BlockHeader, block: &[u8]) -> usize {
    let rest = block.get(HEADER_BYTES..).unwrap_or_default();
    let mut content = Vec::new();
    let is_sound = Block::checked(header, rest).and_then(|block| block.inflate(&mut content)).is_some();
    let bound = is_sound.then(|| serde_json::from_slice::<BoundCookies>(&content).ok()).flatten();
    bound.map_or(0, |bound| bound.end())
}
