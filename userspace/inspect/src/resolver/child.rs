//! The children's side: turns this program into one of its children.

use std::{
    env,
    fs::File,
    os::{fd::FromRawFd as _, unix::net::UnixStream},
    process::ExitCode,
};

use anyhow::Result;

use super::{
    frame::Channel,
    memory_copier, opener, perf_event_holder,
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
    let role = arguments.next().unwrap_or_default();
    let Some(role) = Role::ALL.into_iter().find(|known| role == known.argument()) else {
        return Some(ExitCode::from(2));
    };
    Some(if serve(role).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Role {
    const ALL: [Self; 3] = [Self::Opener, Self::MemoryCopier, Self::EventHolder];

    pub(super) fn argument(self) -> &'static str {
        match self {
            Self::Opener => "look",
            Self::MemoryCopier => "peek",
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
        Role::Opener => opener::serve(&channel, file),
        Role::MemoryCopier => memory_copier::serve(&channel, &file),
        Role::EventHolder => perf_event_holder::serve(&channel),
    }
}
