//! Messages between this program and its children: a document of JSON, bytes, and descriptors.

use std::{
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use anyhow::{Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

use crate::{
    process::{MappedFile, MappedLibrary},
    unresponsive::Deadline,
};

/// Most descriptors of one message.
pub(super) const MAX_FDS: usize = 64;
/// Longest time that a peer may take to fetch a message.
const SEND_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Frame {
    pub(super) json: Vec<u8>,
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Frame {
    /// Takes a library's descriptor, and returns what is known of the file.
    pub(super) fn hold(&mut self, library: MappedLibrary) -> MappedFile {
        let (file, held) = library.into_parts();
        self.fds.push(held);
        file
    }
}

/// Reason for which no frame came.
#[derive(Debug)]
pub(super) enum NoFrame {
    TimeUp,
    /// The other end was closed.
    End,
    /// The bytes are no frame, or too large a one.
    Garbage(String),
    /// The frame came with descriptors for which this process has no room. The next one can be asked for.
    NoDescriptors,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Channel(UnixStream);

impl Channel {
    pub(super) fn pair() -> io::Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::new(ours)?, theirs))
    }

    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(SEND_LIMIT))?;
        Ok(Self(stream))
    }

    /// Receives the next request, in a child; `None`: the other end was closed.
    pub(super) fn request(&self, limit: usize) -> Result<Option<Frame>> {
        match self.receive(limit, None) {
            Ok(frame) => Ok(Some(frame)),
            Err(NoFrame::End) => Ok(None),
            Err(_) => bail!("no request"),
        }
    }

    pub(super) fn send(&self, json: &[u8], bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let length = |part: usize| u32::try_from(part).map_err(io::Error::other);
        let mut header = [0; 12];
        for (into, number) in
            header.as_chunks_mut::<4>().0.iter_mut().zip([json.len(), bytes.len(), fds.len()])
        {
            *into = length(number)?.to_le_bytes();
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("more descriptors than one message takes"));
        }
        // All in one call, so that the receiver is woken once.
        let parts = [IoSlice::new(&header), IoSlice::new(json), IoSlice::new(bytes)];
        let sent = sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL)?;
        let Some(sent) = sent.checked_sub(header.len()) else {
            return Err(io::ErrorKind::WriteZero.into());
        };
        (&self.0).write_all(json.get(sent..).unwrap_or_default())?;
        (&self.0).write_all(bytes.get(sent.saturating_sub(json.len())..).unwrap_or_default())
    }

    /// Receives the next message, of at most `limit` bytes. Without a deadline, waits as long as it takes.
    pub(super) fn receive(&self, limit: usize, deadline: Option<&Deadline>) -> Result<Frame, NoFrame> {
        let mut header = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        self.wait(deadline)?;
        let received =
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut header)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let fds: Vec<OwnedFd> = control
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                _ => Vec::new(),
            })
            .collect();
        let is_cut = received.as_ref().is_ok_and(|received| received.flags.contains(ReturnFlags::CTRUNC));
        match received {
            Ok(received) if received.bytes == 0 => return Err(NoFrame::End),
            Ok(received) if received.bytes == header.len() => {}
            Ok(_) => return Err(NoFrame::Garbage("half a message".to_owned())),
            Err(_) => return Err(NoFrame::End),
        }
        let mut numbers = header.as_chunks::<4>().0.iter().map(|part| u32::from_le_bytes(*part) as usize);
        let mut next = || numbers.next().unwrap_or_default();
        let (json, bytes, count) = (next(), next(), next());
        let is_cut = is_cut && count > fds.len() && count <= MAX_FDS;
        if json.saturating_add(bytes) > limit || (count != fds.len() && !is_cut) {
            return Err(NoFrame::Garbage(format!(
                "a message of {json} and {bytes} bytes and {count} descriptors, where {limit} bytes are the most"
            )));
        }
        let (json, bytes) = (self.take(json, deadline)?, self.take(bytes, deadline)?);
        if is_cut { Err(NoFrame::NoDescriptors) } else { Ok(Frame { json, bytes, fds }) }
    }

    fn take(&self, length: usize, deadline: Option<&Deadline>) -> Result<Vec<u8>, NoFrame> {
        /// Bytes by which the buffer grows. It grows as bytes come, not by the length that is announced.
        const STEP: usize = 1 << 20;
        let mut taken = Vec::new();
        while taken.len() < length {
            self.wait(deadline)?;
            let from = taken.len();
            taken.resize(length.min(from + STEP), 0);
            let into = taken.get_mut(from..).unwrap_or_default();
            match (&self.0).read(into) {
                Ok(0) => return Err(NoFrame::End),
                Ok(read) => taken.truncate(from + read),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => taken.truncate(from),
                Err(_) => return Err(NoFrame::End),
            }
        }
        Ok(taken)
    }

    fn wait(&self, deadline: Option<&Deadline>) -> Result<(), NoFrame> {
        let Some(deadline) = deadline else { return Ok(()) };
        loop {
            let left = deadline.left();
            let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)) {
                Ok(0) if left == Duration::ZERO => return Err(NoFrame::TimeUp),
                // Who is late may only have had no processor.
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(_) => return Err(NoFrame::End),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, thread};

    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    fn soon() -> Deadline {
        Deadline::within(SOON)
    }

    #[test]
    fn documents_bytes_and_descriptors_arrive() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::new(theirs).unwrap();
        // The receiver may have to wait for a processor.
        theirs.0.set_write_timeout(Some(Duration::from_mins(1))).unwrap();
        let bytes = vec![7; 3 << 20];
        let sender = thread::spawn(move || {
            let file = File::open("/proc/self/stat").unwrap();
            theirs.send(b"{}", &bytes, &[file.as_fd(), file.as_fd()]).unwrap();
        });
        let frame = ours.receive(4 << 20, None).unwrap();
        sender.join().unwrap();
        assert_eq!((&*frame.json, frame.bytes.len(), frame.fds.len()), (&b"{}"[..], 3 << 20, 2));
        assert!(matches!(ours.receive(100, Some(&soon())), Err(NoFrame::End)), "it was closed");
    }

    #[test]
    fn who_is_silent_or_stops_in_the_middle_is_not_waited_for() {
        let (ours, mut theirs) = Channel::pair().unwrap();
        assert!(matches!(ours.receive(100, Some(&soon())), Err(NoFrame::TimeUp)));
        // 5 bytes are announced, and one comes.
        theirs.write_all(&[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]).unwrap();
        assert!(matches!(ours.receive(100, Some(&soon())), Err(NoFrame::TimeUp)));
    }

    #[test]
    fn too_much_is_refused_before_it_is_taken() {
        let (ours, mut theirs) = Channel::pair().unwrap();
        theirs.write_all(&[255; 12]).unwrap();
        assert!(matches!(ours.receive(1 << 20, Some(&soon())), Err(NoFrame::Garbage(_))));
        theirs.write_all(&[1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0]).unwrap();
        assert!(
            matches!(ours.receive(1 << 20, Some(&soon())), Err(NoFrame::Garbage(_))),
            "no descriptor came"
        );
    }
}
