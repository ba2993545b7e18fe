//! Operations of a rank of the job, kept on the disk until all of them have come: only then it is known where
//! the ranks' numbers meet.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{self, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
};

use flow::schema::StackId;

use torch::flight_recorder::Function;

/// Most operations that are sorted by time before they are given out: ops come when they have ended.
const SORTED: usize = 4096;

/// Bytes of an operation in the file.
const BYTES: usize = 56;

/// An operation while it waits. Its group and its type are known by numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waiting {
    /// Unix time of the operation.
    pub(super) ts_ns: u64,
    /// NCCL's number of the operation, or of the next collective after it.
    pub(super) number: u64,
    pub(super) count: Option<u64>,
    pub(super) stack: Option<StackId>,
    pub(super) group: u32,
    pub(super) tid: u32,
    pub(super) root: Option<u32>,
    pub(super) peer: Option<u32>,
    pub(super) function: u8,
    pub(super) datatype: Option<u8>,
}

/// Bits of the values that are present.
mod has {
    pub(super) const COUNT: u8 = 1;
    pub(super) const STACK: u8 = 2;
    pub(super) const ROOT: u8 = 4;
    pub(super) const PEER: u8 = 8;
    pub(super) const DATATYPE: u8 = 16;
}

impl Waiting {
    fn to_bytes(self) -> [u8; BYTES] {
        let Self { ts_ns, number, count, stack, group, tid, root, peer, function, datatype } = self;
        let flag = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
        let flags = flag(count.is_some(), has::COUNT)
            | flag(stack.is_some(), has::STACK)
            | flag(root.is_some(), has::ROOT)
            | flag(peer.is_some(), has::PEER)
            | flag(datatype.is_some(), has::DATATYPE);
        let mut bytes = [0; BYTES];
        let words = [ts_ns, number, count.unwrap_or(0), stack.map_or(0, |stack| stack.0)];
        let halves = [group, tid, root.unwrap_or(0), peer.unwrap_or(0)];
        let words = words.into_iter().flat_map(u64::to_le_bytes);
        let halves = halves.into_iter().flat_map(u32::to_le_bytes);
        let rest = [function, datatype.unwrap_or(0), flags];
        bytes.iter_mut().zip(words.chain(halves).chain(rest)).for_each(|(byte, value)| *byte = value);
        bytes
    }

    fn of_bytes(bytes: &[u8; BYTES]) -> Self {
        let word = |at: usize| {
            let word = bytes.get(at * 8..at * 8 + 8).and_then(|word| word.try_into().ok());
            u64::from_le_bytes(word.unwrap_or_default())
        };
        let half = |at: usize| {
            let half = bytes.get(32 + at * 4..36 + at * 4).and_then(|half| half.try_into().ok());
            u32::from_le_bytes(half.unwrap_or_default())
        };
        let [function, datatype, flags] = [bytes[48], bytes[49], bytes[50]];
        let has = |flag: u8| flags & flag != 0;
        Self {
            ts_ns: word(0),
            number: word(1),
            count: has(has::COUNT).then(|| word(2)),
            stack: has(has::STACK).then(|| StackId(word(3))),
            group: half(0),
            tid: half(1),
            root: has(has::ROOT).then(|| half(2)),
            peer: has(has::PEER).then(|| half(3)),
            function,
            datatype: has(has::DATATYPE).then_some(datatype),
        }
    }

    pub(super) fn function(&self) -> Option<Function> {
        Function::of_code(self.function)
    }
}

#[derive(Debug)]
pub(super) struct Spool {
    file: BufWriter<File>,
    count: u64,
}

impl Spool {
    /// Makes a spool of a file without a name, which is written and read.
    pub(super) fn new(file: File) -> Self {
        Self { file: BufWriter::new(file), count: 0 }
    }

    pub(super) fn push(&mut self, operation: Waiting) -> io::Result<()> {
        self.count += 1;
        self.file.write_all(&operation.to_bytes())
    }

    /// Gives all operations to `take`, in the order of time.
    pub(super) fn read(self, mut take: impl FnMut(&Waiting) -> io::Result<()>) -> io::Result<()> {
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        let mut file = BufReader::new(file);
        let mut sorted = BinaryHeap::with_capacity(SORTED + 1);
        let mut bytes = [0; BYTES];
        for at in 0..self.count {
            file.read_exact(&mut bytes)?;
            let operation = Waiting::of_bytes(&bytes);
            // Operations of one moment stay in their order.
            sorted.push(Reverse((operation.ts_ns, at, operation)));
            if sorted.len() > SORTED
                && let Some(Reverse((_, _, first))) = sorted.pop()
            {
                take(&first)?;
            }
        }
        while let Some(Reverse((_, _, first))) = sorted.pop() {
            take(&first)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_comes_back_in_the_order_of_time() {
        let operation = |ts_ns: u64| Waiting {
            ts_ns,
            number: ts_ns + 1,
            count: ts_ns.is_multiple_of(2).then_some(u64::MAX - ts_ns),
            stack: ts_ns.is_multiple_of(3).then_some(StackId(ts_ns)),
            group: 7,
            tid: u32::MAX,
            root: ts_ns.is_multiple_of(5).then_some(3),
            peer: ts_ns.is_multiple_of(7).then_some(4),
            function: Function::Recv.code(),
            datatype: ts_ns.is_multiple_of(11).then_some(9),
        };
        let mut spool = Spool::new(tempfile::tempfile().unwrap());
        // Blocks of a hundred come backwards.
        for block in 0..100 {
            (0..100).rev().for_each(|at| spool.push(operation(block * 100 + at)).unwrap());
        }
        let mut next = 0;
        spool
            .read(|found| {
                assert_eq!(*found, operation(next));
                next += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(next, 10_000);
    }
}
