//! Keys from a terminal that can go away.

use std::{
    fs::File,
    io::{self, IsTerminal as _, stdin},
    os::fd::AsRawFd as _,
    time::Duration,
};

use ratatui::crossterm::event::{self, Event, KeyEvent};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// Input from the terminal.
#[derive(Debug)]
pub(super) enum Input {
    Key(KeyEvent),
    Nothing,
    /// The connection was closed, and nobody is there any more.
    Gone,
}

/// Waits so long for a key. crossterm reads a terminal that is gone again and again, and never comes back: so
/// the terminal is checked first.
pub(super) fn wait_for_key(wait: Duration) -> io::Result<Input> {
    let input = stdin();
    // Without a terminal there crossterm takes the controlling one.
    if input.is_terminal() {
        let timeout = Timespec::try_from(wait).ok();
        let mut fds = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            // A signal: a window of another size, too.
            Err(Errno::INTR) => {}
            polled => drop(polled?),
        }
        let [found] = &fds;
        if found.revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(gone());
        }
        return key(Duration::ZERO);
    }
    // A terminal that is gone cannot be opened.
    if rustix::fs::open("/dev/tty", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).is_err() {
        return Ok(gone());
    }
    key(wait)
}

/// Sends further output nowhere: a message that cannot be written would end the program during its cleanup.
fn gone() -> Input {
    if let Ok(nowhere) = File::options().write(true).open("/dev/null") {
        for output in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
            // SAFETY: both are open descriptors, and nobody owns those of the standard outputs.
            unsafe { libc::dup2(nowhere.as_raw_fd(), output) };
        }
    }
    Input::Gone
}

fn key(wait: Duration) -> io::Result<Input> {
    if event::poll(wait)?
        && let Event::Key(key) = event::read()?
    {
        return Ok(Input::Key(key));
    }
    Ok(Input::Nothing)
}
