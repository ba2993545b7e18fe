//! `--rank-map FILE`: the job's ranks of processes, where their environment does not have them.

use std::{collections::HashMap, fs::File, io::Read as _, path::Path};

use serde::Deserialize;

/// Bytes of a file that are read.
const MAX_FILE: u64 = 16 << 20;

/// The job's rank by process. A line for each: `PID RANK` or `HOST PID RANK`; empty lines and what follows a
/// `#` are left out. Or JSON:
/// `{"PID": RANK, …}`, or `[{"host": HOST, "pid": PID, "rank": RANK}, …]`, with or without `host`. A line with a host comes before one
/// without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankMap(HashMap<(Option<String>, u32), u32>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    host: Option<String>,
    pid: u32,
    rank: u32,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Json {
    ByPid(HashMap<String, u32>),
    List(Vec<Entry>),
}

impl RankMap {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is not such a file; which line is wrong.
    pub fn read(path: &Path) -> Result<Self, String> {
        let mut text = String::new();
        let file = File::open(path).map_err(|error| error.to_string())?;
        file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
        if text.len() as u64 > MAX_FILE {
            return Err(format!("larger than {MAX_FILE} bytes"));
        }
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut map = Self::default();
        if text.trim_start().starts_with(['{', '[']) {
            let json = serde_json::from_str(text).map_err(|error| {
                format!("not `{{\"PID\": RANK}}`, and no list of `{{\"host\", \"pid\", \"rank\"}}`: {error}")
            })?;
            match json {
                Json::ByPid(ranks) => ranks.into_iter().try_for_each(|(pid, rank)| {
                    let pid = pid.parse().map_err(|_| format!("`{pid}` is no process ID"))?;
                    map.add(None, pid, rank)
                }),
                Json::List(entries) => {
                    entries.into_iter().try_for_each(|Entry { host, pid, rank }| map.add(host, pid, rank))
                }
            }?;
            return Ok(map);
        }
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            let (host, pid, rank) = match *words {
                [] => continue,
                [pid, rank] => (None, pid, rank),
                [host, pid, rank] => (Some(host.to_owned()), pid, rank),
                _ => return Err(format!("line {number}: not `PID RANK` or `HOST PID RANK`")),
            };
            let parse =
                |text: &str| text.parse().map_err(|_| format!("line {number}: `{text}` is no number"));
            map.add(host, parse(pid)?, parse(rank)?).map_err(|error| format!("line {number}: {error}"))?;
        }
        Ok(map)
    }

    fn add(&mut self, host: Option<String>, pid: u32, rank: u32) -> Result<(), String> {
        match self.0.insert((host, pid), rank) {
            Some(other) if other != rank => Err(format!("process {pid} has the ranks {other} and {rank}")),
            _ => Ok(()),
        }
    }

    /// The job's rank of a process of a host.
    pub fn rank(&self, host: &str, pid: u32) -> Option<u32> {
        self.0.get(&(Some(host.to_owned()), pid)).or_else(|| self.0.get(&(None, pid))).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_both_forms_of_json_say_the_same() {
        let lines =
            RankMap::parse("# written by the launcher\n\n7 0\nnode2 7 4 # another host\n8\t1\n").unwrap();
        assert_eq!((lines.rank("node1", 7), lines.rank("node2", 7)), (Some(0), Some(4)));
        assert_eq!((lines.rank("node2", 8), lines.rank("node1", 9)), (Some(1), None));
        let list =
            r#"[{"pid": 7, "rank": 0}, {"host": "node2", "pid": 7, "rank": 4}, {"pid": 8, "rank": 1}]"#;
        assert_eq!(RankMap::parse(list).unwrap(), lines);
        assert_eq!(RankMap::parse(r#" {"7": 0, "8": 1}"#).unwrap(), RankMap::parse("7 0\n8 1").unwrap());
        assert_eq!(RankMap::parse("").unwrap(), RankMap::default());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, said) in [
            ("7 0\n8", "line 2: not"),
            ("7 -1", "line 1: `-1`"),
            ("7 0\n7 1", "line 2: process 7 has the ranks 0 and 1"),
            ("a b c d", "line 1: not"),
            ("[{\"pid\": 1}]", "not `{"),
            ("{\"a\": 1}", "`a` is no process"),
        ] {
            let error = RankMap::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
