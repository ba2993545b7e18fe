//! The children's side: turns this program into one of its children.

use std::{
    env,
    fs::File,
    io,
    os::{fd::FromRawFd as _, unix::net::UnixStream},
    process::ExitCode,
};

use anyhow::Result;

use super::{
    first_event,
    frame::Channel,
    looker, peeker,
    sandbox::{self, Role},
    service,
};

/// First argument of a child; no command has this name.
pub(super) const ARGUMENT: &str = "__child";

/// Serves the parent and returns the exit code, if this process was started as a child. If not, children can
/// be started from now on. To be called first in `main`.
pub fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != ARGUMENT) {
        service::use_children();
        return None;
    }
    let role = arguments.next();
    let role = match role.as_ref().and_then(|role| role.to_str()) {
        Some("look") => Role::Looker,
        Some("peek") => Role::Peeker,
        Some("hold") => Role::EventHolder,
        _ => return Some(ExitCode::from(2)),
    };
    Some(if serve(role).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Role {
    pub(super) fn argument(self) -> &'static str {
        match self {
            Self::Looker => "look",
            Self::Peeker => "peek",
            Self::EventHolder => "hold",
        }
    }
}

fn serve(role: Role) -> Result<()> {
    sandbox::enter(role)?;
    // SAFETY: a child is started with its socket as descriptor 0, and its file as descriptor 1; nothing else
    // uses them: this process prints nothing.
    let (socket, file) = unsafe { (UnixStream::from_raw_fd(0), File::from_raw_fd(1)) };
    let channel = Channel::new(socket)?;
    match role {
        Role::Looker => looker::serve(&channel, file),
        Role::Peeker => peeker::serve(&channel, &file),
        Role::EventHolder => first_event::serve(&channel),
    }
}

/// Keeps errors of a child short: they go into a report.
pub(super) fn text_of(error: &io::Error) -> String {
    crate::process::printable(&error.to_string()).chars().take(400).collect()
}
