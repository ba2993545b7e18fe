//! Watches the library files of named processes (`-p`): when one is changed, its probes go.

use std::{mem, os::fd::BorrowedFd, thread, time::Duration};

use rustix::time::ClockId;

use super::{
    file_watch::FileWatch,
    recorder::Recording,
    setup::{Setup, is_recent},
};
use crate::kernel::loader::detach;
use flow::session::ChangedLibrary;
use inspect::clock::now_ns;

#[derive(Debug)]
pub(super) struct NamedFiles {
    watch: FileWatch,
    /// When each library was last found to be as it was resolved, by the records' clock. `None`: its probes
    /// are gone.
    unchanged_ns: Vec<Option<u64>>,
    /// Set once it was reported that files cannot be looked at.
    is_said: bool,
}

impl NamedFiles {
    pub(super) fn new(setup: &Setup) -> Self {
        let watch = FileWatch::new();
        let now = now_ns(ClockId::Monotonic);
        setup.libraries.iter().for_each(|library| watch.add(library.file.held().try_clone_to_owned()));
        Self { watch, unchanged_ns: vec![Some(now); setup.libraries.len()], is_said: false }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.fd()
    }

    pub(super) fn timeout(&self) -> Duration {
        self.watch.timeout()
    }

    /// Looks at the files, if it is time.
    pub(super) fn watch(&mut self, recording: &mut Recording<'_>) {
        if !self.watch.is_due() {
            return;
        }
        let mut sees_all = true;
        for (index, library) in recording.setup.libraries.iter().enumerate() {
            let Some(known) = self.unchanged_ns.get_mut(index) else { continue };
            let Some(unchanged_until_ns) = *known else { continue };
            let why = match library.unchanged() {
                Ok(_) => {
                    *known = Some(now_ns(ClockId::Monotonic));
                    continue;
                }
                Err(why) if why.is_unseen() && is_recent(unchanged_until_ns) => {
                    sees_all = false;
                    if !mem::replace(&mut self.is_said, true) {
                        let path = library.file.shown();
                        recording.report.errors.push(format!("probes stay for now on `{path}`: {why}"));
                        recording.is_outdated = true;
                    }
                    continue;
                }
                Err(why) => why,
            };
            *known = None;
            let links = recording.attachment.take_of(index);
            // Nobody waits for the kernel; without a thread they are dropped here.
            let _ = thread::Builder::new()
                .name("ncclflow-detach".to_owned())
                .spawn(move || detach(links, |_| {}));
            let (path, what) = (library.file.shown(), why.to_string());
            let mut pids = Vec::new();
            for target in &mut recording.report.targets {
                if !target.exited && target.libraries.contains(&index) {
                    pids.push(target.pid);
                    target.untraced = Some(format!("`{path}`, which it had mapped: {what}"));
                }
            }
            let seen_ns = now_ns(ClockId::Monotonic);
            recording.library_changed(ChangedLibrary {
                library: index,
                path,
                seen_ns,
                what,
                pids,
                unchanged_until_ns,
            });
        }
        self.is_said &= !sees_all;
    }
}
