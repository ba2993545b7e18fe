//! Records of call stacks.

use ncclflow_common::{
    RawFrame, STACK_CUT, STACK_KNOWN, STACK_NATIVE, STACK_NO_THREAD, STACK_NOT_COPIED, STACK_UNREADABLE,
    StackHead,
};

use super::{DecodeError, Origin, RecordView, Result};

/// The call stack of a thread at the hit of a probe. The record of that hit has the same thread and time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a record")]
pub struct StackEvent {
    pub origin: Origin,
    /// Identity of the stack: equal for equal stacks of a process, and only for those.
    pub id: u64,
    /// There are more frames than were walked.
    pub is_cut: bool,
    /// Frames, or the code that a frame is of, could not be read.
    pub is_unreadable: bool,
    /// The thread has no state in the interpreter.
    pub has_no_thread: bool,
    /// The identity covers the native frames, too.
    pub is_native: bool,
    /// Native frames were wanted, and the stack was not copied.
    pub is_not_copied: bool,
    /// Python's frames, innermost first; `None` if the stack was sent before.
    pub frames: Option<Vec<RawFrame>>,
}

impl StackEvent {
    /// Decodes a record of a stack.
    ///
    /// # Errors
    /// When the record is not that of a stack.
    pub fn of(record: &RecordView<'_>) -> Result<Self> {
        let content = record.content();
        let short = DecodeError::Short { have: content.len(), want: size_of::<StackHead>() };
        let (head, frames) = content.split_at_checked(size_of::<StackHead>()).ok_or(short)?;
        let [id, rest] = words(head);
        #[expect(clippy::cast_possible_truncation, reason = "two numbers of 32 bits")]
        let (flags, n_frames) = (rest as u32, (rest >> 32) as usize);
        let (frames, odd) = frames.as_chunks::<{ size_of::<RawFrame>() }>();
        // Recordings from before there was the flag have a stack without frames each time as if it were new.
        let is_known = frames.is_empty() && (n_frames > 0 || flags & STACK_KNOWN != 0);
        if !odd.is_empty() || (!is_known && frames.len() != n_frames) {
            return Err(DecodeError::Short {
                have: frames.len() * size_of::<RawFrame>() + odd.len(),
                want: n_frames * size_of::<RawFrame>(),
            });
        }
        let frame = |bytes: &[u8; size_of::<RawFrame>()]| {
            let [code, instr, guard] = words(bytes);
            RawFrame { code, instr, guard }
        };
        Ok(Self {
            origin: record.origin(),
            id,
            is_cut: flags & STACK_CUT != 0,
            is_unreadable: flags & STACK_UNREADABLE != 0,
            has_no_thread: flags & STACK_NO_THREAD != 0,
            is_native: flags & STACK_NATIVE != 0,
            is_not_copied: flags & STACK_NOT_COPIED != 0,
            frames: (!is_known).then(|| frames.iter().map(frame).collect()),
        })
    }
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use ncclflow_common::RecordHeader;

    use super::*;

    fn record(flags: u32, n_frames: u32, frames: &[u64]) -> Vec<u8> {
        let len = u16::try_from(RecordHeader::SIZE + 16 + 8 * frames.len()).unwrap();
        let mut bytes = RecordHeader { len, ts_ns: 7, tid: 3, ..RecordHeader::default() }.to_bytes().to_vec();
        bytes.extend(11u64.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(n_frames.to_le_bytes());
        bytes.extend(frames.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    fn decoded(bytes: &[u8]) -> Result<StackEvent> {
        StackEvent::of(&RecordView::new(bytes).unwrap())
    }

    #[test]
    fn frames_come_once() {
        let new = decoded(&record(STACK_CUT, 2, &[1, 2, 3, 4, 5, 6])).unwrap();
        let frames = [RawFrame { code: 1, instr: 2, guard: 3 }, RawFrame { code: 4, instr: 5, guard: 6 }];
        assert_eq!((new.id, new.is_cut, new.has_no_thread), (11, true, false));
        assert_eq!(new.frames.as_deref(), Some(&frames[..]));
        let known = decoded(&record(STACK_UNREADABLE, 2, &[])).unwrap();
        assert!(known.frames.is_none() && known.is_unreadable && !known.is_cut);
        let none = decoded(&record(STACK_NO_THREAD, 0, &[])).unwrap();
        assert_eq!((none.frames, none.has_no_thread), (Some(Vec::new()), true));
        let again = decoded(&record(STACK_NO_THREAD | STACK_KNOWN, 0, &[])).unwrap();
        assert!(again.frames.is_none() && again.has_no_thread);
        let native = decoded(&record(STACK_NATIVE, 0, &[])).unwrap();
        assert!(native.is_native && !native.is_not_copied && native.frames.is_some());
    }

    #[test]
    fn what_contradicts_itself_is_no_stack() {
        for (n_frames, frames) in [(1, &[1, 2][..]), (2, &[1, 2, 3]), (0, &[1, 2, 3]), (1, &[1, 2, 3, 4])] {
            assert!(decoded(&record(0, n_frames, frames)).is_err(), "{n_frames} {frames:?}");
        }
        let whole = record(0, 0, &[]);
        let cut = RecordHeader { len: 56, ..RecordHeader::default() }.to_bytes();
        assert!(decoded(&[&cut[..], &whole[48..56]].concat()).is_err());
    }
}
