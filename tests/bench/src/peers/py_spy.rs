//! py-spy's stacks of all ranks. It gives no verdict: what is judged is what a reader sees at once, a main thread whose
//! stack is unlike those of all others, or a process of which there is no stack.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::answer::Answer;

pub(super) fn ask(program: &Path, pids: &[u32]) -> Result<Answer> {
    let mut stacks = BTreeMap::new();
    for pid in pids {
        let mut command = Command::new(program);
        let output = command.args(["dump", "--json", "--pid", &pid.to_string()]).output();
        let output = output.with_context(|| format!("starting `{}`", program.display()))?;
        let threads = serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success());
        stacks.insert(*pid, threads.as_ref().and_then(main_thread));
    }
    Ok(read(&stacks))
}

/// Returns the stack of the main thread, innermost frame first: `load_batch (rank.py:55)`.
fn main_thread(threads: &Value) -> Option<Vec<String>> {
    let is_main = |thread: &&Value| thread["thread_name"] == "MainThread";
    let thread = threads.as_array()?.iter().find(is_main)?;
    let frame = |frame: &Value| {
        let name = frame["name"].as_str().unwrap_or("?");
        format!("{name} ({}:{})", frame["short_filename"].as_str().unwrap_or("?"), frame["line"])
    };
    Some(thread["frames"].as_array()?.iter().map(frame).collect())
}

/// Judges the stacks of processes; `None`: there is none.
fn read(stacks: &BTreeMap<u32, Option<Vec<String>>>) -> Answer {
    let mut by_stack: BTreeMap<&Option<Vec<String>>, BTreeSet<u32>> = BTreeMap::new();
    for (pid, stack) in stacks {
        by_stack.entry(stack).or_default().insert(*pid);
    }
    let largest = by_stack.values().map(BTreeSet::len).max().unwrap_or(0);
    let is_most = largest > stacks.len() / 2;
    let unlike = by_stack.iter().filter(|(_, pids)| is_most && pids.len() < largest);
    let pids = unlike.flat_map(|(_, pids)| pids).copied().collect();
    let innermost = |stack: &Option<Vec<String>>| {
        let first = stack.as_ref().and_then(|frames| frames.first());
        first.cloned().unwrap_or_else(|| "no stack".to_owned())
    };
    let said: Vec<String> = by_stack
        .iter()
        .map(|(stack, pids)| format!("{} of {}: {}", pids.len(), stacks.len(), innermost(stack)))
        .collect();
    Answer { pids, said: said.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_is_unlike_most_is_pointed_at() {
        let stack = |name: &str| Some(vec![format!("{name} (rank.py:1)")]);
        let read = |stacks: &[Option<Vec<String>>]| read(&(10..).zip(stacks.iter().cloned()).collect());
        let answer = read(&[stack("a"), stack("a"), stack("b"), stack("a")]);
        assert_eq!(answer.pids, [12].into());
        assert_eq!(answer.said, "3 of 4: a (rank.py:1); 1 of 4: b (rank.py:1)");
        assert_eq!(read(&[stack("a"), None, stack("a")]).pids, [11].into());
        for alike in [&[stack("a"), stack("a")][..], &[stack("a"), stack("b")], &[]] {
            assert_eq!(read(alike).pids, [].into(), "{alike:?}");
        }
    }
}
