//! A rank's file, written while its entries come.

use std::{
    collections::HashMap,
    io::{self, Write},
    sync::Arc,
};

use super::{
    VERSION,
    entry::{Entry, ProcessGroup},
    pickle::{Pickler, Remembered},
};
use flow::{schema::PythonFrame, text::joined};

/// Maximum number of entries that are appended at once: a reader holds so many apart from their list.
const BATCH: usize = 1000;

/// Maximum number of call stacks that are remembered. Others are written each time.
const MAX_STACKS: usize = 1 << 16;

/// Writes entries as they come; groups and status, which describe them, come at the end.
#[derive(Debug)]
pub struct DumpWriter<W> {
    pickler: Pickler<W>,
    in_batch: usize,
    stacks: HashMap<Arc<[PythonFrame]>, Remembered>,
}

impl<W: Write> DumpWriter<W> {
    /// Begins a file. The writer should be buffered.
    pub fn new(out: W) -> io::Result<Self> {
        let mut pickler = Pickler::new(out)?;
        pickler.begin_dict()?;
        pickler.text("version")?;
        pickler.text(VERSION)?;
        pickler.text("entries")?;
        pickler.empty_list()?;
        Ok(Self { pickler, in_batch: 0, stacks: HashMap::new() })
    }

    /// Adds an entry. The entries of a rank come in the order of their `record_id`.
    pub fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        if self.in_batch == 0 {
            self.pickler.begin_values()?;
        }
        self.pickler.begin_dict()?;
        self.write_entry(entry)?;
        self.pickler.end_dict()?;
        self.in_batch += 1;
        if self.in_batch == BATCH {
            self.end_batch()?;
        }
        Ok(())
    }

    fn end_batch(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.in_batch) > 0 {
            self.pickler.end_values()?;
        }
        Ok(())
    }

    /// Writes the groups and ends the file, without flushing it.
    pub fn finish(mut self, groups: &[ProcessGroup], comm_lib_version: Option<&str>) -> io::Result<W> {
        self.end_batch()?;
        let pickler = &mut self.pickler;
        pickler.text("pg_config")?;
        pickler.begin_dict()?;
        for group in groups {
            pickler.text(&group.name)?;
            pickler.begin_dict()?;
            for (key, value) in [("name", &group.name), ("desc", &group.description)] {
                pickler.text(key)?;
                pickler.text(value)?;
            }
            pickler.text("ranks")?;
            pickler.text(&ranks_text(&group.ranks))?;
            pickler.end_dict()?;
        }
        pickler.end_dict()?;
        pickler.text("pg_status")?;
        pickler.begin_dict()?;
        for group in groups {
            let Some(status) = &group.status else { continue };
            pickler.text(&group.pg_id.unwrap_or_default().to_string())?;
            pickler.begin_dict()?;
            let keys = [
                ("last_enqueued_collective", &status.last_enqueued),
                ("last_started_collective", &status.last_started),
                ("last_completed_collective", &status.last_completed),
            ];
            for (key, work) in keys {
                pickler.text(key)?;
                pickler.number(work.seq)?;
            }
            pickler.end_dict()?;
        }
        pickler.end_dict()?;
        if let Some(version) = comm_lib_version {
            pickler.text("comm_lib_version")?;
            pickler.text(version)?;
        }
        pickler.end_dict()?;
        self.pickler.finish()
    }

    fn write_entry(&mut self, entry: &Entry) -> io::Result<()> {
        let Entry {
            record_id,
            pg_id,
            process_group: [name, description],
            collective_seq_id,
            p2p_seq_id,
            op_id,
            profiling_name,
            time_created_ns,
            duration_ms,
            input_sizes,
            input_dtypes,
            output_sizes,
            output_dtypes,
            state,
            time_discovered_started_ns,
            time_discovered_completed_ns,
            retired,
            timeout_ms,
            is_p2p,
            thread_id,
            thread_name,
            frames,
        } = entry;
        if let Some(frames) = frames {
            self.frames(frames)?;
        }
        self.count("record_id", *record_id)?;
        self.count("pg_id", *pg_id)?;
        let pickler = &mut self.pickler;
        pickler.text("process_group")?;
        pickler.text(name)?;
        pickler.text(description)?;
        pickler.pair()?;
        let thread_id = thread_id.map(|id| id.to_string());
        for (key, value) in [("thread_name", thread_name), ("thread_id", &thread_id)] {
            if let Some(value) = value {
                pickler.text(key)?;
                pickler.text(value)?;
            }
        }
        self.count("collective_seq_id", *collective_seq_id)?;
        self.count("p2p_seq_id", *p2p_seq_id)?;
        self.count("op_id", *op_id)?;
        self.pickler.text("profiling_name")?;
        self.pickler.text(profiling_name)?;
        self.known_or_none("time_created_ns", Some((*time_created_ns).max(0)))?;
        if let Some(duration) = duration_ms {
            self.pickler.text("duration_ms")?;
            self.pickler.float((*duration).into())?;
        }
        self.tensors(["input_sizes", "input_dtypes"], input_sizes, input_dtypes)?;
        self.tensors(["output_sizes", "output_dtypes"], output_sizes, output_dtypes)?;
        self.pickler.text("state")?;
        self.pickler.text(state.name())?;
        // torch has no times before 1970.
        let known = |time: Option<i64>| time.filter(|time| *time >= 0);
        self.known_or_none("time_discovered_started_ns", known(*time_discovered_started_ns))?;
        self.known_or_none("time_discovered_completed_ns", known(*time_discovered_completed_ns))?;
        self.pickler.text("retired")?;
        self.pickler.flag(*retired)?;
        self.known_or_none("timeout_ms", *timeout_ms)?;
        self.pickler.text("is_p2p")?;
        self.pickler.flag(*is_p2p)
    }

    fn count(&mut self, key: &str, value: u64) -> io::Result<()> {
        self.pickler.text(key)?;
        self.pickler.number(signed(value))
    }

    fn known_or_none(&mut self, key: &str, value: Option<i64>) -> io::Result<()> {
        self.pickler.text(key)?;
        match value {
            Some(value) => self.pickler.number(value),
            None => self.pickler.none(),
        }
    }

    fn tensors(&mut self, keys: [&str; 2], sizes: &[Vec<i64>], dtypes: &[String]) -> io::Result<()> {
        let pickler = &mut self.pickler;
        pickler.text(keys[0])?;
        pickler.list(sizes, |pickler, size| pickler.list(size, |pickler, number| pickler.number(*number)))?;
        pickler.text(keys[1])?;
        pickler.list(dtypes, |pickler, dtype| pickler.text(dtype))
    }

    fn frames(&mut self, frames: &Arc<[PythonFrame]>) -> io::Result<()> {
        let pickler = &mut self.pickler;
        pickler.text("frames")?;
        if let Some(known) = self.stacks.get(frames) {
            return pickler.again(*known);
        }
        pickler.list(frames, |pickler, frame| {
            pickler.begin_dict()?;
            for (key, value) in [("name", &frame.function), ("filename", &frame.file)] {
                pickler.text(key)?;
                pickler.text(value)?;
            }
            pickler.text("line")?;
            // 0: not known.
            pickler.number(frame.line.unwrap_or(0).into())?;
            pickler.end_dict()
        })?;
        if self.stacks.len() < MAX_STACKS {
            let value = pickler.remember()?;
            self.stacks.insert(Arc::clone(frames), value);
        }
        Ok(())
    }
}

/// Converts to torch's integers, which are signed. Counters and times do not come near the limit.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Writes ranks as torch does: as the text of a Python list.
fn ranks_text(ranks: &[u64]) -> String {
    format!("[{}]", joined(ranks, ", "))
}
