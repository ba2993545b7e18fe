//! Names for people: of groups, ranks and lines of code.

use std::{collections::BTreeSet, fmt::Write as _};

use flow::text::{self, joined};
use torch::flight_recorder::Entry;

/// Name of a process: its rank in the job, or its PID where nothing tells the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    Rank(u64),
    Process(u32),
}

impl Who {
    pub fn of(rank: Option<u64>, pid: u32) -> Self {
        rank.map_or(Self::Process(pid), Self::Rank)
    }
}

/// Names processes: `rank 3`, `ranks 0-2, 5`, `processes 71, 72`.
pub fn ranks(who: &[Who]) -> String {
    let (mut numbers, mut pids): (Vec<u64>, Vec<u32>) = (Vec::new(), Vec::new());
    for one in who {
        match one {
            Who::Rank(rank) => numbers.push(*rank),
            Who::Process(pid) => pids.push(*pid),
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    let mut parts = Vec::new();
    if !numbers.is_empty() {
        parts.push(text::name_ranks(&numbers));
    }
    if !pids.is_empty() {
        let list = joined(pids.iter().take(16), ", ");
        let more = if pids.len() > 16 { format!(" and {} more", pids.len() - 16) } else { String::new() };
        let noun = if pids.len() == 1 { "process" } else { "processes" };
        parts.push(format!("{noun} {list}{more}"));
    }
    parts.join(" and ")
}

/// Names a group: `"tensor_parallel" (3)`, `"default_pg" (0)`, or `(17)` where the program gave no name.
pub fn group(name: &str, description: &str) -> String {
    match description {
        "" | "undefined" => format!("({name})"),
        description => format!("\"{description}\" ({name})"),
    }
}

/// Returns the line that called, such as `model.py:88`: the innermost one of the user's own code, or the
/// innermost of all.
pub fn line(entry: &Entry) -> Option<String> {
    let frames = entry.frames.as_deref()?;
    let frame = frames.iter().find(|frame| !flow::schema::is_of_a_library(&frame.file)).or(frames.first())?;
    Some(frame.place())
}

/// Writes the sizes of at most four tensors: `[1024, 4]`, `[1024] [4]`.
pub fn sizes(sizes: &[Vec<i64>]) -> String {
    let one = |size: &Vec<i64>| format!("[{}]", joined(size, ", "));
    let mut text = joined(sizes.iter().take(4).map(one), " ");
    if sizes.len() > 4 {
        _ = write!(text, " and {} more", sizes.len() - 4);
    }
    text
}

/// Writes the element types, each once: `Float`.
pub fn dtypes(dtypes: &[String]) -> String {
    joined(dtypes.iter().collect::<BTreeSet<_>>(), ", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_ranges_and_processes_are_numbers() {
        let numbers = |list: &[u64]| list.iter().map(|rank| Who::Rank(*rank)).collect::<Vec<_>>();
        assert_eq!(ranks(&numbers(&[3])), "rank 3");
        assert_eq!(ranks(&numbers(&[5, 0, 1, 2])), "ranks 0-2, 5");
        assert_eq!(ranks(&numbers(&[1, 0])), "ranks 0, 1");
        assert_eq!(ranks(&[Who::Process(7)]), "process 7");
        assert_eq!(ranks(&[Who::Rank(1), Who::Process(7), Who::Process(9)]), "rank 1 and processes 7, 9");
        assert_eq!(ranks(&numbers(&[0, 2, 4])), "ranks 0, 2, 4");
    }
}
