//! Operations of a rank of the job, kept on the disk until all of them have come: only then it is known where
//! the ranks' numbers meet.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{self, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
};

use prost::Message;
use torch::flight_recorder::Function;

/// Most operations that are sorted by time before they are given out: ops come when they have ended.
const SORTED: usize = 4096;

/// An operation while it waits, as a message with a length. Its group and its type are known by numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Message)]
pub(super) struct Waiting {
    /// Unix time of the operation.
    #[prost(uint64, tag = "1")]
    pub(super) ts_ns: u64,
    /// NCCL's number of the operation, or of the next collective after it.
    #[prost(uint64, tag = "2")]
    pub(super) number: u64,
    #[prost(uint64, optional, tag = "3")]
    pub(super) count: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub(super) stack: Option<u64>,
    #[prost(uint32, tag = "5")]
    pub(super) group: u32,
    #[prost(uint32, tag = "6")]
    pub(super) tid: u32,
    #[prost(uint32, optional, tag = "7")]
    pub(super) root: Option<u32>,
    #[prost(uint32, optional, tag = "8")]
    pub(super) peer: Option<u32>,
    #[prost(uint32, tag = "9")]
    pub(super) function: u32,
    #[prost(uint32, optional, tag = "10")]
    pub(super) datatype: Option<u32>,
}

impl Waiting {
    pub(super) fn function(&self) -> Option<Function> {
        Function::of_code(u8::try_from(self.function).ok()?)
    }
}

#[derive(Debug)]
pub(super) struct Spool {
    file: BufWriter<File>,
    count: u64,
    /// The last operation.
    bytes: Vec<u8>,
}

impl Spool {
    /// Makes a spool of a file without a name, which is written and read.
    pub(super) fn new(file: File) -> Self {
        Self { file: BufWriter::new(file), count: 0, bytes: Vec::new() }
    }

    pub(super) fn push(&mut self, operation: Waiting) -> io::Result<()> {
        self.count += 1;
        self.bytes.clear();
        operation.encode_length_delimited(&mut self.bytes).map_err(io::Error::other)?;
        self.file.write_all(&self.bytes)
    }

    /// Gives all operations to `take`, in the order of time.
    pub(super) fn read(self, mut take: impl FnMut(&Waiting) -> io::Result<()>) -> io::Result<()> {
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        let mut file = BufReader::new(file);
        let mut sorted = BinaryHeap::with_capacity(SORTED + 1);
        let mut bytes = [0; u8::MAX as usize];
        for at in 0..self.count {
            // The length is one byte: all fields together have fewer than 100.
            let mut length = [0];
            file.read_exact(&mut length)?;
            let bytes = &mut bytes[..usize::from(length[0])];
            file.read_exact(bytes)?;
            let operation = Waiting::decode(&*bytes).map_err(io::Error::other)?;
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
            stack: ts_ns.is_multiple_of(3).then_some(ts_ns),
            group: 7,
            tid: u32::MAX,
            root: ts_ns.is_multiple_of(5).then_some(3),
            peer: ts_ns.is_multiple_of(7).then_some(4),
            function: Function::Recv.code().into(),
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
