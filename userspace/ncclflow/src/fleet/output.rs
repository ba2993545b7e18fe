//! Output of a program that asks hosts: bounded, of one host or of several with a number before each line.

use std::collections::BTreeMap;

/// Most bytes of one host's answer. A dump of 8 ranks with all stacks has some hundred kilobytes.
pub(super) const MAX_ANSWER: usize = 32 << 20;
/// Most bytes of messages that are kept, of one host and of all tasks: the last ones say why it failed.
const MAX_MESSAGES: usize = 8 << 10;
const MAX_MESSAGES_OF_TASKS: usize = 1 << 20;
/// Most digits of a task's number.
const MAX_LABEL: usize = 8;
/// Most tasks whose output is told apart.
const MAX_TASKS: usize = super::host_names::MAX_HOSTS;

/// Bytes of an answer; beyond the maximum they are counted, not kept.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
    pub(super) is_too_long: bool,
}

impl Answer {
    fn push(&mut self, bytes: &[u8], most: usize) {
        if self.is_too_long || self.bytes.len().saturating_add(bytes.len()) > most {
            (self.bytes, self.is_too_long) = (Vec::new(), true);
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }
}

/// The end of what a program said for people.
#[derive(Debug)]
pub(super) struct Messages {
    bytes: Vec<u8>,
    most: usize,
}

impl Messages {
    pub(super) fn of(sink: &Sink) -> Self {
        let most = match sink {
            Sink::Host(_) => MAX_MESSAGES,
            Sink::Tasks(_) => MAX_MESSAGES_OF_TASKS,
        };
        Self { bytes: Vec::new(), most }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let more = self.bytes.len().saturating_sub(self.most);
        self.bytes.drain(..more);
    }

    /// Returns the line that says why: ncclflow's own, else the last.
    pub(super) fn reason(&self) -> Option<String> {
        reason_in(String::from_utf8_lossy(&self.bytes).lines())
    }

    /// Returns the line that says why, for each task, and for the program itself (`None`).
    pub(super) fn reasons_of_tasks(&self) -> BTreeMap<Option<u32>, String> {
        let text = String::from_utf8_lossy(&self.bytes);
        let mut lines: BTreeMap<Option<u32>, Vec<&str>> = BTreeMap::new();
        for line in text.lines() {
            let task =
                line.split_once(": ").and_then(|(label, said)| Some((label.trim().parse().ok()?, said)));
            let (task, said) = task.map_or((None, line), |(task, said)| (Some(task), said));
            lines.entry(task).or_default().push(said);
        }
        lines.into_iter().filter_map(|(task, lines)| Some((task, reason_in(lines.into_iter())?))).collect()
    }
}

fn reason_in<'l>(lines: impl DoubleEndedIterator<Item = &'l str> + Clone) -> Option<String> {
    let mut lines = lines.map(str::trim).filter(|line| !line.is_empty()).rev();
    let ours = lines.clone().find_map(|line| line.strip_prefix("ncclflow: "));
    ours.or_else(|| lines.next()).map(str::to_owned)
}

/// Tells the output of the tasks of a step apart: `srun --label` writes `12: ` before each line, and cuts
/// long lines into several. Ends of lines are left out, so that a long line is whole again: JSON needs none.
#[derive(Debug, Default)]
pub(super) struct Labelled {
    pub(super) tasks: BTreeMap<u32, Task>,
    label: Vec<u8>,
    /// Task of the line that is being read; `None` while its label is.
    task: Option<u32>,
    /// The line has no label: it is the program's own.
    is_foreign: bool,
    /// Bytes of all answers.
    held: usize,
}

#[derive(Debug, Default)]
pub(super) struct Task {
    /// First line, which is the name of the task's host.
    pub(super) host: Vec<u8>,
    has_host: bool,
    pub(super) answer: Answer,
}

/// Longest first line.
const MAX_HOST: usize = 1024;

impl Labelled {
    /// Takes bytes of standard output. `most` is the maximum of all answers together.
    pub(super) fn push(&mut self, mut bytes: &[u8], most: usize) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.is_foreign || self.task.is_some() {
                let end = bytes.iter().position(|byte| *byte == b'\n');
                let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
                self.take(line, end.is_some(), most);
                bytes = rest.get(1..).unwrap_or_default();
                continue;
            }
            bytes = rest;
            match first {
                b'\n' => self.label.clear(),
                b' ' if self.label.is_empty() => {}
                b' ' if self.label.ends_with(b":") => self.begin(),
                b':' | b'0'..=b'9' if self.label.len() <= MAX_LABEL => self.label.push(*first),
                _ => self.is_foreign = true,
            }
        }
    }

    fn begin(&mut self) {
        let digits = std::str::from_utf8(&self.label).unwrap_or_default().trim_end_matches(':');
        let number = digits.parse().ok();
        self.task = number.filter(|task| self.tasks.len() < MAX_TASKS || self.tasks.contains_key(task));
        self.is_foreign = self.task.is_none();
        self.label.clear();
    }

    fn take(&mut self, line: &[u8], is_end: bool, most: usize) {
        if let Some(task) = self.task {
            let task = self.tasks.entry(task).or_default();
            if task.has_host {
                let before = task.answer.bytes.len();
                let left = most.saturating_sub(self.held).saturating_add(before);
                task.answer.push(line, MAX_ANSWER.min(left));
                self.held = self.held.saturating_sub(before).saturating_add(task.answer.bytes.len());
            } else {
                let room = MAX_HOST.saturating_sub(task.host.len());
                task.host.extend_from_slice(line.get(..room.min(line.len())).unwrap_or_default());
                task.has_host = is_end;
            }
        }
        if is_end {
            (self.task, self.is_foreign) = (None, false);
            self.label.clear();
        }
    }
}

/// Where a program's standard output goes.
#[derive(Debug)]
pub(super) enum Sink {
    Host(Answer),
    Tasks(Labelled),
}

impl Sink {
    /// Takes bytes. `most`: bytes that all answers may still have. Returns whether more is wanted.
    pub(super) fn push(&mut self, bytes: &[u8], most: usize) -> bool {
        match self {
            Self::Host(answer) => {
                answer.push(bytes, MAX_ANSWER.min(answer.bytes.len().saturating_add(most)));
                !answer.is_too_long
            }
            // A task that says too much does not end the others.
            Self::Tasks(tasks) => {
                tasks.push(bytes, tasks.held.saturating_add(most));
                true
            }
        }
    }

    /// Bytes that are held.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Host(answer) => answer.bytes.len(),
            Self::Tasks(tasks) => tasks.held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tasks_are_put_together_again_wherever_they_were_cut() {
        let text =
            b"srun: a word of its own\n 0: node1\n1: node2\n0: {\"a\":\n1: [1,\n0: \"x\n0: yz\"}\n 1: 2]\n";
        for size in 1..text.len() {
            let mut all = Labelled::default();
            for part in text.chunks(size) {
                all.push(part, usize::MAX);
            }
            let of = |task| {
                let task: &Task = &all.tasks[&task];
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                (text(&task.host), text(&task.answer.bytes))
            };
            assert_eq!(of(0), ("node1".into(), "{\"a\":\"xyz\"}".into()), "in pieces of {size}");
            assert_eq!(of(1), ("node2".into(), "[1,2]".into()));
            assert_eq!(all.tasks.len(), 2);
        }
    }

    #[test]
    fn nobody_can_say_more_than_there_is_room_for() {
        let mut all = Labelled::default();
        all.push(b"0: node1\n1: node2\n1: good\n0: ", 100);
        for _ in 0..1000 {
            all.push(&[b'x'; 1000], 100);
        }
        all.push(b"\n99999999999: y\n123456789012345678901234567890", 100);
        assert!(all.tasks[&0].answer.is_too_long && all.tasks[&0].answer.bytes.is_empty());
        assert_eq!((&*all.tasks[&1].answer.bytes, all.tasks.len()), (&b"good"[..], 2));
        assert!(all.label.len() <= MAX_LABEL + 1 && all.held == 4);
        let mut one = Sink::Host(Answer::default());
        assert!(one.push(&[0; 60], 100) && one.push(&[0; 30], 40) && !one.push(&[0; 30], 10));
        assert_eq!(one.len(), 0);
    }

    #[test]
    fn the_end_of_what_was_said_tells_why() {
        let mut messages = Messages::of(&Sink::Host(Answer::default()));
        assert_eq!(messages.reason(), None);
        (0..10_000).for_each(|_| messages.push(b"no\n"));
        assert_eq!(messages.reason().unwrap(), "no");
        messages.push(b"ncclflow: what was wrong\nconnection closed\n\n");
        assert_eq!(messages.reason().unwrap(), "what was wrong");
        assert_eq!(messages.bytes.len(), MAX_MESSAGES);
        let mut messages = Messages::of(&Sink::Tasks(Labelled::default()));
        messages.push(b" 7: ncclflow: none\n12: sh: not found\n 7: later\nsrun: error: exit 1\n");
        let expected = [(None, "srun: error: exit 1"), (Some(7), "none"), (Some(12), "sh: not found")];
        let expected = expected.map(|(task, said)| (task, said.to_owned()));
        assert_eq!(messages.reasons_of_tasks(), BTreeMap::from(expected));
    }
}
