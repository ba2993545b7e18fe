//! Watches the library files of named processes (`-p`): when one is changed, its probes go.

use std::thread;

use rustix::time::ClockId;

use super::{file_watch::FileWatch, recorder::Recording, setup::Setup};
use crate::kernel::loader::detach;
use flow::session::ChangedLibrary;
use inspect::clock::now_ns;

#[derive(Debug)]
pub(super) struct NamedFiles {
    pub(super) watch: FileWatch,
    /// When each library was last found to be as it was resolved, by the records' clock. `None`: its probes
    /// are gone.
    unchanged_ns: Vec<Option<u64>>,
}

impl NamedFiles {
    pub(super) fn new(setup: &Setup) -> Self {
        let watch = FileWatch::new();
        let now = now_ns(ClockId::Monotonic);
        setup.libraries.iter().for_each(|library| watch.add(library.file.held().try_clone_to_owned()));
        Self { watch, unchanged_ns: vec![Some(now); setup.libraries.len()] }
    }

    /// Looks at the files, if it is time.
    pub(super) fn look(&mut self, recording: &mut Recording<'_>) {
        if !self.watch.is_due() {
            return;
        }
        let mut unseen = None;
        for (index, library) in recording.setup.libraries.iter().enumerate() {
            let Some(known) = self.unchanged_ns.get_mut(index) else { continue };
            let Some(mut unchanged_until_ns) = *known else { continue };
            let looked = library.look(&mut unchanged_until_ns, &mut unseen);
            *known = looked.is_ok().then_some(unchanged_until_ns);
            let Err(why) = looked else { continue };
            let links = recording.attachment.take_of(index);
            // Nobody waits for the kernel; without a thread they are dropped here.
            let _ = thread::Builder::new()
                .name("ncclflow-detach".to_owned())
                .spawn(move || detach(links, |_| {}));
            let (path, what) = (library.file.shown(), why.to_string());
            let mut pids = Vec::new();
            for target in recording.report.targets.iter_mut() {
                if !target.exited && target.libraries.contains(&index) {
                    pids.push(target.pid);
                    if library.is_driver() {
                        target.no_graph_launches = Some(format!("`{path}`: {what}"));
                        continue;
                    }
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
        recording.note_unseen_files(unseen.as_deref());
    }
}
