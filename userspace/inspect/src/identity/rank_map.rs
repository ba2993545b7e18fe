//! `--rank-map FILE`: the job's ranks of processes, where their environment does not have them.

use std::{
    collections::HashMap,
    fs::{File, Metadata},
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// Most bytes of a file that are read.
const MAX_FILE: u64 = 16 << 20;

/// Ranks in the job by process. A text has a line for each: `PID RANK` or `HOST PID RANK`; empty lines and
/// the rest of a line after a `#` are left out. JSON is `{"PID": RANK, …}`, or `[{"host": HOST, "pid": PID,
/// "rank": RANK}, …]`, with or without `host`. An entry with a host comes before one without.
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
    /// If the file cannot be read, or is no rank map. The error names the wrong line.
    pub fn read(path: &Path) -> Result<Self, String> {
        Self::read_file(&File::open(path).map_err(|error| error.to_string())?)
    }

    fn read_file(file: &File) -> Result<Self, String> {
        let mut text = String::new();
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
                    let pid = pid.parse().map_err(|_| format!("`{pid}` is not a process ID"))?;
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
                |text: &str| text.parse().map_err(|_| format!("line {number}: `{text}` is not a number"));
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

    /// Returns the rank in the job of a process of a host.
    pub fn rank(&self, host: &str, pid: u32) -> Option<u32> {
        self.0.get(&(Some(host.to_owned()), pid)).or_else(|| self.0.get(&(None, pid))).copied()
    }
}

/// A rank map, and its file, which can change while a recording goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankMapFile {
    path: PathBuf,
    map: RankMap,
    /// The file that was read last, whether it was a rank map or not.
    seen: Option<Identity>,
}

/// Properties of a file that change when somebody writes to it, or puts another one in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
}

impl Identity {
    fn of(about: &Metadata) -> Self {
        Self {
            file: (about.dev(), about.ino()),
            bytes: about.len(),
            modified: (about.mtime(), about.mtime_nsec()),
        }
    }
}

impl RankMapFile {
    /// Reads a file.
    ///
    /// # Errors
    /// See [`RankMap::read`].
    pub fn read(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let seen = file.metadata().ok().map(|about| Identity::of(&about));
        Ok(Self { path: path.to_owned(), map: RankMap::read_file(&file)?, seen })
    }

    pub fn map(&self) -> &RankMap {
        &self.map
    }

    /// Reads the file again if it has changed. Returns whether the map has changed. A path that is no regular
    /// file, such as a pipe, is read once only.
    ///
    /// # Errors
    /// If the changed file cannot be read, or is no rank map: once for each change. The map stays as it was.
    pub fn refresh(&mut self) -> Result<bool, String> {
        let now = match std::fs::metadata(&self.path) {
            Ok(about) if !about.is_file() => return Ok(false),
            Ok(about) => Ok(Identity::of(&about)),
            Err(error) => Err(error),
        };
        if now.as_ref().ok() == self.seen.as_ref() {
            return Ok(false);
        }
        self.seen = now.as_ref().ok().copied();
        let shown = self.path.display();
        let stays = |error: String| format!("`{shown}`: {error}; ranks stay as they were");
        now.map_err(|error| stays(error.to_string()))?;
        let map = Self::read(&self.path).map_err(stays)?;
        let has_changed = map.map != self.map;
        *self = map;
        Ok(has_changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_read_again_and_a_broken_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("map", "7 0");
        let mut file = RankMapFile::read(&path).unwrap();
        assert_eq!(file.refresh(), Ok(false));
        write("map", "7 0\n8 1");
        assert_eq!((file.refresh(), file.map().rank("here", 8)), (Ok(true), Some(1)));
        write("map", "7 0\n8 one");
        let error = file.refresh().unwrap_err();
        assert!(error.contains("map`: line 2: `one`") && error.contains("stay"), "{error}");
        assert_eq!((file.refresh(), file.map().rank("here", 8)), (Ok(false), Some(1)), "said once");
        std::fs::remove_file(&path).unwrap();
        assert!(file.refresh().is_err());
        assert_eq!((file.refresh(), file.map().rank("here", 8)), (Ok(false), Some(1)));
        // A new file in place of the old one, as launchers do it.
        write("new", "8 5");
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!((file.refresh(), file.map().rank("here", 8)), (Ok(true), Some(5)));
        assert_eq!(file.map().rank("here", 7), None);
        write("map", &" ".repeat(usize::try_from(MAX_FILE).unwrap() + 1));
        assert!(file.refresh().unwrap_err().contains("larger than"));
    }

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
            ("{\"a\": 1}", "`a` is not a process"),
        ] {
            let error = RankMap::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
