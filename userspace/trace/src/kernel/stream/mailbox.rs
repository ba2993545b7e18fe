//! A channel whose receiving end can be waited for together with other descriptors.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::mpsc,
};

use super::waker::Waker;

/// The receiving end. Its descriptor is readable when a message has come.
#[derive(Debug)]
pub struct Mailbox<M> {
    messages: mpsc::Receiver<M>,
    waker: Waker,
}

#[derive(Debug)]
pub struct MailSender<M> {
    messages: mpsc::Sender<M>,
    waker: Waker,
}

impl<M> Clone for MailSender<M> {
    fn clone(&self) -> Self {
        Self { messages: self.messages.clone(), waker: self.waker.clone() }
    }
}

impl<M> Mailbox<M> {
    pub fn new() -> io::Result<(MailSender<M>, Self)> {
        let ((sender, messages), waker) = (mpsc::channel(), Waker::new()?);
        Ok((MailSender { messages: sender, waker: waker.clone() }, Self { messages, waker }))
    }

    /// Takes the messages that have come. Does not wait.
    pub fn take(&self) -> mpsc::TryIter<'_, M> {
        // First: a message that comes from here on wakes again.
        self.waker.clear();
        self.messages.try_iter()
    }
}

impl<M> AsFd for Mailbox<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

impl<M> MailSender<M> {
    /// Sends, and wakes the receiver. Does not wait.
    pub fn send(&self, message: M) {
        // The receiver is gone only when the recording is over.
        let _ = self.messages.send(message);
        self.waker.wake();
    }
}
