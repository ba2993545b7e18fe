//! Puts the pieces of a copied stack together.

use std::collections::VecDeque;

use ncclflow_common::{
    MAX_PIECES, PIECE_BYTES, PIECE_RECORD, PIECE_REGISTERS, PieceHead, RecordHeader, STACK_PIECE,
};

use inspect::threads::HitStack;

/// Maximum number of copies that wait for their stacks: 4 MiB.
const MAX_WAITING: usize = 256;

/// Identity of a hit: process, thread and time.
type HitKey = (u32, u32, u64);

/// A copied stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) stack: HitStack,
    /// Key under which the kernel side knows the stack's return addresses.
    pub(super) key: u64,
    /// Bit i: a C function of the interpreter begins with frame i of Python, counted from the innermost.
    pub(super) enters: u64,
    /// Name of the thread.
    pub(super) thread: String,
    /// Address behind the last piece.
    end: u64,
}

/// Copies whose stacks have not come yet.
#[derive(Debug, Default)]
pub(super) struct Copies(VecDeque<(HitKey, Copied)>);

impl Copies {
    /// Adds a piece from the kernel. A piece that does not follow those before it is dropped, and so are
    /// those after it.
    pub(super) fn add(&mut self, record: &[u8]) {
        let Some((hit, head, bytes)) = parse(record) else { return };
        let sp = head.registers.get(1).copied().unwrap_or(0);
        if let Some((_, copied)) = self.0.iter_mut().find(|(of, _)| *of == hit) {
            let has_room = copied.stack.copy.len() + PIECE_BYTES <= MAX_PIECES * PIECE_BYTES;
            if copied.end == head.address && has_room {
                copied.stack.copy.extend_from_slice(bytes);
                copied.end = head.address.wrapping_add(PIECE_BYTES as u64);
            }
            return;
        }
        let below = sp.checked_sub(head.address).and_then(|below| usize::try_from(below).ok());
        let Some(copy) = below.and_then(|below| bytes.get(below..)) else { return };
        if self.0.len() >= MAX_WAITING {
            self.0.pop_front();
        }
        let thread = String::from_utf8_lossy(&head.comm).trim_end_matches('\0').to_owned();
        let copied = Copied {
            stack: HitStack { registers: head.registers, copy: copy.to_vec() },
            key: head.key,
            enters: head.enters,
            thread: inspect::process::printable(&thread),
            end: head.address.wrapping_add(PIECE_BYTES as u64),
        };
        self.0.push_back((hit, copied));
    }

    /// Takes the copy of this hit.
    pub(super) fn take(&mut self, hit: HitKey) -> Option<Copied> {
        let at = self.0.iter().position(|(of, _)| *of == hit)?;
        self.0.remove(at).map(|(_, copied)| copied)
    }
}

fn parse(record: &[u8]) -> Option<(HitKey, PieceHead, &[u8])> {
    let header = RecordHeader::from_bytes(record)?;
    if header.probe != STACK_PIECE || usize::from(header.len) != PIECE_RECORD {
        return None;
    }
    let content = record.get(RecordHeader::SIZE..PIECE_RECORD)?;
    let (head, bytes) = content.split_at_checked(size_of::<PieceHead>())?;
    let (words, comm) = head.split_at_checked(size_of::<PieceHead>() - 16)?;
    let words = words.as_chunks::<8>().0;
    let word = |at: usize| words.get(at).map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let head = PieceHead {
        registers: std::array::from_fn(word),
        address: word(PIECE_REGISTERS),
        key: word(PIECE_REGISTERS + 1),
        enters: word(PIECE_REGISTERS + 2),
        comm: comm.try_into().ok()?,
    };
    Some(((header.tgid, header.tid, header.ts_ns), head, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SP: u64 = 0x7000_0000_0010;

    fn piece(ts_ns: u64, number: u64) -> Vec<u8> {
        let len = u16::try_from(PIECE_RECORD).unwrap();
        let header =
            RecordHeader { len, probe: STACK_PIECE, ts_ns, tgid: 7, tid: 8, ..RecordHeader::default() };
        let mut record = header.to_bytes().to_vec();
        let registers: [u64; 8] = [1, SP, 3, 4, 5, 6, 7, 8];
        record.extend(registers.iter().flat_map(|word| word.to_le_bytes()));
        let address = (SP & !1023) + 1024 * number;
        record.extend([address, 77, 5].iter().flat_map(|word| word.to_le_bytes()));
        record.extend(b"pt_autograd_0\0\0\0");
        record.extend((0..1024 / 8).flat_map(|word| (address + 8 * word).to_le_bytes()));
        record
    }

    #[test]
    fn pieces_are_put_together_from_the_stack_pointer_on() {
        let mut copies = Copies::default();
        for record in [piece(1, 0), piece(2, 0), piece(1, 1), piece(1, 2), piece(2, 2), piece(3, 1)] {
            copies.add(&record);
        }
        let whole = copies.take((7, 8, 1)).unwrap();
        assert_eq!((whole.key, whole.enters, whole.thread.as_str()), (77, 5, "pt_autograd_0"));
        assert_eq!(whole.stack.copy.len(), 3 * 1024 - 16);
        let words: Vec<u64> =
            whole.stack.copy.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert!((0..).zip(&words).all(|(at, word)| *word == SP + 8 * at));
        // A piece in between is missing: the one after it is not at its place.
        assert_eq!(copies.take((7, 8, 2)).unwrap().stack.copy.len(), 1024 - 16);
        // The first piece is missing.
        assert_eq!(copies.take((7, 8, 3)), None);
        assert_eq!(copies.take((7, 8, 1)), None);
    }

    #[test]
    fn what_is_no_piece_and_what_is_too_much_is_left() {
        let mut copies = Copies::default();
        copies.add(&piece(1, 0)[..100]);
        copies.add(b"");
        assert!(copies.0.is_empty());
        for ts_ns in 0..1000 {
            copies.add(&piece(ts_ns, 0));
        }
        assert_eq!(copies.0.len(), MAX_WAITING);
        for number in 1..100 {
            copies.add(&piece(999, number));
        }
        assert!(copies.take((7, 8, 999)).unwrap().stack.copy.len() <= MAX_PIECES * PIECE_BYTES);
    }
}
