//! Python stacks as data, in words, and in groups of equal ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::PythonVariable;
use flow::schema::PythonFrame;

/// The interpreter of a process and its threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PythonReport {
    /// Version: `3.11`, or `3.13t` without the GIL.
    pub version: Option<String>,
    /// Reason why nothing is known of the threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// The main thread first.
    pub threads: Vec<PythonThread>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PythonThread {
    /// TID in the PID namespace of this program.
    pub tid: u32,
    pub is_main: bool,
    /// The thread ran while it was read: frames may belong to different moments.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moving: bool,
    /// The thread has more frames than are read (512).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Reason why the stack is not known, or not to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// Call stack, innermost frame first; empty if the thread runs no Python code now.
    pub frames: Vec<PythonFrame>,
    /// Variables of the innermost frame that were asked for, of the main thread and those in torch. They are not given out with the
    /// stack.
    #[serde(skip)]
    pub(crate) variables: Vec<PythonVariable>,
}

/// Ranks whose main threads have equal stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PythonGroup {
    pub ranks: Vec<u32>,
    /// More ranks are here than in any other group: these do what most do.
    pub is_largest: bool,
    /// Call stack, innermost frame first.
    pub frames: Vec<PythonFrame>,
}

impl PythonReport {
    pub(crate) fn thread(&self, tid: u32) -> Option<&PythonThread> {
        self.threads.iter().find(|thread| thread.tid == tid)
    }

    /// Returns the threads of the program that may wait in torch's store: the main thread, and some of those in
    /// torch's Python code. Its other threads look into the store, too.
    pub(crate) fn may_wait_in_store(&self) -> impl Iterator<Item = &PythonThread> {
        /// Maximum number of threads beside the main one. The native stack of each is looked at.
        const MOST: usize = 4;
        let (main, others): (Vec<_>, Vec<_>) = self
            .threads
            .iter()
            .filter(|thread| !thread.frames.is_empty())
            .partition(|thread: &&PythonThread| thread.is_main);
        let is_in_torch = |thread: &&PythonThread| thread.frames.first().is_some_and(is_of_torch);
        main.into_iter().chain(others.into_iter().filter(is_in_torch).take(MOST))
    }
}

/// Tells whether a frame is of torch's collectives, waits or stores.
pub(super) fn is_of_torch(frame: &PythonFrame) -> bool {
    frame.file.contains("/torch/distributed/")
}

/// Describes where a thread is: `train.py:41 in load_batch`, or
/// `distributed_c10d.py:2806 in all_reduce, called from train.py:52 in step` where the innermost frame is not
/// the user's own code.
pub(crate) fn place(thread: &PythonThread) -> Option<String> {
    let first = thread.frames.first()?;
    let moving = if thread.moving { " (it runs)" } else { "" };
    let caller = thread.frames.iter().find(|frame| !flow::schema::is_of_a_library(&frame.file));
    Some(match caller.filter(|caller| *caller != first) {
        Some(caller) => format!("{}, called from {}{moving}", first.shown(), caller.shown()),
        None => format!("{}{moving}", first.shown()),
    })
}

/// Groups ranks with equal stacks, the largest group first. `is_largest` is set for one, or for none if
/// several are as large.
pub(crate) fn groups<'a>(threads: impl IntoIterator<Item = (u32, &'a PythonThread)>) -> Vec<PythonGroup> {
    let mut by_stack: BTreeMap<&[PythonFrame], Vec<u32>> = BTreeMap::new();
    for (rank, thread) in threads {
        if !thread.frames.is_empty() && !thread.moving && thread.unknown.is_none() {
            by_stack.entry(&thread.frames).or_default().push(rank);
        }
    }
    let group = |(frames, ranks): (&[PythonFrame], Vec<u32>)| PythonGroup {
        ranks,
        is_largest: false,
        frames: frames.to_vec(),
    };
    let mut groups: Vec<PythonGroup> = by_stack.into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.ranks.len()));
    if let [first, others @ ..] = &mut *groups {
        first.is_largest = others.first().is_none_or(|second| second.ranks.len() < first.ranks.len());
    }
    groups
}
