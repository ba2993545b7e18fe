//! `process_vm_readv`: bounded copies out of another process.

use std::{io, ops::ControlFlow};

use thiserror::Error;

use crate::{
    process::{Process, denied_remedy},
    resolver,
};
use nccl_library::elf::RuntimeAddr;

const MAX_READ: usize = 8 << 20;

/// Maximum number of pieces that the kernel takes in one call: `UIO_MAXIOV`, include/uapi/linux/uio.h.
const MAX_PIECES: usize = 1024;

#[derive(Debug, Error)]
pub enum ReadError {
    /// The process has exited; bytes that were read before that was noticed are not to be used.
    #[error("process {0} exited while it was read")]
    Gone(u32),
    #[error("the memory of process {0} cannot be read ({1}): {remedy}", remedy = denied_remedy())]
    Denied(u32, io::Error),
    /// A copy did not end in time, or many were late: the device or file behind the memory does not answer. The
    /// process is not read again.
    #[error(
        "the memory of process {0} does not answer, or late each time: it is backed by a file system in user space \
         (FUSE) or by userfaultfd, or a lock of it is held; it is not read any more"
    )]
    Blocked(u32),
    /// No memory there, or memory of a device that cannot be copied.
    #[error("nothing can be read at {0}")]
    Unmapped(RuntimeAddr),
    /// More than [`MAX_READ`] at once: a length that came out of the process and cannot be right.
    #[error("{0} bytes at once are not read")]
    TooLong(u64),
    #[error("the memory of process {0} cannot be read: {1}")]
    Other(u32, io::Error),
}

impl ReadError {
    /// Makes an error of the kernel's answer to a request for memory at `at`, or for the mappings.
    pub(super) fn new(process: &Process, error: io::Error, at: RuntimeAddr) -> Self {
        match error.raw_os_error() {
            Some(libc::EFAULT) => Self::Unmapped(at),
            Some(libc::ESRCH | libc::ENOENT) => Self::Gone(process.pid()),
            Some(libc::EPERM | libc::EACCES) => Self::Denied(process.pid(), error),
            _ if error.kind() == io::ErrorKind::TimedOut => Self::Blocked(process.pid()),
            _ => Self::Other(process.pid(), error),
        }
    }

    /// Tells whether the process, not the address, is the reason: other reads will fail too.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Gone(_) | Self::Denied(..) | Self::Blocked(_) | Self::Other(..))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Memory<'p> {
    process: &'p Process,
}

impl<'p> Memory<'p> {
    pub fn new(process: &'p Process) -> Self {
        Self { process }
    }

    pub fn process(&self) -> &'p Process {
        self.process
    }

    /// Fills `into` from `at` on, or says why not.
    pub fn read(&self, at: RuntimeAddr, into: &mut [u8]) -> Result<(), ReadError> {
        let read = self.read_some(at, into)?;
        if read < into.len() {
            return Err(ReadError::Unmapped(RuntimeAddr(at.0.saturating_add(read as u64))));
        }
        Ok(())
    }

    /// Reads as much as there is from `at` on, at most to the end of `into`: 0 only for no memory at all.
    pub fn read_some(&self, at: RuntimeAddr, into: &mut [u8]) -> Result<usize, ReadError> {
        if into.len() > MAX_READ {
            return Err(ReadError::TooLong(into.len() as u64));
        }
        if into.is_empty() {
            return Ok(0);
        }
        let length = into.len();
        match self.read_pieces(&[(at, length)], into)? {
            0 => Err(ReadError::Unmapped(at)),
            read => Ok(read),
        }
    }

    pub fn bytes(&self, at: RuntimeAddr, length: u64) -> Result<Vec<u8>, ReadError> {
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= MAX_READ)
            .ok_or(ReadError::TooLong(length))?;
        let mut bytes = vec![0; length];
        self.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads an 8-byte word, such as a pointer.
    pub fn word(&self, at: RuntimeAddr) -> Result<u64, ReadError> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Reads `count` words of 8 bytes from `at` on.
    pub fn words(&self, at: RuntimeAddr, count: u64) -> Result<Vec<u64>, ReadError> {
        let bytes = self.bytes(at, count.saturating_mul(8))?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Reads all `pieces` (address, bytes) with as few calls as possible, one after the other into one
    /// buffer.
    pub fn gather(self, pieces: &[(RuntimeAddr, usize)]) -> Result<Vec<u8>, ReadError> {
        let total = pieces.iter().try_fold(0usize, |sum, (_, length)| sum.checked_add(*length));
        let total = total.filter(|total| *total <= MAX_READ).ok_or(ReadError::TooLong(u64::MAX))?;
        let (mut bytes, mut end) = (Vec::with_capacity(total), None);
        self.each(pieces, &mut vec![0; total], |(at, length), piece| {
            bytes.extend(piece);
            if piece.len() == length {
                return ControlFlow::Continue(());
            }
            end = Some(RuntimeAddr(at.0.saturating_add(piece.len() as u64)));
            ControlFlow::Break(())
        })?;
        end.map_or(Ok(bytes), |end| Err(ReadError::Unmapped(end)))
    }

    /// Copies these pieces (address, bytes) with as few calls as possible; `None` for one that cannot be read
    /// whole.
    pub fn copies(self, pieces: &[(RuntimeAddr, usize)]) -> Result<Vec<Option<Vec<u8>>>, ReadError> {
        let total = pieces.iter().map(|(_, length)| *length).fold(0, usize::saturating_add);
        let mut copies = Vec::with_capacity(pieces.len());
        self.each(pieces, &mut vec![0; total.min(MAX_READ)], |(_, length), piece| {
            copies.push((piece.len() == length).then(|| piece.to_vec()));
            ControlFlow::Continue(())
        })?;
        Ok(copies)
    }

    /// Gives each piece (address, bytes) to `take` with as many of its bytes as can be read, until `take`
    /// breaks. Each call reads as many pieces as `buffer` holds.
    pub(super) fn each(
        self,
        mut pieces: &[(RuntimeAddr, usize)],
        buffer: &mut [u8],
        mut take: impl FnMut((RuntimeAddr, usize), &[u8]) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        while let Some((_, first)) = pieces.first() {
            let mut total = 0_usize;
            let fits = |(_, length): &&(RuntimeAddr, usize)| {
                let with = total.saturating_add(*length);
                let fits = with <= buffer.len();
                total = if fits { with } else { total };
                fits
            };
            let count = pieces.iter().take(MAX_PIECES).take_while(fits).count();
            let (Some(now), Some(into)) = (pieces.get(..count), buffer.get_mut(..total)) else { break };
            if now.is_empty() {
                return Err(ReadError::TooLong(*first as u64));
            }
            let read = self.read_pieces(now, into)?;
            let mut left = into.get(..read).unwrap_or_default();
            let mut passed = 0;
            for (at, length) in now {
                let (piece, tail) = left.split_at(left.len().min(*length));
                if take((*at, *length), piece).is_break() {
                    return Ok(());
                }
                (left, passed) = (tail, passed + 1);
                // The transfer ended at this piece; later ones may be readable.
                if piece.len() < *length {
                    break;
                }
            }
            pieces = pieces.get(passed..).unwrap_or_default();
        }
        Ok(())
    }

    /// Fills `into` from `pieces` as far as they can be read, by a child that can be lost. They are at most
    /// [`MAX_PIECES`] and together as long as `into`. Returns the number of bytes read, 0 if the first piece
    /// cannot be read.
    fn read_pieces(self, pieces: &[(RuntimeAddr, usize)], into: &mut [u8]) -> Result<usize, ReadError> {
        let first = pieces.first().map_or(RuntimeAddr(0), |(at, _)| *at);
        let pieces: Vec<(u64, usize)> = pieces.iter().map(|(at, length)| (at.0, *length)).collect();
        let read = resolver::peek(self.process.live_thread(), &pieces, into);
        self.still_there()?;
        match read.map_err(|error| ReadError::new(self.process, error, first)) {
            Err(ReadError::Unmapped(_)) => Ok(0),
            read => Ok(read?.min(into.len())),
        }
    }

    /// Proves a read: the PID could have been given to another process only after this one had exited, so a
    /// read that ended while it was still there was a read of its memory.
    fn still_there(self) -> Result<(), ReadError> {
        if self.process.is_live() { Ok(()) } else { Err(ReadError::Gone(self.process.pid())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(of: &[u8]) -> RuntimeAddr {
        RuntimeAddr(of.as_ptr() as u64)
    }

    #[test]
    fn our_own_memory_is_read_in_one_piece_and_in_many() {
        let process = Process::open(std::process::id()).unwrap();
        let memory = Memory::new(&process);
        let data: Vec<u8> = (0..=255).collect();
        assert_eq!(memory.bytes(address(&data), 256).unwrap(), data);
        let pieces = [(address(&data[10..]), 3), (address(&data[200..]), 2)];
        assert_eq!(memory.gather(&pieces).unwrap(), [10, 11, 12, 200, 201]);
        let many: Vec<_> = (0..3000).map(|_| (address(&data[1..]), 1)).collect();
        assert_eq!(memory.gather(&many).unwrap(), vec![1; 3000]);
    }

    #[test]
    fn what_is_not_there_or_too_long_is_said_and_not_read() {
        let process = Process::open(std::process::id()).unwrap();
        let memory = Memory::new(&process);
        assert!(matches!(memory.word(RuntimeAddr(8)), Err(ReadError::Unmapped(_))));
        assert!(memory.word(RuntimeAddr(u64::MAX - 3)).is_err());
        assert!(matches!(memory.bytes(RuntimeAddr(8), u64::MAX), Err(ReadError::TooLong(_))));
        let data = [7u8; 4];
        let pieces = [(address(&data), 4), (RuntimeAddr(16), 4)];
        assert!(matches!(memory.gather(&pieces), Err(ReadError::Unmapped(RuntimeAddr(16)))));
    }

    #[test]
    fn copies_are_made_of_what_can_be_read() {
        let process = Process::open(std::process::id()).unwrap();
        let memory = Memory::new(&process);
        let data: Vec<u8> = (0..=255).collect();
        let nothing = (RuntimeAddr(16), 4);
        let pieces =
            [nothing, (address(&data[7..]), 3), nothing, nothing, (address(&data[90..]), 2), nothing];
        let copies = memory.copies(&pieces).unwrap();
        let wanted = [None, Some(vec![7, 8, 9]), None, None, Some(vec![90, 91]), None];
        assert_eq!(copies, wanted);
        let many: Vec<_> = (0..3000).map(|_| (address(&data[1..]), 1)).collect();
        assert_eq!(memory.copies(&many).unwrap(), vec![Some(vec![1]); 3000]);
        assert!(memory.copies(&[(RuntimeAddr(0), usize::MAX)]).is_err());
        assert!(memory.copies(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_process_that_exited_is_gone_not_empty() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let error = Memory::new(&process).word(RuntimeAddr(4096)).unwrap_err();
        assert!(matches!(error, ReadError::Gone(_)) && error.is_final(), "{error}");
    }
}
