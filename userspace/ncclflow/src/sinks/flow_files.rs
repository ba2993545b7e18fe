//! The two JSON-lines files of every rank of every communicator.

use std::{
    collections::{BTreeMap, HashMap},
    io, mem,
    sync::Arc,
};

use flow::schema::{MessageRow, Op, RankKey, comm_hash_name};

use super::{
    budget::is_over_max_size,
    json_lines::{JsonLinesFile, LostLines},
    output_dir::OutputDir,
    output_file::Source,
    sink::{RankSummary, Sink, Written},
};

/// Ranks that files are made for: two open files each. A process of many communicators has some hundreds.
pub(super) const MAX_RANKS: usize = 4096;

#[derive(Debug)]
struct RankFiles {
    folder: String,
    n_ranks: i32,
    proxy_flow: JsonLinesFile,
    flow_steps: JsonLinesFile,
}

/// Why an op is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    OverMaxSize,
    NoFile,
}

/// The files of ops and of messages of a session.
#[derive(Debug)]
pub(super) struct FlowFiles {
    dir: Arc<OutputDir>,
    ranks: HashMap<RankKey, RankFiles>,
    /// Of ranks whose files are complete.
    closed: BTreeMap<RankKey, RankSummary>,
    /// The op that came last is not written, and so its messages are not.
    refused: Option<Refused>,
    /// Lines of ranks whose files could not be made, and those that were not tried as there was no room.
    lines_without_file: LostLines,
    errors: Vec<String>,
}

impl FlowFiles {
    pub(super) fn new(dir: Arc<OutputDir>) -> Self {
        Self {
            dir,
            ranks: HashMap::new(),
            closed: BTreeMap::new(),
            refused: None,
            lines_without_file: LostLines::default(),
            errors: Vec::new(),
        }
    }

    /// Makes the files of the op's rank, if they are not there.
    fn open(&mut self, op: &Op) -> Result<(), Refused> {
        // An op as a whole, and not the half of it that still finds room.
        if self.dir.has_no_room() {
            return Err(Refused::OverMaxSize);
        }
        if self.ranks.contains_key(&op.rank) {
            return Ok(());
        }
        let files = if self.ranks.len() < MAX_RANKS {
            RankFiles::create(&self.dir, op)
        } else {
            Err(io::Error::other(format!("there are files of {MAX_RANKS} ranks already")))
        };
        match files {
            Ok(files) => {
                self.ranks.insert(op.rank, files);
                Ok(())
            }
            Err(error) if is_over_max_size(&error) => Err(Refused::OverMaxSize),
            Err(error) => {
                if self.lines_without_file.lines == self.lines_without_file.over_max_size {
                    self.errors.push(format!("cannot make the files of rank {}: {error}", op.row.rank));
                }
                Err(Refused::NoFile)
            }
        }
    }

    fn refuse(&mut self, refused: Refused, lines: usize) {
        let lines = lines as u64;
        self.lines_without_file += match refused {
            Refused::OverMaxSize => LostLines::over_max_size(lines),
            Refused::NoFile => LostLines { lines, over_max_size: 0 },
        };
    }

    fn failed(&mut self, op: &Op, error: &io::Error) {
        self.errors.push(format!("writing the files of rank {} stopped: {error}", op.row.rank));
    }

    fn close_files(&mut self, is_closed: impl Fn(&RankKey) -> bool) {
        self.flush();
        for (key, files) in self.ranks.extract_if(|key, _| is_closed(key)) {
            self.closed.insert(key, files.summary(&key));
        }
    }
}

impl Sink for FlowFiles {
    fn op(&mut self, op: &Op) {
        self.refused = self.open(op).err();
        if let Some(refused) = self.refused {
            self.refuse(refused, 1);
        } else if let Some(files) = self.ranks.get_mut(&op.rank)
            && let Err(error) = files.proxy_flow.push(|line| op.row.write_json(line))
        {
            self.failed(op, &error);
        }
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        if let Some(refused) = self.refused {
            return self.refuse(refused, messages.len());
        }
        let Some(files) = self.ranks.get_mut(&op.rank) else { return };
        let mut written = Ok(());
        for message in messages {
            written = written.and(files.flow_steps.push(|line| message.write_json(line)));
        }
        if let Err(error) = written {
            self.failed(op, &error);
        }
    }

    fn flush(&mut self) {
        for files in self.ranks.values_mut() {
            for file in [&mut files.proxy_flow, &mut files.flow_steps] {
                if let Err(error) = file.flush() {
                    self.errors.push(format!("writing to `{}` stopped: {error}", files.folder));
                }
            }
        }
    }

    fn close_process(&mut self, pid: u32) {
        self.close_files(|key| key.pid == pid);
    }

    fn close(&mut self) {
        self.close_files(|_| true);
    }

    fn take_errors(&mut self) -> Vec<String> {
        mem::take(&mut self.errors)
    }

    fn written(&self) -> Written {
        let mut sorted = self.closed.clone();
        sorted.extend(self.ranks.iter().map(|(key, files)| (*key, files.summary(key))));
        let ranks: Vec<RankSummary> = sorted.into_values().collect();
        let files = |rank: &RankSummary| names(rank.rank).map(|name| (rank.folder.clone(), name));
        Written {
            files: ranks.iter().flat_map(files).collect(),
            has_ops: !ranks.is_empty(),
            lost: ranks.iter().map(|rank| rank.lost).chain([self.lines_without_file]).sum(),
            ranks,
        }
    }
}

/// Names of the two files of a rank.
fn names(rank: i32) -> [String; 2] {
    [format!("proxy_flow_rank{rank}.jsonl"), format!("flow_steps_rank{rank}.jsonl")]
}

impl RankFiles {
    fn create(dir: &OutputDir, op: &Op) -> io::Result<Self> {
        let folder = op.rank.comm_name();
        let subfolder = dir.subfolder(&folder)?;
        let [flow_name, steps_name] = names(op.row.rank);
        let proxy_flow = subfolder.create_source(&flow_name, Source::ProxyFlow)?;
        let flow_steps = subfolder.create_source(&steps_name, Source::FlowSteps).inspect_err(|_| {
            let _ = subfolder.remove_made(&flow_name);
        })?;
        Ok(Self {
            n_ranks: op.row.n_ranks,
            proxy_flow: JsonLinesFile::new(proxy_flow),
            flow_steps: JsonLinesFile::new(flow_steps),
            folder,
        })
    }

    fn summary(&self, key: &RankKey) -> RankSummary {
        RankSummary {
            comm_hash: comm_hash_name(key.hash),
            folder: self.folder.clone(),
            rank: key.rank,
            n_ranks: self.n_ranks,
            pid: key.pid,
            records: self.proxy_flow.lines(),
            steps: self.flow_steps.lines(),
            api_calls: 0,
            lost: [&self.proxy_flow, &self.flow_steps].into_iter().map(JsonLinesFile::lost).sum(),
        }
    }
}
